"""Converts operators that reduce rows by segment, or look rows up by key."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.networks.tflite.elementwise import Rule, given, output
from tilewright.networks.tflite.file import TfliteOperator
from tilewright.networks.tflite.indices import indices_of
from tilewright.networks.tflite.logic import cast, write_as
from tilewright.networks.tflite.products import shape_of
from tilewright.networks.tflite.writer import Missing, Writer

REDUCTIONS: Mapping[str, str] = {"SUM": "add", "PROD": "mul", "MAX": "max", "MIN": "min"}
"""ONNX's names of the reductions, by the last part of an operator's kind."""

COMBINERS = ("SUM", "MEAN", "SQRTN")
"""`CombinerType` of the schema, by number."""


def _reduce_segments(writer: Writer, operator: TfliteOperator) -> None:
    """SEGMENT_SUM and UNSORTED_SEGMENT_*: each row goes to the place of its segment. Rows with a
    negative segment are left out."""
    data, segments, result = given(operator, 0), given(operator, 1), output(operator)
    target = writer.tensors[result]
    dtype = writer.computed_type(result)
    reduction = REDUCTIONS[operator.kind.rpartition("_")[2]]
    if not target.shape:
        raise Missing("its result is a single number")
    rows = target.shape[0]
    drops = True
    if writer.is_constant(segments):
        values = writer.constant(segments, "its segments")
        if values.size and values.max() >= rows:
            raise Missing("a segment lies outside of its result")
        drops = bool(values.size and values.min() < 0)
    name = indices_of(writer, segments, "Segments")
    if drops:  # such rows go to one more row, which is cut off
        zero, last = (writer.add("row", np.array(value, np.int64)) for value in (0, rows))
        is_negative = writer.node("Less", [name, zero], "Negative")
        name = writer.node("Where", [is_negative, last, name], "Rows")
    shape = (rows + drops, *target.shape[1:])
    base = writer.filled(shape, _neutral(reduction, dtype), dtype)
    ends = writer.add("axes", np.array([-1], np.int64))
    places = writer.node("Unsqueeze", [name, ends], "Places")
    updates = writer.real(data)
    reduced = writer.node(
        "ScatterND", [base, places, updates], "Scatter" * drops, reduction=reduction
    )
    if drops:
        bounds = [writer.add("row", np.array([value], np.int64)) for value in (0, rows, 0)]
        reduced = writer.node("Slice", [reduced, *bounds])
    writer.write(result, reduced)


def _neutral(reduction: str, dtype: str) -> float | int:
    """Return what a segment without rows holds."""
    if reduction in ("add", "mul"):
        return int(reduction == "mul")
    if dtype.startswith("float"):
        return float(np.finfo(dtype).min if reduction == "max" else np.finfo(dtype).max)
    return int(np.iinfo(dtype).min if reduction == "max" else np.iinfo(dtype).max)


def _look_up_sparse(writer: Writer, operator: TfliteOperator) -> None:
    """EMBEDDING_LOOKUP_SPARSE: weighted rows of a table, summed by the row of a sparse matrix."""
    ids, indices, _, weights, table = (given(operator, i) for i in range(5))
    result, number = output(operator), operator.integer("Combiner")
    count, rank = shape_of(writer, indices, 2, "its indices")
    depth = len(writer.tensors[table].shape) - 1
    if not 0 <= number < len(COMBINERS) or rank < 2:
        raise Missing(f"its combiner is {number}, for indices of {rank} dimensions")
    ends = [writer.add("range", np.array([value], np.int64)) for value in (0, rank - 1, 1)]
    places = writer.node("Slice", [indices_of(writer, indices), *ends], "Places")
    rows = writer.node("Gather", [writer.real(table), indices_of(writer, ids, "Ids")], "Rows")
    sizes = writer.add("shape", np.array([count, *[1] * depth], np.int64))
    weight = writer.node("Reshape", [writer.real(weights), sizes], "Weights")
    weighted = writer.node("Mul", [rows, weight], "Weighted")
    shape = writer.tensors[result].shape
    lookups = shape[: rank - 1]

    def scatter(updates: str, wanted: tuple[int, ...], suffix: str) -> str:
        zeros = writer.filled(wanted, 0.0, "float32")
        return writer.node("ScatterND", [zeros, places, updates], suffix, reduction="add")

    total = scatter(weighted, shape, "Sum")
    if COMBINERS[number] != "SUM":
        raw = writer.real(weights)
        if COMBINERS[number] == "SQRTN":
            squares = scatter(writer.node("Mul", [raw, raw], "Squares"), lookups, "SquareSum")
            divisor = writer.node("Sqrt", [squares], "Root")
        else:
            divisor = scatter(raw, lookups, "WeightSum")
        ones = writer.filled((count,), 1.0, "float32")
        one, zero = (writer.add("number", np.float32(value)) for value in (1, 0))
        is_empty = writer.node("Equal", [scatter(ones, lookups, "Count"), zero], "Empty")
        divisor = writer.node("Where", [is_empty, one, divisor], "Divisor")
        wide = writer.add("shape", np.array([*lookups, *[1] * depth], np.int64))
        total = writer.node("Div", [total, writer.node("Reshape", [divisor, wide], "Wide")])
    writer.write(result, total)


def _look_up_key(writer: Writer, operator: TfliteOperator) -> None:
    """HASHTABLE_LOOKUP: the row of each key, or zeros and no hit for a key that is not there."""
    wanted, keys, values = (given(operator, i) for i in range(3))
    if len(operator.outputs) != 2:
        raise Missing(f"it has {len(operator.outputs)} outputs in place of two")
    rows, hits = operator.outputs
    (count,) = shape_of(writer, wanted, 1, "its keys")
    shape = writer.tensors[rows].shape
    sizes = writer.add("shape", np.array([count, 1], np.int64))
    column = writer.node("Reshape", [writer.stored(wanted), sizes], "Column")
    matches = writer.node("Equal", [column, writer.stored(keys)], "Equal")
    counted = cast(writer, matches, "int32", "Matches")
    places = writer.node("ArgMax", [counted], "Places", axis=1, keepdims=0)
    found = writer.node("Gather", [writer.real(values), places], "Rows")
    axes = writer.add("axes", np.array([1], np.int64))
    number = writer.node("ReduceSum", [counted, axes], "Number", keepdims=0)
    is_hit = cast(writer, number, "bool", "Hit")
    wide = writer.add("shape", np.array([count, *[1] * (len(shape) - 1)], np.int64))
    zero = writer.add("zero", np.zeros((), writer.computed_type(rows)))
    chosen = writer.node("Reshape", [is_hit, wide], "HitColumn")
    writer.write(rows, writer.node("Where", [chosen, found, zero]))
    write_as(writer, hits, is_hit, "bool")


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        (
            "SEGMENT_SUM", "UNSORTED_SEGMENT_SUM", "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_MAX",
            "UNSORTED_SEGMENT_MIN",
        ),
        _reduce_segments,
    ),
    "EMBEDDING_LOOKUP_SPARSE": _look_up_sparse,
    "HASHTABLE_LOOKUP": _look_up_key,
}  # fmt: skip
