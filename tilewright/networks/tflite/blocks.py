"""Convert operators that rearrange blocks of pixels, repeat or fill tensors, or reverse axes.

The module also converts operators that write diagonals of matrices, and those that return shapes or
ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from tilewright.networks.tflite.elementwise import Rule, input_index, output
from tilewright.networks.tflite.file import TfliteOperator
from tilewright.networks.tflite.logic import write_as
from tilewright.networks.tflite.moves import move, result_sizes
from tilewright.networks.tflite.products import shape_of
from tilewright.networks.tflite.writer import FIRST, Missing, Writer, check_elements


def _depth(op: str, writer: Writer, operator: TfliteOperator) -> None:
    """Convert DEPTH_TO_SPACE or SPACE_TO_DEPTH to ONNX.

    The pixels of a block are ordered row by row along the channels.

    Args:
        op: ONNX operator type, "DepthToSpace" or "SpaceToDepth".
        writer: writer of the graph.
        operator: the operator.
    """
    data, result = input_index(operator, 0), output(operator)
    n, height, width, channels = shape_of(writer, data, 4, "its data")
    block = operator.integer("BlockSize")
    if block < 1:
        raise Missing(f"its blocks have a size of {block} pixels")
    if writer.computed_type(data) != "float32":  # onnxruntime supports few other element types
        if op == "DepthToSpace":
            split, order = (
                [n, height, width, block, block, channels // block**2],
                [0, 1, 3, 2, 4, 5],
            )
        else:
            split = [n, height // block, block, width // block, block, channels]
            order = [0, 1, 3, 2, 4, 5]
        wanted = writer.tensors[result].shape
        move(writer, data, result, lambda name: _regroup(writer, name, split, order, wanted))
        return
    moved = writer.node(op, [writer.real(data, FIRST)], blocksize=block)
    quantisation = writer.tensors[data].quantisation
    exact = quantisation is not None and quantisation.same_as(writer.tensors[result].quantisation)
    writer.write(result, moved, FIRST, exact=exact)


def _batch_blocks(
    writer: Writer, operator: TfliteOperator
) -> tuple[list[int], list[list[int]], tuple[int, ...]]:
    """Return the parameters of BATCH_TO_SPACE_ND or SPACE_TO_BATCH_ND.

    Returns:
        The size of a block along each blocked axis, the (begin, end) margins of each blocked axis,
        and the shape of the data.
    """
    shape = writer.tensors[input_index(operator, 0)].shape
    blocks = writer.integers(input_index(operator, 1), "its blocks")
    ends = writer.integers(input_index(operator, 2), "its margins")
    margins = np.array(ends, np.int64).reshape(-1, 2).tolist()
    if len(margins) != len(blocks) or len(blocks) >= len(shape) or min(blocks, default=0) < 1:
        raise Missing(f"its blocks {blocks} do not fit data of {len(shape)} dimensions")
    return blocks, margins, shape


def _space_to_batch(writer: Writer, operator: TfliteOperator) -> None:
    blocks, margins, shape = _batch_blocks(writer, operator)
    data, result, count = input_index(operator, 0), output(operator), len(blocks)
    pads = np.zeros((2, len(shape)), np.int64)
    pads[:, 1 : count + 1] = np.array(margins).T
    name = writer.real(data)
    if pads.any():
        name = writer.node("Pad", [name, writer.add("pads", pads.ravel())], "Pad")
    sizes = [size + sum(margin) for size, margin in zip(shape[1:], margins, strict=False)]
    if any(size % block for size, block in zip(sizes, blocks, strict=True)):
        raise Missing(f"images of size {sizes} are not a multiple of its blocks {blocks}")
    split = [n for size, block in zip(sizes, blocks, strict=True) for n in (size // block, block)]
    inner = list(range(2, 2 * count + 1, 2))
    order = [*inner, 0, *range(1, 2 * count, 2), *range(2 * count + 1, len(shape) + count)]
    grouped = [shape[0], *split, *shape[count + 1 :]]
    name = _regroup(writer, name, grouped, order, writer.tensors[result].shape)
    quantisation = writer.tensors[data].quantisation
    exact = quantisation is not None and quantisation.same_as(writer.tensors[result].quantisation)
    writer.write(result, name, exact=exact)


def _batch_to_space(writer: Writer, operator: TfliteOperator) -> None:
    blocks, margins, shape = _batch_blocks(writer, operator)
    data, result, count = input_index(operator, 0), output(operator), len(blocks)
    block_elements = math.prod(blocks)
    if shape[0] % block_elements:
        raise Missing(f"{shape[0]} images are not a multiple of its blocks {blocks}")
    grouped = [*blocks, shape[0] // block_elements, *shape[1:]]
    order = [count]
    for axis in range(count):
        order += [count + 1 + axis, axis]
    order += range(2 * count + 1, len(shape) + count)
    wide = [shape[0] // block_elements, *(a * b for a, b in zip(shape[1:], blocks, strict=False))]
    wide += shape[count + 1 :]
    starts = [begin for begin, _ in margins]
    ends = [size - end for size, (_, end) in zip(wide[1:], margins, strict=False)]
    ranges = [
        writer.add(name, np.array(values, np.int64))
        for name, values in (("starts", starts), ("ends", ends), ("axes", range(1, count + 1)))
    ]

    def cropped(name: str) -> str:
        spread = _regroup(writer, name, grouped, order, wide)
        return writer.node("Slice", [spread, *ranges])

    move(writer, data, result, cropped)


def _regroup(
    writer: Writer, name: str, shape: Sequence[int], order: Sequence[int], wanted: Sequence[int]
) -> str:
    """Reshape a tensor, permute its axes and reshape it again; return the name of the result.

    Args:
        writer: writer of the graph.
        name: name of the tensor.
        shape: shape after the first Reshape.
        order: permutation of the axes.
        wanted: shape of the result.
    """
    sizes = writer.add("shape", np.array(shape, np.int64))
    split = writer.node("Reshape", [name, sizes], "Split")
    turned = writer.node("Transpose", [split], "Transpose", perm=list(order))
    final = writer.add("shape", np.array(wanted, np.int64))
    return writer.node("Reshape", [turned, final], "Join")


def _tile(writer: Writer, operator: TfliteOperator) -> None:
    counts = writer.add(
        "repeats", np.array(writer.integers(input_index(operator, 1), "its repeats"), np.int64)
    )
    move(
        writer, input_index(operator, 0), output(operator),
        lambda name: writer.node("Tile", [name, counts]),
    )  # fmt: skip


def _broadcast_to(writer: Writer, operator: TfliteOperator) -> None:
    result = output(operator)
    sizes = result_sizes(writer, result, input_index(operator, 1))
    move(
        writer, input_index(operator, 0), result, lambda name: writer.node("Expand", [name, sizes])
    )


def _fill(writer: Writer, operator: TfliteOperator) -> None:
    result = output(operator)
    sizes = result_sizes(writer, result, input_index(operator, 0))
    move(
        writer, input_index(operator, 1), result, lambda name: writer.node("Expand", [name, sizes])
    )


def _reverse(writer: Writer, operator: TfliteOperator) -> None:
    data = input_index(operator, 0)
    rank = len(writer.tensors[data].shape)
    axes = writer.integers(input_index(operator, 1), "its axes")
    if any(not -rank <= axis < rank for axis in axes):
        raise Missing(f"it reverses the axes {axes} of {rank} dimensions")
    least = np.iinfo(np.int64).min
    ranges = [
        writer.add(name, np.full(len(axes), value, np.int64))
        for name, value in (("starts", -1), ("ends", least))
    ]
    ranges += [
        writer.add("axes", np.array(axes, np.int64)),
        writer.add("steps", np.full(len(axes), -1, np.int64)),
    ]
    move(writer, data, output(operator), lambda name: writer.node("Slice", [name, *ranges]))


def _reverse_sequence(writer: Writer, operator: TfliteOperator) -> None:
    """Convert REVERSE_SEQUENCE to ONNX.

    ONNX requires that time and batch are the first two axes. The axes are therefore permuted before
    the operator and permuted back after it.
    """
    data, lengths = input_index(operator, 0), input_index(operator, 1)
    rank = len(writer.tensors[data].shape)
    time, batch = operator.integer("SeqDim"), operator.integer("BatchDim")
    if time == batch or not (0 <= time < rank and 0 <= batch < rank):
        raise Missing(f"it reverses the axis {time} by the lengths of the axis {batch}")
    order = [time, batch, *(axis for axis in range(rank) if axis not in (time, batch))]
    back = list(np.argsort(order))
    known = writer.stored_name(lengths)
    if writer.tensors[lengths].dtype != "int64":
        known = writer.node("Cast", [known], "Lengths", to=7)

    def reverse(name: str) -> str:
        first = writer.node("Transpose", [name], "First", perm=order)
        turned = writer.node(
            "ReverseSequence", [first, known], "Reverse", time_axis=0, batch_axis=1
        )
        return writer.node("Transpose", [turned], perm=[int(axis) for axis in back])

    move(writer, data, output(operator), reverse)


def _diagonal(writer: Writer, operator: TfliteOperator) -> None:
    """Convert MATRIX_DIAG or MATRIX_SET_DIAG, which write the diagonal of matrices."""
    sets = operator.kind == "MATRIX_SET_DIAG"
    result = output(operator)
    shape = writer.tensors[result].shape
    diagonal = input_index(operator, 1 if sets else 0)
    rows = writer.tensors[diagonal].shape
    if len(shape) < 2 or not rows:
        raise Missing(f"its result has the shape {list(shape)}, but its diagonal {list(rows)}")
    sizes = writer.add("shape", np.array([*rows, 1], np.int64))
    column = writer.node("Reshape", [writer.real(diagonal), sizes], "Column")
    if shape[-2] > rows[-1]:  # more rows than the diagonal has numbers
        pads = np.zeros((2, len(rows) + 1), np.int64)
        pads[1, -2] = shape[-2] - rows[-1]
        column = writer.node("Pad", [column, writer.add("pads", pads.ravel())], "Pad")
    check_elements(shape[-2] * shape[-1])
    eye = writer.add("eye", np.eye(shape[-2], shape[-1], dtype=bool))
    if sets:
        rest = writer.real(input_index(operator, 0))
    else:
        rest = writer.add("zero", np.zeros((), writer.computed_type(result)))
    writer.write(result, writer.node("Where", [eye, column, rest]))


def _shape(writer: Writer, operator: TfliteOperator) -> None:
    """Convert SHAPE or RANK to ONNX.

    The result is a constant, unless the shape depends on values of tensors.
    """
    data, result = input_index(operator, 0), output(operator)
    shape = writer.tensors[data].shape
    if operator.kind == "SHAPE" and writer.is_open(data):
        write_as(writer, result, writer.node("Shape", [writer.stored_name(data)], "Shape"), "int64")
        return
    values = np.array(shape if operator.kind == "SHAPE" else len(shape))
    writer.fold(result, values.astype(writer.tensors[result].dtype))


def _zeros_like(writer: Writer, operator: TfliteOperator) -> None:
    result = output(operator)
    target = writer.tensors[result]
    zero = 0 if target.quantisation is None else target.quantisation.zero_points[0]
    check_elements(math.prod(target.shape))
    writer.fold(result, np.full(target.shape, zero, target.dtype))


def _range(writer: Writer, operator: TfliteOperator) -> None:
    result = output(operator)
    dtype = writer.tensors[result].dtype
    arguments = [input_index(operator, i) for i in range(3)]
    if all(map(writer.is_constant, arguments)):
        begin, end, step = (writer.constant(argument, "its range").item() for argument in arguments)
        values = np.arange(begin, end, step).astype(dtype)
        if values.shape == writer.tensors[result].shape:
            writer.fold(result, values)
            return
    write_as(writer, result, writer.node("Range", [writer.real(p) for p in arguments]), dtype)


RULES: Mapping[str, Rule] = {
    "DEPTH_TO_SPACE": partial(_depth, "DepthToSpace"),
    "SPACE_TO_DEPTH": partial(_depth, "SpaceToDepth"),
    "SPACE_TO_BATCH_ND": _space_to_batch,
    "BATCH_TO_SPACE_ND": _batch_to_space,
    "TILE": _tile,
    "BROADCAST_TO": _broadcast_to,
    "FILL": _fill,
    "REVERSE_V2": _reverse,
    "REVERSE_SEQUENCE": _reverse_sequence,
    "MATRIX_DIAG": _diagonal,
    "MATRIX_SET_DIAG": _diagonal,
    "SHAPE": _shape,
    "RANK": _shape,
    "ZEROS_LIKE": _zeros_like,
    "RANGE": _range,
}
"""Conversion rule of each operator of this module, by its name in the schema."""
