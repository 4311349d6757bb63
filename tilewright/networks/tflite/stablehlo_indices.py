"""Convert StableHLO operators that sort, or that read or write slices at computed positions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from tilewright.networks.tflite.elementwise import Rule, input_index, output
from tilewright.networks.tflite.file import TfliteOperator
from tilewright.networks.tflite.indices import indices_of, update_slice
from tilewright.networks.tflite.logic import cast
from tilewright.networks.tflite.moves import move
from tilewright.networks.tflite.windows import Integers, combiner
from tilewright.networks.tflite.writer import Missing, Writer, check_elements

ASCENDING, DESCENDING = ("LESS", "LESS_EQUAL"), ("GREATER", "GREATER_EQUAL")
DIRECTIONS: Mapping[int, bool] = {2: True, 3: True, 4: False, 5: False}
"""Sort order that a StableHLO comparison selects, by the comparison's number in the schema: True
for descending, False for ascending."""

SORTABLE = frozenset(("float32", "float64", "int32", "int64"))
"""Element types that onnxruntime supports for TopK."""

REDUCTIONS: Mapping[str, str] = {
    "add": "add", "mul": "mul", "max": "max", "min": "min",
}  # fmt: skip
"""Reductions of ONNX's ScatterND, by the name of the combining function."""


def _starts(writer: Writer, operator: TfliteOperator, first: int, rank: int) -> str:
    """Join an operator's scalar index inputs into one int64 vector.

    Args:
        writer: writer of the graph.
        operator: the operator.
        first: position of the first index input. All inputs from this position on are joined.
        rank: expected number of index inputs.

    Returns:
        The name of the vector, which has the shape (rank,).

    Raises:
        Missing: the number of index inputs differs from `rank`.
    """
    if len(operator.inputs) != first + rank:
        raise Missing(
            f"it has {len(operator.inputs) - first} indices, but its data have {rank} dimensions"
        )
    one = writer.add("shape", np.array([1], np.int64))
    names = [
        writer.node(
            "Reshape", [indices_of(writer, input_index(operator, first + i)), one], f"Start{i}"
        )
        for i in range(rank)
    ]
    return writer.node("Concat", names, "Starts", axis=0)


def clamp(writer: Writer, name: str, most: Sequence[int]) -> str:
    """Limit indices to the range from 0 to `most`.

    Args:
        writer: writer of the graph.
        name: name of the index tensor, whose last axis has one number per dimension of the data.
        most: largest index along each dimension.

    Returns:
        The name of the result.
    """
    zero = writer.add("first", np.zeros(len(most), np.int64))
    last = writer.add("last", np.array(most, np.int64))
    return writer.node("Min", [writer.node("Max", [name, zero], "Max"), last], "Min")


def _dynamic_slice(writer: Writer, operator: TfliteOperator) -> None:
    """Convert STABLEHLO_DYNAMIC_SLICE; the start is clamped so that the slice fits."""
    data, result = input_index(operator, 0), output(operator)
    shape, sizes = writer.tensors[data].shape, operator.integers("SliceSizes")
    if len(sizes) != len(shape) or any(not 0 <= a <= b for a, b in zip(sizes, shape, strict=True)):
        raise Missing(f"a slice of shape {sizes} does not fit into {list(shape)}")
    if not shape:
        move(writer, data, result, lambda name: writer.node("Identity", [name]))
        return
    starts = _starts(writer, operator, 1, len(shape))
    starts = clamp(writer, starts, [b - a for a, b in zip(sizes, shape, strict=True)])
    lengths = writer.add("sizes", np.array(sizes, np.int64))
    ends = writer.node("Add", [starts, lengths], "Ends")
    # The shape of the slice does not follow from computed ends, but from this Reshape.
    move(
        writer, data, result,
        lambda name: writer.node(
            "Reshape", [writer.node("Slice", [name, starts, ends], "Slice"), lengths]
        ),
    )  # fmt: skip


def _dynamic_update_slice(writer: Writer, operator: TfliteOperator) -> None:
    rank = len(writer.tensors[input_index(operator, 0)].shape)
    update_slice(writer, operator, _starts(writer, operator, 2, rank) if rank else "")


def _write_begins(
    writer: Writer, indices: int, vector_axis: int, axes: Sequence[int], shape: Sequence[int],
    most: Sequence[int] | None,
) -> tuple[str, list[int]]:  # fmt: skip
    """Convert the start indices of slices to indices with one number per axis of the data.

    Args:
        writer: writer of the graph.
        indices: tensor index of the start indices.
        vector_axis: axis of `indices` along which the numbers of one index lie. If it equals the
            number of axes, each index is a single number.
        axes: the axis of the data to which each number of an index refers. The start along all
            other axes is 0.
        shape: shape of the data.
        most: largest start along each axis of the data, to which starts are clamped. None if starts
            are not clamped.

    Returns:
        Name of a tensor of shape (…, rank of the data), and the sizes of its axes before the last
        axis.
    """
    own = list(writer.tensors[indices].shape)
    name = indices_of(writer, indices)
    if vector_axis == len(own):
        last = writer.add("axes", np.array([-1], np.int64))
        name = writer.node("Unsqueeze", [name, last], "Vectors")
        own.append(1)
    elif not 0 <= vector_axis < len(own):
        raise Missing(f"its indices have no axis {vector_axis}")
    elif vector_axis != len(own) - 1:
        order = [axis for axis in range(len(own)) if axis != vector_axis] + [vector_axis]
        name = writer.node("Transpose", [name], "Vectors", perm=order)
        own = [own[axis] for axis in order]
    if own[-1] != len(axes) or any(not 0 <= axis < len(shape) for axis in axes):
        raise Missing(f"its indices have {own[-1]} numbers, but the axes are {list(axes)}")
    if most is not None:
        name = clamp(writer, name, [most[axis] for axis in axes])
    if list(axes) != list(range(len(shape))):
        zeros = writer.add("zeros", np.zeros([*own[:-1], 1], np.int64))
        filled = writer.node("Concat", [name, zeros], "WithZero", axis=-1)
        sources = [axes.index(axis) if axis in axes else own[-1] for axis in range(len(shape))]
        order_name = writer.add("order", np.array(sources, np.int64))
        name = writer.node("Gather", [filled, order_name], "Starts", axis=-1)
    return name, own[:-1]


def _grid(sizes: Sequence[int], left_out: Sequence[int], rank: int) -> Integers:
    """Return the offset of each element of a slice from the start of the slice.

    Args:
        sizes: size of the slice along each axis of the data.
        left_out: axes of size 1 that the result does not have.
        rank: number of axes of the data.

    Returns:
        int64 array of shape (*sizes of the remaining axes, rank).
    """
    check_elements(math.prod(sizes) * rank)
    axes = np.meshgrid(*(np.arange(size, dtype=np.int64) for size in sizes), indexing="ij")
    grid = np.stack(axes, -1) if axes else np.zeros(0, np.int64)
    stay = [size for axis, size in enumerate(sizes) if axis not in left_out]
    return grid.reshape([*stay, rank])


def _spread_starts(
    writer: Writer, starts: str, batch: Sequence[int], grid: Integers, rank: int
) -> str:
    """Return the indices of all elements of all slices.

    Args:
        writer: writer of the graph.
        starts: name of the start indices of the slices.
        batch: shape of the array of slices.
        grid: offsets of a slice's elements from its start, of shape (*offsets, rank).
        rank: number of dimensions of the data.

    Returns:
        Name of an index tensor of shape (*batch, *offsets, rank).
    """
    wide = writer.add("shape", np.array([*batch, *[1] * (grid.ndim - 1), rank], np.int64))
    name = writer.node("Reshape", [starts, wide], "Wide")
    return writer.node("Add", [name, writer.add("grid", grid)], "Places")


def _gather(writer: Writer, operator: TfliteOperator) -> None:
    """Convert STABLEHLO_GATHER to a gather of single elements.

    The starts are clamped so that the slices lie inside the data.
    """
    data, indices, result = input_index(operator, 0), input_index(operator, 1), output(operator)
    shape, sizes = writer.tensors[data].shape, operator.integers("SliceSizes")
    offsets, collapsed = operator.integers("OffsetDims"), operator.integers("CollapsedSliceDims")
    rank = len(shape)
    if (
        not rank
        or len(sizes) != rank
        or any(not 0 <= a <= b for a, b in zip(sizes, shape, strict=True))
        or any(not 0 <= axis < rank or sizes[axis] > 1 for axis in collapsed)
    ):
        raise Missing(f"slices of shape {sizes} do not fit into {list(shape)}")
    starts, batch = _write_begins(
        writer, indices, operator.integer("IndexVectorDim"), operator.integers("StartIndexMap"),
        shape, [b - a for a, b in zip(sizes, shape, strict=True)],
    )  # fmt: skip
    grid = _grid(sizes, collapsed, rank)
    places = _spread_starts(writer, starts, batch, grid, rank)
    total = len(batch) + grid.ndim - 1
    if len(offsets) != grid.ndim - 1 or any(not 0 <= axis < total for axis in offsets):
        raise Missing(f"the dimensions {offsets} of its result do not match its slices")
    batched = [axis for axis in range(total) if axis not in offsets]
    back = [int(axis) for axis in np.argsort([*batched, *offsets])]

    def gather(name: str) -> str:
        node = writer.node("GatherND", [name, places], "Gather")
        return writer.node("Transpose", [node], perm=back)

    move(writer, data, result, gather)


def _scatter(writer: Writer, operator: TfliteOperator) -> None:
    """Convert STABLEHLO_SCATTER to ONNX.

    Updates outside of the data are ignored: they are written to an additional element at the end,
    which is then removed.
    """
    if len(operator.inputs) != 3:
        raise Missing(f"it has {len(operator.inputs)} inputs instead of 3")
    data, indices, updates = (input_index(operator, i) for i in range(3))
    result = output(operator)
    shape, own = writer.tensors[data].shape, writer.tensors[updates].shape
    windows = operator.integers("UpdateWindowDims")
    inserted = operator.integers("InsertedWindowDims")
    function = combiner(writer, operator, "UpdateComputationSubgraphIndex")
    rank = len(shape)
    if (
        function not in (*REDUCTIONS, "second")
        or not rank
        or any(not 0 <= a < len(own) for a in windows)
    ):
        raise Missing("its updates or its function do not fit its data")
    starts, batch = _write_begins(
        writer, indices, operator.integer("IndexVectorDim"),
        operator.integers("ScatterDimsToOperandDims"), shape, None,
    )  # fmt: skip
    stay = [axis for axis in range(rank) if axis not in inserted]
    if len(stay) != len(windows) or len(own) != len(batch) + len(windows):
        raise Missing(f"windows of the dimensions {windows} do not fit its data")
    sizes = [1] * rank
    for axis, window in zip(stay, windows, strict=True):
        sizes[axis] = own[window]
    grid = _grid(sizes, inserted, rank)
    places = _spread_starts(writer, starts, batch, grid, rank)
    total = math.prod(shape)
    zero, limits = (
        writer.add("bound", np.array(value, np.int64)) for value in (np.zeros(rank), shape)
    )
    last = writer.add("axes", np.array([-1], np.int64))
    inside = writer.node(
        "And",
        [writer.node("GreaterOrEqual", [places, zero], "Positive"),
         writer.node("Less", [places, limits], "Below")],
        "Inside",
    )  # fmt: skip
    counted = cast(writer, inside, "int64", "InsideNumbers")
    number = writer.node("ReduceSum", [counted, last], "InsideCount", keepdims=0)
    is_inside = writer.node("Equal", [number, writer.add("rank", np.array(rank))], "AllInside")
    strides = np.array([math.prod(shape[axis + 1 :]) for axis in range(rank)], np.int64)
    steps = writer.node("Mul", [places, writer.add("strides", strides)], "Steps")
    flat = writer.node("ReduceSum", [steps, last], "Flat", keepdims=0)
    safe = writer.node("Where", [is_inside, flat, writer.add("end", np.array(total))], "Safe")

    scattered_axes = [axis for axis in range(len(own)) if axis not in windows]
    order = [*scattered_axes, *windows]
    column, vector = (writer.add("shape", np.array(sizes, np.int64)) for sizes in ([-1, 1], [-1]))
    line = writer.node("Reshape", [writer.real(data), vector], "Line")
    at = writer.node("Reshape", [safe, column], "Column")
    if function == "second":
        # Of several updates of one element the last in memory counts, but ScatterND may write in
        # any order. So the numbers of the updates are scattered, and the largest is kept.
        check_elements(max(math.prod(own), total))
        counts = np.arange(math.prod(own), dtype=np.int64).reshape(own).transpose(order)
        numbers = writer.add("numbers", counts.ravel())
        none = writer.filled_constant((total + 1,), -1, "int64")
        last_ones = writer.node("ScatterND", [none, at, numbers], "Last", reduction="max")
        bounds = [writer.add("range", np.array([value], np.int64)) for value in (0, total)]
        last_ones = writer.node("Slice", [last_ones, *bounds], "LastInside")
        values = writer.node("Reshape", [writer.real(updates), vector], "UpdateLine")
        negative = writer.node("Less", [last_ones, writer.add("bound", np.int64(0))], "Untouched")
        updated = writer.node("Gather", [values, last_ones], "Updated")  # Where ignores -1
        kept = writer.node("Where", [negative, line, updated], "Kept")
    else:
        update = writer.node("Transpose", [writer.real(updates)], "Updates", perm=order)
        values = writer.node("Reshape", [update, vector], "UpdateLine")
        spare = writer.add("spare", np.zeros(1, writer.computed_type(data)))
        base = writer.node("Concat", [line, spare], "Base", axis=0)
        written = writer.node(
            "ScatterND", [base, at, values], "Scatter", reduction=REDUCTIONS[function]
        )
        bounds = [writer.add("range", np.array([value], np.int64)) for value in (0, total)]
        kept = writer.node("Slice", [written, *bounds], "Kept")
    final = writer.add("shape", np.array(shape, np.int64))
    writer.write(result, writer.node("Reshape", [kept, final]))


def _sort(writer: Writer, operator: TfliteOperator) -> None:
    """Convert STABLEHLO_SORT, which sorts one tensor and reorders the others accordingly."""
    places, results = operator.inputs, operator.outputs
    shape = writer.tensors[input_index(operator, 0)].shape
    axis = operator.integer("Dimension", -1)
    if not shape or not -len(shape) <= axis < len(shape) or len(places) != len(results):
        raise Missing(f"it sorts along the axis {axis} of {len(shape)} dimensions")
    key, descends = _order(writer, operator)
    size = writer.add("size", np.array([shape[axis]], np.int64))
    name = writer.real(places[key])
    real = writer.computed_type(places[key])
    if real not in SORTABLE:
        name = cast(writer, name, "float32" if real == "float16" else "int64", "Key")
    # Equal elements keep their order, as in a stable sort.
    _, order = writer.nodes("TopK", [name, size], 2, "TopK", axis=axis, largest=int(descends))
    for number, (place, result) in enumerate(zip(places, results, strict=True)):
        move(writer, place, result, partial(_rearrange, writer, order, axis, f"Sort{number}"))


def _rearrange(writer: Writer, order: str, axis: int, suffix: str, name: str) -> str:
    return writer.node("GatherElements", [name, order], suffix, axis=axis)


def _order(writer: Writer, operator: TfliteOperator) -> tuple[int, bool]:
    """Return the tensor by which a sort orders the elements, and the direction.

    Returns:
        The number of the tensor among the sorted tensors, and whether the order is descending.

    Raises:
        Missing: the comparison graph is not a single comparison of two elements.
    """
    graph = writer.subgraphs.get(operator.integer("ComparatorSubgraphIndex", -1))
    if graph is not None and len(graph.operators) == 1 and len(graph.outputs) == 1:
        (only,) = graph.operators
        if only.outputs == graph.outputs and all(i in graph.inputs for i in only.inputs):
            at = [graph.inputs.index(place) for place in only.inputs]
            descends = (
                DIRECTIONS.get(only.integer("ComparisonDirection"))
                if only.kind == "STABLEHLO_COMPARE"
                else only.kind in DESCENDING
                if only.kind in ASCENDING + DESCENDING
                else None
            )
            if descends is not None and len(at) == 2 and sorted(at) == [at[0] & ~1, at[0] | 1]:
                return at[0] // 2, descends == (at[0] < at[1])
    raise Missing("its comparison graph is not a single comparison of two elements")


RULES: Mapping[str, Rule] = {
    "STABLEHLO_DYNAMIC_SLICE": _dynamic_slice,
    "STABLEHLO_DYNAMIC_UPDATE_SLICE": _dynamic_update_slice,
    "STABLEHLO_GATHER": _gather,
    "STABLEHLO_SCATTER": _scatter,
    "STABLEHLO_SORT": _sort,
}
