"""Convert operators that only move elements, such as reshape, transpose, pad, slice and split."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.networks.tflite.elementwise import (
    Rule,
    common_layout,
    finish,
    input_index,
    operand,
    output,
)
from tilewright.networks.tflite.file import Shape, TfliteOperator
from tilewright.networks.tflite.products import is_in_order
from tilewright.networks.tflite.writer import FILED, FIRST, Missing, TfliteLayout, Writer

FURTHEST = np.iinfo(np.int32).max
"""End of a slice that lies after the last element of every axis. The negative number lies before
the first element of every axis."""


def move(
    writer: Writer, data: int, result: int, add: Callable[[str], str],
    read: TfliteLayout = FILED, written: TfliteLayout = FILED,
) -> None:  # fmt: skip
    """Add operators that move elements of a tensor, and write the result.

    If the data and the result have the same quantisation, the stored integers are moved. Otherwise,
    the dequantised values are moved.

    Args:
        writer: writer of the graph.
        data: tensor index of the data.
        result: tensor index of the result.
        add: function that adds the operators. It gets the name of the tensor that they read, and
            returns the name of their result.
        read: layout in which the data are read.
        written: layout of the result.
    """
    source, target = writer.tensors[data], writer.tensors[result]
    quantisation = source.quantisation
    same = (
        target.quantisation is None
        if quantisation is None
        else quantisation.same_as(target.quantisation)
    )
    if (
        same
        and source.dtype == target.dtype
        and (quantisation is None or quantisation.scales.size == 1)
    ):
        writer.write_stored(result, add(writer.stored_name(data, read)), written)
    else:
        writer.write(result, add(writer.real(data, read)), written)


def result_sizes(writer: Writer, result: int, sizes: int) -> str:
    """Return the name of an int64 tensor that contains the shape of a result.

    The tensor is a constant if the shape is known at conversion time. Otherwise, it is the
    operator's own shape input.

    Args:
        writer: writer of the graph.
        result: tensor index of the result.
        sizes: tensor index of the shape input.

    Raises:
        Missing: the shape is not known at conversion time, and another branch computes it.
    """
    if not writer.is_open(result):
        return writer.add("shape", np.array(writer.tensors[result].shape, np.int64))
    if writer.is_constant(sizes):
        return writer.add("shape", writer.constant(sizes, "its shape").astype(np.int64).ravel())
    if not writer.is_known(sizes):  # the size depends on the branch that is taken
        raise Missing("its shape is computed inside of a branch")
    return writer.node("Cast", [writer.stored_name(sizes)], "Shape", to=7)  # to int64


def _reshape_open(writer: Writer, operator: TfliteOperator) -> None:
    """Convert RESHAPE, SQUEEZE or EXPAND_DIMS of data whose size depends on values of tensors."""
    data, result = input_index(operator, 0), operator.outputs[0]
    rank = len(writer.tensors[data].shape)
    if operator.kind == "RESHAPE":
        if len(operator.inputs) > 1:
            sizes = result_sizes(writer, result, input_index(operator, 1))
        else:
            wanted = operator.options.get("NewShape", ())
            sizes = writer.add("shape", np.array(wanted, np.int64))
        move(writer, data, result, lambda name: writer.node("Reshape", [name, sizes]))
        return
    if operator.kind == "EXPAND_DIMS":
        op, axes = "Unsqueeze", writer.integers(input_index(operator, 1), "its axis")
    else:
        op, dims = "Squeeze", operator.options.get("SqueezeDims", ())
        axes = list(dims) if isinstance(dims, tuple) else []
        if not axes:
            raise Missing(
                f"it may remove any of {rank} dimensions whose sizes depend on values of tensors"
            )
    places = writer.add("axes", np.array(axes, np.int64))
    move(writer, data, result, lambda name: writer.node(op, [name, places]))


def _reshape(writer: Writer, operator: TfliteOperator) -> None:
    """Convert RESHAPE, SQUEEZE or EXPAND_DIMS to a Reshape to the result's shape."""
    data, result = input_index(operator, 0), operator.outputs[0]
    if writer.is_open(data) or writer.is_open(result):
        _reshape_open(writer, operator)
        return
    data_shape, wanted = writer.tensors[data].shape, writer.tensors[result].shape
    if math.prod(data_shape) != math.prod(wanted):
        raise Missing(
            f"it reshapes {list(data_shape)} to {list(wanted)}, which has another number of "
            "elements"
        )
    layout = writer.layout(data) if is_in_order(data_shape) else FILED
    sizes = writer.add("shape", np.array(wanted, np.int64))
    move(writer, data, result, lambda name: writer.node("Reshape", [name, sizes]), layout)


def _transpose(writer: Writer, operator: TfliteOperator) -> None:
    data, result = input_index(operator, 0), output(operator)
    order = writer.integers(input_index(operator, 1), "its order of axes")
    if sorted(order) != list(range(len(writer.tensors[data].shape))):
        raise Missing(f"its order of axes is {order}")
    move(writer, data, result, lambda name: writer.node("Transpose", [name], perm=order))


def _pad(writer: Writer, operator: TfliteOperator) -> None:
    data, result = input_index(operator, 0), output(operator)
    source, rank = writer.tensors[data], len(writer.tensors[data].shape)
    ends = writer.integers(input_index(operator, 1), "its padding")
    amounts = np.array(ends, np.int64)[: len(ends) // 2 * 2].reshape(-1, 2)
    if len(ends) % 2 or len(amounts) != rank or (amounts < 0).any():
        raise Missing(f"it pads {len(amounts)} of {rank} dimensions")
    layout = FIRST if rank == 4 else FILED
    turned = amounts[list(FIRST.value)] if layout is FIRST else amounts
    inputs = [writer.real(data, layout), writer.add("pads", turned.T.ravel())]
    if operator.kind == "PADV2":
        filling = input_index(operator, 2)
        inputs.append(operand(writer, filling, FILED))
    mode = "reflect" if operator.kind == "MIRROR_PAD" else "constant"
    if operator.kind == "MIRROR_PAD" and operator.integer("Mode"):
        _pad_symmetrically(writer, operator, amounts)
        return
    padded = writer.node("Pad", inputs, mode=mode)
    quantisation = source.quantisation
    exact = quantisation is not None and quantisation.same_as(writer.tensors[result].quantisation)
    writer.write(result, padded, layout, exact=exact and operator.kind != "PADV2")


def _pad_symmetrically(
    writer: Writer, operator: TfliteOperator, amounts: NDArray[np.int64]
) -> None:
    """Convert a MIRROR_PAD in symmetric mode, which also repeats the border elements themselves.

    ONNX's Pad has no such mode, so the elements are gathered along each axis.

    Args:
        writer: writer of the graph.
        operator: the operator.
        amounts: number of elements to add before and after each axis, of shape (axes, 2).
    """
    data = input_index(operator, 0)
    shape = writer.tensors[data].shape
    padded = [axis for axis in range(len(shape)) if amounts[axis].any()]
    if any(amounts[axis].max() > shape[axis] for axis in padded):
        raise Missing(f"it mirrors more elements than the shape {list(shape)} has")

    def mirror(name: str) -> str:
        for axis in padded:
            rows = np.pad(np.arange(shape[axis], dtype=np.int64), amounts[axis], "symmetric")
            places = writer.add("rows", rows)
            suffix = "" if axis == padded[-1] else f"axis{axis}"
            name = writer.node("Gather", [name, places], suffix, axis=axis)
        return name if padded else writer.node("Identity", [name])

    move(writer, data, output(operator), mirror)


def _concat(writer: Writer, operator: TfliteOperator) -> None:
    rank = len(writer.tensors[output(operator)].shape)
    axis = operator.integer("Axis")
    if not -rank <= axis < rank:
        raise Missing(f"it joins along the axis {axis} of {rank} dimensions")
    layout = common_layout(writer, operator)
    parts = [writer.real(input_index(operator, i), layout) for i in range(len(operator.inputs))]
    finish(writer, operator, writer.node("Concat", parts, axis=layout.axis(axis, rank)), layout)


def _pack(writer: Writer, operator: TfliteOperator) -> None:
    """Convert PACK: add an axis of length 1 to each input, and concatenate along the axis."""
    shape, axis = writer.tensors[output(operator)].shape, operator.integer("Axis")
    if not -len(shape) <= axis < len(shape):
        raise Missing(f"it joins along the axis {axis} of {len(shape)} dimensions")
    one = [1 if i == axis % len(shape) else size for i, size in enumerate(shape)]
    op, numbers = "Reshape", one
    if writer.is_open(output(operator)):
        op, numbers = "Unsqueeze", [axis % len(shape)]
    sizes = writer.add("shape", np.array(numbers, np.int64))
    parts = [
        writer.node(op, [writer.real(input_index(operator, i)), sizes], op)
        for i in range(len(operator.inputs))
    ]
    finish(writer, operator, writer.node("Concat", parts, axis=axis % len(shape)))


def _strided_slice(writer: Writer, operator: TfliteOperator) -> None:
    data = input_index(operator, 0)
    shape = writer.tensors[data].shape
    words = ("its first elements", "its last elements", "its steps")
    begins, ends, steps = (
        writer.integers(input_index(operator, i + 1), word) for i, word in enumerate(words)
    )
    if not len(begins) == len(ends) == len(steps) or 0 in steps:
        raise Missing("its ranges do not fit its data")
    masks = {
        name: operator.integer(f"{name}Mask")
        for name in ("Ellipsis", "NewAxis", "Begin", "End", "ShrinkAxis")
    }
    places = _axes_of_ranges(len(shape), len(begins), masks["Ellipsis"], masks["NewAxis"])
    kept: list[tuple[int, int, int]] = []
    axes, shrunk = [], []
    for i, axis in places:
        size, step = FURTHEST if writer.is_open(data) else shape[axis], steps[i]
        begin, end = begins[i], ends[i]
        if operator.integer("Offset"):
            end += begin  # `end` is relative to `begin`
        if masks["Begin"] >> i & 1:
            begin = 0 if step > 0 else size - 1
        if masks["End"] >> i & 1:
            end = size if step > 0 else -size - 1
        if masks["ShrinkAxis"] >> i & 1:
            begin += size if begin < 0 and not writer.is_open(data) else 0
            end, step = begin + 1 or FURTHEST, 1  # after index -1, the end would be 0
            shrunk.append(axis)
        kept.append((begin, end, step))
        axes.append(axis)
    keeps_rank = not masks["ShrinkAxis"] and not masks["NewAxis"]
    begins, ends, steps = ([bounds[k] for bounds in kept] for k in range(3))
    if writer.is_open(data) and not keeps_rank and masks["NewAxis"]:
        raise Missing("it adds an axis to data whose size depends on values of tensors")
    _write_slice(
        writer, operator, begins, ends, steps, axes, shrunk=shrunk if not keeps_rank else None
    )


def _axes_of_ranges(rank: int, count: int, ellipsis: int, new_axes: int) -> list[tuple[int, int]]:
    """Return the data axis to which each range of a strided slice applies.

    Ranges after an ellipsis count from the last axis. A range that adds a new axis is left out.

    Args:
        rank: number of axes of the data.
        count: number of ranges.
        ellipsis: bit mask of the range that is an ellipsis.
        new_axes: bit mask of the ranges that add a new axis.

    Returns:
        List of (index of the range, data axis).

    Raises:
        Missing: there are more ranges than axes.
    """
    is_new = [bool(new_axes >> i & 1) and not ellipsis >> i & 1 for i in range(count)]
    where = next((i for i in range(count) if ellipsis >> i & 1), count)
    ranges = [i for i in range(count) if i != where and not is_new[i]]
    if len(ranges) > rank:
        raise Missing("its ranges do not fit its data")
    behind = sum(i > where for i in ranges)
    return [
        (i, place if i < where else rank - behind + (place - (len(ranges) - behind)))
        for place, i in enumerate(ranges)
    ]


def _slice(writer: Writer, operator: TfliteOperator) -> None:
    data = input_index(operator, 0)
    shape, is_open = writer.tensors[data].shape, writer.is_open(data)
    begins = writer.integers(input_index(operator, 1), "its first elements")
    sizes = writer.integers(input_index(operator, 2), "its size")
    if not len(begins) == len(sizes) == len(shape):
        raise Missing("its ranges do not fit its data")
    ends = [
        begin + size if size >= 0 else FURTHEST if is_open else length
        for begin, size, length in zip(begins, sizes, shape, strict=True)
    ]
    axes = list(range(len(ends)))
    _write_slice(writer, operator, begins, ends, [1] * len(ends), axes)


def _write_slice(
    writer: Writer, operator: TfliteOperator, begins: Sequence[int], ends: Sequence[int],
    steps: Sequence[int], sliced: Sequence[int], *, shrunk: Sequence[int] | None = None,
) -> None:  # fmt: skip
    """Add a Slice of an operator's data, and write the result.

    Args:
        writer: writer of the graph.
        operator: the operator.
        begins: first index along each sliced axis.
        ends: end index along each sliced axis.
        steps: step along each sliced axis.
        sliced: the sliced axes.
        shrunk: axes of length 1 that are removed after slicing. Pass a list, even an empty one, if
            the result may have other axes than the data.
    """
    data, result = input_index(operator, 0), output(operator)
    shape, keeps_rank = writer.tensors[data].shape, shrunk is None
    layout = writer.layout(data) if keeps_rank and len(shape) == 4 else FILED
    axes = [layout.axis(axis, len(shape)) for axis in sliced]
    ranges = [
        writer.add(name, np.array(values, np.int64))
        for name, values in (("starts", begins), ("ends", ends), ("axes", axes), ("steps", steps))
    ]

    def part_of(name: str) -> str:
        part = writer.node("Slice", [name, *ranges])
        if shrunk is None:
            return part
        if writer.is_open(result):
            removed = writer.add("axes", np.array(shrunk, np.int64))
            return writer.node("Squeeze", [part, removed], "Squeeze")
        sizes = writer.add("shape", np.array(writer.tensors[result].shape, np.int64))
        return writer.node("Reshape", [part, sizes], "Reshape")

    move(writer, data, result, part_of, layout, layout)


def _split(writer: Writer, operator: TfliteOperator) -> None:
    """Convert SPLIT or SPLIT_V, which have their axis and data inputs in different orders."""
    plain = operator.kind == "SPLIT"
    data, at = (input_index(operator, 1), 0) if plain else (input_index(operator, 0), 2)
    shape, parts = writer.tensors[data].shape, operator.outputs
    axes = writer.integers(input_index(operator, at), "its axis")
    axis = axes[0] if len(axes) == 1 else len(shape)
    if not parts or not -len(shape) <= axis < len(shape):
        raise Missing(f"it splits the axis {axis} of {len(shape)} dimensions")
    part_shapes = [writer.tensors[part].shape for part in parts]
    if any(len(part) != len(shape) for part in part_shapes):
        raise Missing("its results have other dimensions than its data")
    sizes = [part[axis] for part in part_shapes]
    source = writer.tensors[data]
    layout = writer.layout(data) if len(shape) == 4 else FILED
    quantisation = source.quantisation
    moved = quantisation is None or all(
        quantisation.same_as(writer.tensors[p].quantisation) for p in parts
    )
    name = writer.stored_name(data, layout) if moved else writer.real(data, layout)
    results = writer.split(name, layout.axis(axis, len(shape)), sizes)
    for part, result in zip(parts, results, strict=True):
        (writer.write_stored if moved else writer.write)(part, result, layout)


def _unpack(writer: Writer, operator: TfliteOperator) -> None:
    """Convert UNPACK: split an axis into parts of length 1, and remove the axis from the parts."""
    data = input_index(operator, 0)
    shape, axis = writer.tensors[data].shape, operator.integer("Axis")
    if not -len(shape) <= axis < len(shape) or shape[axis] != len(operator.outputs):
        raise Missing(f"it splits the axis {axis} of {len(shape)} dimensions")
    ones = [1] * len(operator.outputs)
    parts = writer.split(writer.real(data), axis % len(shape), ones)
    for place, part in zip(operator.outputs, parts, strict=True):
        sizes = writer.add("shape", np.array(writer.tensors[place].shape, np.int64))
        writer.write(place, writer.node("Reshape", [part, sizes], "Reshape"))


def tensors_read(operator: TfliteOperator) -> Shape:
    """Return the indices of the tensors whose values an operator reads.

    Inputs that only state the shape of the result are left out, because the shape is known at
    conversion time.
    """
    first, last = READ.get(operator.kind, (0, None))
    return tuple(place for place in operator.inputs[first:last] if place >= 0)


READ: Mapping[str, tuple[int, int | None]] = {
    **dict.fromkeys(
        (
            "RESHAPE",
            "SQUEEZE",
            "EXPAND_DIMS",
            "BROADCAST_TO",
            "RESIZE_BILINEAR",
            "RESIZE_NEAREST_NEIGHBOR",
            "STABLEHLO_RESHAPE",
        ),
        (0, 1),
    ),
    **dict.fromkeys(("SHAPE", "RANK", "ZEROS_LIKE"), (0, 0)),
    "FILL": (1, 2),
    "SCATTER_ND": (0, 2),
    "TRANSPOSE_CONV": (1, None),
    "CONV_3D_TRANSPOSE": (1, None),
}
"""Range of the inputs whose values an operator reads, by the kind of operator: index of the first
input, and index after the last input (None for all further inputs)."""


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS"), _reshape),
    "TRANSPOSE": _transpose,
    **dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD"), _pad),
    "CONCATENATION": _concat,
    "PACK": _pack,
    "UNPACK": _unpack,
    "STRIDED_SLICE": _strided_slice,
    "SLICE": _slice,
    "SPLIT": _split,
    "SPLIT_V": _split,
}
"""Conversion rule of each operator of this module, by its name in the schema."""
