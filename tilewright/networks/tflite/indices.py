"""Convert operators that read or write by index, sort, reduce by segment, or look up by key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from tilewright.networks.tflite.elementwise import Rule, input_index, output
from tilewright.networks.tflite.file import TfliteOperator
from tilewright.networks.tflite.logic import cast, write_as
from tilewright.networks.tflite.moves import move
from tilewright.networks.tflite.products import shape_of
from tilewright.networks.tflite.writer import Missing, Writer, check_elements


def indices_of(writer: Writer, place: int, suffix: str = "Indices") -> str:
    """Return the name of an index tensor as int64, which all ONNX operators accept.

    Args:
        writer: writer of the graph.
        place: tensor index of the index tensor.
        suffix: suffix of the name of the Cast node.
    """
    if writer.is_constant(place):
        return writer.add("indices", writer.constant(place, "its indices").astype(np.int64))
    name = writer.stored_name(place)
    return name if writer.tensors[place].dtype == "int64" else cast(writer, name, "int64", suffix)


def _axis(operator: TfliteOperator, rank: int, name: str = "Axis") -> int:
    axis = operator.integer(name)
    if not -rank <= axis < rank:
        raise Missing(f"its axis is {axis}, but its data have {rank} dimensions")
    return axis % rank


def _gather(writer: Writer, operator: TfliteOperator) -> None:
    data, places = input_index(operator, 0), input_index(operator, 1)
    axis = _axis(operator, len(writer.tensors[data].shape))
    batch = operator.integer("BatchDims")
    if batch < 0:
        batch += len(writer.tensors[places].shape)
    if not batch:
        name = indices_of(writer, places)
        move(writer, data, output(operator), lambda x: writer.node("Gather", [x, name], axis=axis))
        return
    if not 0 < batch <= axis:
        raise Missing(f"it gathers along the axis {axis} behind {batch} batch dimensions")
    if axis > batch:  # GatherND needs the axis directly after the batch axes
        _gather_behind(writer, operator, axis, batch)
        return
    last = writer.add("axes", np.array([-1], np.int64))
    name = writer.node("Unsqueeze", [indices_of(writer, places), last], "IndicesShape")
    move(
        writer, data, output(operator),
        lambda x: writer.node("GatherND", [x, name], batch_dims=batch),
    )  # fmt: skip


def _gather_behind(writer: Writer, operator: TfliteOperator, axis: int, batch: int) -> None:
    """Convert GATHER along an axis that does not directly follow the batch axes.

    GatherND gathers along the first axis after the batch axes, so the axis is moved there.

    Args:
        writer: writer of the graph.
        operator: the operator.
        axis: the axis.
        batch: number of batch axes.
    """
    data, places = input_index(operator, 0), input_index(operator, 1)
    rank, more = len(writer.tensors[data].shape), len(writer.tensors[places].shape) - batch
    between = list(range(batch, axis))
    order = [*range(batch), axis, *between, *range(axis + 1, rank)]
    last = writer.add("axes", np.array([-1], np.int64))
    name = writer.node("Unsqueeze", [indices_of(writer, places), last], "IndicesShape")
    # GatherND's result has the axes (batches, indices, axes in between, remaining axes).
    begin = batch + more
    back = [
        *range(batch), *range(begin, begin + len(between)), *range(batch, begin),
        *range(begin + len(between), rank - 1 + more),
    ]  # fmt: skip

    def gather(name_of_data: str) -> str:
        turned = writer.node("Transpose", [name_of_data], "First", perm=order)
        gathered = writer.node("GatherND", [turned, name], "Gather", batch_dims=batch)
        return writer.node("Transpose", [gathered], perm=back)

    move(writer, data, output(operator), gather)


def _gather_nd(writer: Writer, operator: TfliteOperator) -> None:
    name = indices_of(writer, input_index(operator, 1))
    move(
        writer, input_index(operator, 0), output(operator),
        lambda x: writer.node("GatherND", [x, name]),
    )  # fmt: skip


def _embedding_lookup(writer: Writer, operator: TfliteOperator) -> None:
    name = indices_of(writer, input_index(operator, 0))
    move(
        writer, input_index(operator, 1), output(operator),
        lambda x: writer.node("Gather", [x, name], axis=0),
    )  # fmt: skip


def _scatter_nd(writer: Writer, operator: TfliteOperator) -> None:
    """Convert SCATTER_ND, which adds up updates of the same element.

    Raises:
        Missing: the size of the result depends on values of tensors.
    """
    result = output(operator)
    if writer.is_open(result):
        raise Missing("the size of its result depends on values of tensors")
    name = indices_of(writer, input_index(operator, 0))
    shape = writer.tensors[result].shape
    start = writer.filled_constant(shape, 0, writer.computed_type(result))
    updates = writer.real(input_index(operator, 1))
    writer.write(result, writer.node("ScatterND", [start, name, updates], reduction="add"))


def _sparse_to_dense(writer: Writer, operator: TfliteOperator) -> None:
    """Convert SPARSE_TO_DENSE to ONNX.

    The operator fills a tensor with a default value, and then writes values at the given indices.
    Each index has one number per dimension.

    Raises:
        Missing: the result is a scalar, or the shape of the indices does not match its dimensions.
    """
    result, indices = output(operator), input_index(operator, 0)
    shape, indices_shape = writer.tensors[result].shape, writer.tensors[indices].shape
    # The input is a list of indices or a single index.
    count = (
        indices_shape[0] if len(indices_shape) == 2 or (indices_shape and len(shape) == 1) else 1
    )
    if not shape or (count and math.prod(indices_shape) != count * len(shape)):
        raise Missing(
            f"its indices of the shape {list(indices_shape)} do not fit {len(shape)} dimensions"
        )
    wide, final = (
        writer.add("shape", np.array(sizes, np.int64)) for sizes in ((count, len(shape)), shape)
    )
    places = writer.node("Reshape", [indices_of(writer, indices), wide], "Places")
    base = writer.node("Expand", [writer.real(input_index(operator, 3)), final], "Default")
    sizes = writer.add("shape", np.array([count], np.int64))
    values = writer.node("Expand", [writer.real(input_index(operator, 2)), sizes], "Values")
    writer.write(result, writer.node("ScatterND", [base, places, values]))


def _one_hot(writer: Writer, operator: TfliteOperator) -> None:
    """Convert ONE_HOT to ONNX.

    In TensorFlow Lite, a negative index gives a row without a hot element. In ONNX, it counts from
    the end. Negative indices are therefore replaced by an index beyond the end, which also gives a
    row without a hot element.
    """
    places, result = input_index(operator, 0), output(operator)
    depth = writer.integers(input_index(operator, 1), "its depth")
    dtype = writer.tensors[result].dtype
    computed = dtype if dtype in ("float32", "int64") else "float32"
    on, off = (input_index(operator, i) for i in (2, 3))
    name = indices_of(writer, places)
    zero, end = (writer.add("end", np.array(value, np.int64)) for value in (0, depth[0]))
    outside = writer.node("Less", [name, zero], "Less")
    moved = writer.node("Where", [outside, end, name], "Where")
    if writer.is_constant(on) and writer.is_constant(off):
        numbers = [writer.constant(place, "its values").item() for place in (off, on)]
        values = writer.add("values", np.array(numbers, computed))
    else:
        one = writer.add("shape", np.array([1], np.int64))
        pair = [
            writer.node(
                "Reshape", [cast(writer, writer.real(place), computed, side), one], f"{side}1"
            )
            for place, side in ((off, "Off"), (on, "On"))
        ]
        values = writer.node("Concat", pair, "OffOn", axis=0)
    if writer.tensors[places].shape:
        hot = writer.node("OneHot", [moved, end, values], axis=operator.integer("Axis", -1))
    else:  # ONNX has at least one dimension of indices
        line, final = (writer.add("shape", np.array([n], np.int64)) for n in (1, depth[0]))
        one = writer.node("Reshape", [moved, line], "Line")
        hot = writer.node("Reshape", [writer.node("OneHot", [one, end, values], "Hot"), final])
    write_as(writer, result, hot, computed)


def _top_k(writer: Writer, operator: TfliteOperator) -> None:
    data = input_index(operator, 0)
    if len(operator.outputs) != 2:
        raise Missing(f"it has {len(operator.outputs)} outputs instead of two")
    count = writer.integers(input_index(operator, 1), "its count")
    sizes = writer.add("k", np.array(count[:1], np.int64))
    values, places = operator.outputs
    values_and_indices = writer.nodes("TopK", [writer.real(data), sizes], 2, axis=-1)
    writer.write(values, values_and_indices[0])
    write_as(writer, places, values_and_indices[1], "int64")


def _arg(op: str, writer: Writer, operator: TfliteOperator) -> None:
    data, result = input_index(operator, 0), output(operator)
    rank = len(writer.tensors[data].shape)
    axes = writer.integers(input_index(operator, 1), "its axis")
    if len(axes) != 1 or not -rank <= axes[0] < rank:
        raise Missing(f"its axis is {axes}, but its data have {rank} dimensions")
    index = writer.node(op, [writer.real(data)], axis=axes[0] % rank, keepdims=0)
    write_as(writer, result, index, "int64")


def _cum_sum(writer: Writer, operator: TfliteOperator) -> None:
    axes = writer.integers(input_index(operator, 1), "its axis")
    axis = writer.add("axis", np.array(axes[0], np.int64))
    summed = writer.node(
        "CumSum", [writer.real(input_index(operator, 0)), axis],
        exclusive=operator.integer("Exclusive"), reverse=operator.integer("Reverse"),
    )  # fmt: skip
    writer.write(output(operator), summed)


def _bucketize(writer: Writer, operator: TfliteOperator) -> None:
    """Convert BUCKETIZE, which counts for each number the boundaries that are at most as large.

    Raises:
        Missing: the operator has no boundaries.
    """
    data, result = input_index(operator, 0), output(operator)
    ends = operator.options.get("Boundaries", ())
    shape = writer.tensors[data].shape
    if not isinstance(ends, tuple):
        raise Missing("it has no boundaries")
    dtype = writer.computed_type(data)
    sizes = writer.add("shape", np.array([*shape, 1], np.int64))
    column = writer.node("Reshape", [writer.real(data), sizes], "Reshape")
    if not dtype.startswith("float"):
        column, dtype = cast(writer, column, "float64", "CastData"), "float64"
    bounds = writer.add("boundaries", np.array(ends, np.float32).astype(dtype))
    below = writer.node("GreaterOrEqual", [column, bounds], "GreaterOrEqual")
    axes = writer.add("axes", np.array([-1], np.int64))
    counted = writer.node("ReduceSum", [cast(writer, below, "int32"), axes], keepdims=0)
    write_as(writer, result, counted, "int32")


def _dynamic_update_slice(writer: Writer, operator: TfliteOperator) -> None:
    update_slice(writer, operator, indices_of(writer, input_index(operator, 2)))


def update_slice(writer: Writer, operator: TfliteOperator, first: str) -> None:
    """Overwrite a slice of an operator's first input with its second input.

    As in XLA, the start of the slice is clamped so that the slice lies inside the tensor.

    Args:
        writer: writer of the graph.
        operator: the operator, whose first two inputs are the data and the update.
        first: name of an int64 vector with the start of the slice.

    Raises:
        Missing: the update does not fit into the data, or is too large.
    """
    data, update = (input_index(operator, i) for i in range(2))
    whole, part = (writer.tensors[place].shape for place in (data, update))
    if whole == part:
        writer.write(output(operator), writer.node("Identity", [writer.real(update)]))
        return
    if len(whole) != len(part) or any(a > b for a, b in zip(part, whole, strict=True)):
        raise Missing(f"a part of shape {list(part)} does not fit into {list(whole)}")
    check_elements(math.prod(part) * len(part))
    grid = np.stack(np.meshgrid(*map(np.arange, part), indexing="ij"), -1).astype(np.int64)
    most = np.subtract(whole, part).astype(np.int64)
    zero, last = writer.add("first", np.zeros_like(most)), writer.add("last", most)
    inside = writer.node("Min", [writer.node("Max", [first, zero], "Max"), last], "Min")
    places = writer.node("Add", [writer.add("grid", grid), inside], "Add")
    result = output(operator)
    written = writer.node("ScatterND", [writer.real(data), places, writer.real(update)])
    writer.write(result, written)


def _non_max_suppression(writer: Writer, operator: TfliteOperator) -> None:
    """Convert NON_MAX_SUPPRESSION_V4 or V5 to ONNX.

    The results are padded with zeros to the largest possible number of boxes.

    Raises:
        Missing: an option is not a constant, V5 lowers the scores of overlapping boxes (its sigma
            is not 0), or the size of the result is not the largest possible number of boxes.
    """
    boxes, scores = (input_index(operator, i) for i in (0, 1))
    soft = operator.kind.endswith("V5")
    if soft and float(writer.constant(input_index(operator, 5), "its sigma").item()) != 0.0:
        raise Missing("its option sigma, which lowers scores, is not supported")
    (count,) = writer.integers(input_index(operator, 2), "its greatest count")[:1] or [0]
    results = operator.outputs
    if writer.tensors[results[0]].shape != (count,):
        raise Missing("the size of its result differs from its greatest count")
    total = len(writer.tensors[scores].shape) and writer.tensors[scores].shape[0]
    shapes = [
        writer.add("shape", np.array(shape, np.int64)) for shape in ((1, total, 4), (1, 1, total))
    ]
    read = [
        writer.node("Reshape", [writer.real(place), shape], "Reshape")
        for place, shape in zip((boxes, scores), shapes, strict=True)
    ]
    limits = [
        writer.add("limit", np.array(writer.constant(input_index(operator, i), what), np.float32))
        for i, what in ((3, "its overlap"), (4, "its least score"))
    ]
    most = writer.add("most", np.array(count, np.int64))
    selected = writer.node("NonMaxSuppression", [*read, most, *limits])
    starts, ends, axes = (writer.add("place", np.array([n], np.int64)) for n in (2, 3, 1))
    column = writer.node("Slice", [selected, starts, ends, axes], "Slice")
    line = writer.node("Squeeze", [column, axes], "Squeeze")
    length = writer.node("Shape", [line], "Shape")
    whole = writer.add("place", np.array([count], np.int64))
    rest = writer.node("Sub", [whole, length], "Sub")
    zero = writer.add("place", np.array([0], np.int64))
    pads = writer.node("Concat", [zero, rest], "Concat", axis=0)
    write_as(writer, results[0], writer.node("Pad", [line, pads], "Pad"), "int64")
    if soft:
        chosen = writer.node("Gather", [writer.real(scores), line], "Gather", axis=0)
        writer.write(results[1], writer.node("Pad", [chosen, pads], "PadScores"))
    size = writer.node("Squeeze", [length], "Count")
    write_as(writer, results[-1], size, "int64")


INDEX_RULES: Mapping[str, Rule] = {
    "GATHER": _gather,
    "GATHER_ND": _gather_nd,
    "EMBEDDING_LOOKUP": _embedding_lookup,
    "SCATTER_ND": _scatter_nd,
    "SPARSE_TO_DENSE": _sparse_to_dense,
    "ONE_HOT": _one_hot,
    "TOPK_V2": _top_k,
    "ARG_MAX": partial(_arg, "ArgMax"),
    "ARG_MIN": partial(_arg, "ArgMin"),
    "CUMSUM": _cum_sum,
    "BUCKETIZE": _bucketize,
    "DYNAMIC_UPDATE_SLICE": _dynamic_update_slice,
    "NON_MAX_SUPPRESSION_V4": _non_max_suppression,
    "NON_MAX_SUPPRESSION_V5": _non_max_suppression,
}
"""Conversion rules of operators that read or write elements at given indices, by the operator's
name in the schema."""


REDUCTIONS: Mapping[str, str] = {"SUM": "add", "PROD": "mul", "MAX": "max", "MIN": "min"}
"""Names of reductions in ONNX, by the last part of the operator's name."""

COMBINERS = ("SUM", "MEAN", "SQRTN")
"""Names of the values of the schema's enumeration `CombinerType`, indexed by the value."""


def _reduce_segments(writer: Writer, operator: TfliteOperator) -> None:
    """Convert SEGMENT_SUM or UNSORTED_SEGMENT_*, which reduce the rows of each segment to one row.

    Rows with a negative segment number are ignored.

    Raises:
        Missing: the result is a scalar, or the segment numbers are constant and one of them is not
            a row of the result.
    """
    data, segments, result = input_index(operator, 0), input_index(operator, 1), output(operator)
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
            raise Missing("a segment is outside of its result")
        drops = bool(values.size and values.min() < 0)
    name = indices_of(writer, segments, "Segments")
    if drops:  # negative segments are collected in an extra row, which is removed
        zero, last = (writer.add("row", np.array(value, np.int64)) for value in (0, rows))
        is_negative = writer.node("Less", [name, zero], "Negative")
        name = writer.node("Where", [is_negative, last, name], "Rows")
    shape = (rows + drops, *target.shape[1:])
    base = writer.filled_constant(shape, _neutral(reduction, dtype), dtype)
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
    """Return the result of a reduction over no elements, which is the value of an empty segment.

    Args:
        reduction: "add", "mul", "max" or "min".
        dtype: NumPy type of the data.
    """
    if reduction in ("add", "mul"):
        return int(reduction == "mul")
    if dtype.startswith("float"):
        return float(np.finfo(dtype).min if reduction == "max" else np.finfo(dtype).max)
    return int(np.iinfo(dtype).min if reduction == "max" else np.iinfo(dtype).max)


def _look_up_sparse(writer: Writer, operator: TfliteOperator) -> None:
    """Convert EMBEDDING_LOOKUP_SPARSE to ONNX.

    The operator looks up rows of a table and adds up their weighted values in groups. The sum of a
    group is optionally divided by the sum of its weights, or by the root of the sum of its squared
    weights.

    Raises:
        Missing: the combiner is unknown, or the indices have fewer than two numbers each.
    """
    ids, indices, _, weights, table = (input_index(operator, i) for i in range(5))
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
        zeros = writer.filled_constant(wanted, 0.0, "float32")
        return writer.node("ScatterND", [zeros, places, updates], suffix, reduction="add")

    total = scatter(weighted, shape, "Sum")
    if COMBINERS[number] != "SUM":
        raw = writer.real(weights)
        if COMBINERS[number] == "SQRTN":
            squares = scatter(writer.node("Mul", [raw, raw], "Squares"), lookups, "SquareSum")
            divisor = writer.node("Sqrt", [squares], "Root")
        else:
            divisor = scatter(raw, lookups, "WeightSum")
        ones = writer.filled_constant((count,), 1.0, "float32")
        one, zero = (writer.add("number", np.float32(value)) for value in (1, 0))
        is_empty = writer.node("Equal", [scatter(ones, lookups, "Count"), zero], "Empty")
        divisor = writer.node("Where", [is_empty, one, divisor], "Divisor")
        wide = writer.add("shape", np.array([*lookups, *[1] * depth], np.int64))
        total = writer.node("Div", [total, writer.node("Reshape", [divisor, wide], "Wide")])
    writer.write(result, total)


def _look_up_key(writer: Writer, operator: TfliteOperator) -> None:
    """Convert HASHTABLE_LOOKUP, which returns the row of each key; zeros if the key is absent.

    Raises:
        Missing: the operator does not have two outputs.
    """
    wanted, keys, values = (input_index(operator, i) for i in range(3))
    if len(operator.outputs) != 2:
        raise Missing(f"it has {len(operator.outputs)} outputs instead of two")
    rows, hits = operator.outputs
    (count,) = shape_of(writer, wanted, 1, "its keys")
    shape = writer.tensors[rows].shape
    sizes = writer.add("shape", np.array([count, 1], np.int64))
    column = writer.node("Reshape", [writer.stored_name(wanted), sizes], "Column")
    matches = writer.node("Equal", [column, writer.stored_name(keys)], "Equal")
    counted = cast(writer, matches, "int32", "Matches")
    places = writer.node("ArgMax", [counted], "Places", axis=1, keepdims=0)
    looked_up = writer.node("Gather", [writer.real(values), places], "Rows")
    axes = writer.add("axes", np.array([1], np.int64))
    number = writer.node("ReduceSum", [counted, axes], "Number", keepdims=0)
    is_hit = cast(writer, number, "bool", "Hit")
    wide = writer.add("shape", np.array([count, *[1] * (len(shape) - 1)], np.int64))
    zero = writer.add("zero", np.zeros((), writer.computed_type(rows)))
    chosen = writer.node("Reshape", [is_hit, wide], "HitColumn")
    writer.write(rows, writer.node("Where", [chosen, looked_up, zero]))
    write_as(writer, hits, is_hit, "bool")


SEGMENT_RULES: Mapping[str, Rule] = {
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
"""Conversion rules of segment reductions and table lookups, by the operator's name in the
schema."""

RULES: Mapping[str, Rule] = {**INDEX_RULES, **SEGMENT_RULES}
"""Conversion rule of each operator of this module, by its name in the schema."""
