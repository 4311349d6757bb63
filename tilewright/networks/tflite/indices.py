"""Converts operators that read or write elements by index, or sort."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from tilewright.networks.tflite.elementwise import Rule, given, output
from tilewright.networks.tflite.file import TfliteOperator
from tilewright.networks.tflite.logic import cast, write_as
from tilewright.networks.tflite.moves import move
from tilewright.networks.tflite.writer import Missing, Writer, check_elements


def indices_of(writer: Writer, place: int, suffix: str = "Indices") -> str:
    """Return a tensor of indices as int64, which all of ONNX's operators take."""
    if writer.is_constant(place):
        return writer.add("indices", writer.constant(place, "its indices").astype(np.int64))
    name = writer.stored(place)
    return name if writer.tensors[place].dtype == "int64" else cast(writer, name, "int64", suffix)


def _axis(operator: TfliteOperator, rank: int, name: str = "Axis") -> int:
    axis = operator.integer(name)
    if not -rank <= axis < rank:
        raise Missing(f"its axis is {axis}, of {rank} dimensions")
    return axis % rank


def _gather(writer: Writer, operator: TfliteOperator) -> None:
    data, places = given(operator, 0), given(operator, 1)
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
    if axis > batch:  # GatherND takes that axis first, behind the batches, and the indices follow
        _gather_behind(writer, operator, axis, batch)
        return
    last = writer.add("axes", np.array([-1], np.int64))
    name = writer.node("Unsqueeze", [indices_of(writer, places), last], "IndicesShape")
    move(
        writer, data, output(operator),
        lambda x: writer.node("GatherND", [x, name], batch_dims=batch),
    )  # fmt: skip


def _gather_behind(writer: Writer, operator: TfliteOperator, axis: int, batch: int) -> None:
    """GATHER along an axis with other axes between it and the batches."""
    data, places = given(operator, 0), given(operator, 1)
    rank, more = len(writer.tensors[data].shape), len(writer.tensors[places].shape) - batch
    between = list(range(batch, axis))
    order = [*range(batch), axis, *between, *range(axis + 1, rank)]
    last = writer.add("axes", np.array([-1], np.int64))
    name = writer.node("Unsqueeze", [indices_of(writer, places), last], "IndicesShape")
    # The result of GatherND is (batches, indices, axes between, axes behind).
    begin = batch + more
    back = [
        *range(batch), *range(begin, begin + len(between)), *range(batch, begin),
        *range(begin + len(between), rank - 1 + more),
    ]  # fmt: skip

    def gather(name_of_data: str) -> str:
        turned = writer.node("Transpose", [name_of_data], "First", perm=order)
        found = writer.node("GatherND", [turned, name], "Gather", batch_dims=batch)
        return writer.node("Transpose", [found], perm=back)

    move(writer, data, output(operator), gather)


def _gather_nd(writer: Writer, operator: TfliteOperator) -> None:
    name = indices_of(writer, given(operator, 1))
    move(
        writer, given(operator, 0), output(operator),
        lambda x: writer.node("GatherND", [x, name]),
    )  # fmt: skip


def _embedding_lookup(writer: Writer, operator: TfliteOperator) -> None:
    name = indices_of(writer, given(operator, 0))
    move(
        writer, given(operator, 1), output(operator),
        lambda x: writer.node("Gather", [x, name], axis=0),
    )  # fmt: skip


def _scatter_nd(writer: Writer, operator: TfliteOperator) -> None:
    """Updates of one place are added up."""
    result = output(operator)
    if writer.is_open(result):
        raise Missing("the size of its result depends on values")
    name = indices_of(writer, given(operator, 0))
    shape = writer.tensors[result].shape
    start = writer.filled(shape, 0, writer.computed_type(result))
    updates = writer.real(given(operator, 1))
    writer.write(result, writer.node("ScatterND", [start, name, updates], reduction="add"))


def _sparse_to_dense(writer: Writer, operator: TfliteOperator) -> None:
    """The default everywhere but at the indices, which have one number a dimension."""
    result, indices = output(operator), given(operator, 0)
    shape, own = writer.tensors[result].shape, writer.tensors[indices].shape
    # either a list of indices, or one index
    count = own[0] if len(own) == 2 or (own and len(shape) == 1) else 1
    if not shape or (count and math.prod(own) != count * len(shape)):
        raise Missing(f"its indices of the shape {list(own)} do not fit {len(shape)} dimensions")
    wide, final = (
        writer.add("shape", np.array(sizes, np.int64)) for sizes in ((count, len(shape)), shape)
    )
    places = writer.node("Reshape", [indices_of(writer, indices), wide], "Places")
    base = writer.node("Expand", [writer.real(given(operator, 3)), final], "Default")
    sizes = writer.add("shape", np.array([count], np.int64))
    values = writer.node("Expand", [writer.real(given(operator, 2)), sizes], "Values")
    writer.write(result, writer.node("ScatterND", [base, places, values]))


def _one_hot(writer: Writer, operator: TfliteOperator) -> None:
    """An index that is negative has no place here; in ONNX it counts from the end."""
    places, result = given(operator, 0), output(operator)
    depth = writer.integers(given(operator, 1), "its depth")
    dtype = writer.tensors[result].dtype
    computed = dtype if dtype in ("float32", "int64") else "float32"
    on, off = (given(operator, i) for i in (2, 3))
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
    data = given(operator, 0)
    if len(operator.outputs) != 2:
        raise Missing(f"it has {len(operator.outputs)} outputs in place of two")
    count = writer.integers(given(operator, 1), "its count")
    sizes = writer.add("k", np.array(count[:1], np.int64))
    values, places = operator.outputs
    found = writer.nodes("TopK", [writer.real(data), sizes], 2, axis=-1)
    writer.write(values, found[0])
    write_as(writer, places, found[1], "int64")


def _arg(op: str, writer: Writer, operator: TfliteOperator) -> None:
    data, result = given(operator, 0), output(operator)
    rank = len(writer.tensors[data].shape)
    axes = writer.integers(given(operator, 1), "its axis")
    if len(axes) != 1 or not -rank <= axes[0] < rank:
        raise Missing(f"its axis is {axes}, of {rank} dimensions")
    found = writer.node(op, [writer.real(data)], axis=axes[0] % rank, keepdims=0)
    write_as(writer, result, found, "int64")


def _cum_sum(writer: Writer, operator: TfliteOperator) -> None:
    axes = writer.integers(given(operator, 1), "its axis")
    axis = writer.add("axis", np.array(axes[0], np.int64))
    summed = writer.node(
        "CumSum", [writer.real(given(operator, 0)), axis],
        exclusive=operator.integer("Exclusive"), reverse=operator.integer("Reverse"),
    )  # fmt: skip
    writer.write(output(operator), summed)


def _bucketize(writer: Writer, operator: TfliteOperator) -> None:
    """How many boundaries are not above a number."""
    data, result = given(operator, 0), output(operator)
    ends = operator.options.get("Boundaries", ())
    shape = writer.tensors[data].shape
    if not isinstance(ends, tuple):
        raise Missing("it has no boundaries")
    dtype = writer.computed_type(data)
    sizes = writer.add("shape", np.array([*shape, 1], np.int64))
    each = writer.node("Reshape", [writer.real(data), sizes], "Reshape")
    if not dtype.startswith("float"):
        each, dtype = cast(writer, each, "float64", "CastData"), "float64"
    bounds = writer.add("boundaries", np.array(ends, np.float32).astype(dtype))
    below = writer.node("GreaterOrEqual", [each, bounds], "GreaterOrEqual")
    axes = writer.add("axes", np.array([-1], np.int64))
    counted = writer.node("ReduceSum", [cast(writer, below, "int32"), axes], keepdims=0)
    write_as(writer, result, counted, "int32")


def _dynamic_update_slice(writer: Writer, operator: TfliteOperator) -> None:
    update_slice(writer, operator, indices_of(writer, given(operator, 2)))


def update_slice(writer: Writer, operator: TfliteOperator, first: str) -> None:
    """Write the second input into the first one from the place `first` on, a vector of int64. The
    part begins where it still fits, as XLA has it; its elements go to their places."""
    data, update = (given(operator, i) for i in range(2))
    whole, part = (writer.tensors[place].shape for place in (data, update))
    if whole == part:
        writer.write(output(operator), writer.node("Identity", [writer.real(update)]))
        return
    if len(whole) != len(part) or any(a > b for a, b in zip(part, whole, strict=True)):
        raise Missing(f"a part of the shape {list(part)} does not fit into {list(whole)}")
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
    """Versions 4 and 5, whose results are filled up with zeros to the greatest count."""
    boxes, scores = (given(operator, i) for i in (0, 1))
    soft = operator.kind.endswith("V5")
    if soft and float(writer.constant(given(operator, 5), "its sigma").item()) != 0.0:
        raise Missing("sigma, which lowers scores, has no rule")
    (count,) = writer.integers(given(operator, 2), "its greatest count")[:1] or [0]
    results = operator.outputs
    if writer.tensors[results[0]].shape != (count,):
        raise Missing("its result has another size than its greatest count")
    total = len(writer.tensors[scores].shape) and writer.tensors[scores].shape[0]
    shapes = [
        writer.add("shape", np.array(shape, np.int64)) for shape in ((1, total, 4), (1, 1, total))
    ]
    read = [
        writer.node("Reshape", [writer.real(place), shape], "Reshape")
        for place, shape in zip((boxes, scores), shapes, strict=True)
    ]
    limits = [
        writer.add("limit", np.array(writer.constant(given(operator, i), what), np.float32))
        for i, what in ((3, "its overlap"), (4, "its least score"))
    ]
    most = writer.add("most", np.array(count, np.int64))
    found = writer.node("NonMaxSuppression", [*read, most, *limits])
    starts, ends, axes = (writer.add("place", np.array([n], np.int64)) for n in (2, 3, 1))
    column = writer.node("Slice", [found, starts, ends, axes], "Slice")
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


RULES: Mapping[str, Rule] = {
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
