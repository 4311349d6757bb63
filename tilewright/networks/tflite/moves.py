"""Converts operators that move numbers and compute none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.networks.tflite.elementwise import (
    Rule,
    common_layout,
    finish,
    given,
    operand,
    output,
)
from tilewright.networks.tflite.file import Shape, TfliteOperator
from tilewright.networks.tflite.products import is_in_order
from tilewright.networks.tflite.writer import FILED, FIRST, Missing, TfliteLayout, Writer


def _move(
    writer: Writer, data: int, result: int, move: Callable[[str], str],
    read: TfliteLayout = FILED, written: TfliteLayout = FILED,
) -> None:  # fmt: skip
    """Move the integers where the result counts in the same steps, else the real numbers."""
    source, target = writer.tensors[data], writer.tensors[result]
    own = source.quantisation
    same = target.quantisation is None if own is None else own.same_as(target.quantisation)
    if same and source.dtype == target.dtype and (own is None or own.scales.size == 1):
        writer.write_stored(result, move(writer.stored(data, read)), written)
    else:
        writer.write(result, move(writer.real(data, read)), written)


def _reshape(writer: Writer, operator: TfliteOperator) -> None:
    """RESHAPE, SQUEEZE, EXPAND_DIMS: the result's shape says it all."""
    data, result = given(operator, 0), operator.outputs[0]
    own, wanted = writer.tensors[data].shape, writer.tensors[result].shape
    if math.prod(own) != math.prod(wanted):
        raise Missing(f"it makes {list(wanted)} of {list(own)}, which has other numbers")
    layout = writer.layout(data) if is_in_order(own) else FILED
    sizes = writer.add("shape", np.array(wanted, np.int64))
    _move(writer, data, result, lambda name: writer.node("Reshape", [name, sizes]), layout)


def _transpose(writer: Writer, operator: TfliteOperator) -> None:
    data, result = given(operator, 0), output(operator)
    order = writer.integers(given(operator, 1), "its order of axes")
    if sorted(order) != list(range(len(writer.tensors[data].shape))):
        raise Missing(f"its order of axes is {order}")
    _move(writer, data, result, lambda name: writer.node("Transpose", [name], perm=order))


def _pad(writer: Writer, operator: TfliteOperator) -> None:
    data, result = given(operator, 0), output(operator)
    source, rank = writer.tensors[data], len(writer.tensors[data].shape)
    ends = writer.integers(given(operator, 1), "its padding")
    amounts = np.array(ends, np.int64)[: len(ends) // 2 * 2].reshape(-1, 2)
    if len(ends) % 2 or len(amounts) != rank or (amounts < 0).any():
        raise Missing(f"it pads {len(amounts)} dimensions of {rank}")
    layout = FIRST if rank == 4 else FILED
    turned = amounts[list(FIRST.value)] if layout is FIRST else amounts
    inputs = [writer.real(data, layout), writer.add("pads", turned.T.ravel())]
    if operator.kind == "PADV2":
        filling = given(operator, 2)
        inputs.append(operand(writer, filling, FILED))
    mode = "reflect" if operator.kind == "MIRROR_PAD" else "constant"
    if operator.kind == "MIRROR_PAD" and operator.integer("Mode"):
        raise Missing("mode SYMMETRIC, which repeats the border, has no rule")
    padded = writer.node("Pad", inputs, mode=mode)
    own = source.quantisation
    exact = own is not None and own.same_as(writer.tensors[result].quantisation)
    writer.write(result, padded, layout, exact=exact and operator.kind != "PADV2")


def _concat(writer: Writer, operator: TfliteOperator) -> None:
    rank = len(writer.tensors[output(operator)].shape)
    axis = operator.integer("Axis")
    if not -rank <= axis < rank:
        raise Missing(f"it joins along the axis {axis} of {rank} dimensions")
    layout = common_layout(writer, operator)
    parts = [writer.real(given(operator, i), layout) for i in range(len(operator.inputs))]
    finish(writer, operator, writer.node("Concat", parts, axis=layout.axis(axis, rank)), layout)


def _pack(writer: Writer, operator: TfliteOperator) -> None:
    """PACK: each input with a new axis of length 1, joined along it."""
    shape, axis = writer.tensors[output(operator)].shape, operator.integer("Axis")
    if not -len(shape) <= axis < len(shape):
        raise Missing(f"it joins along the axis {axis} of {len(shape)} dimensions")
    one = [1 if i == axis % len(shape) else size for i, size in enumerate(shape)]
    sizes = writer.add("shape", np.array(one, np.int64))
    parts = [
        writer.node("Reshape", [writer.real(given(operator, i)), sizes], "Reshape")
        for i in range(len(operator.inputs))
    ]
    finish(writer, operator, writer.node("Concat", parts, axis=axis % len(shape)))


def _strided_slice(writer: Writer, operator: TfliteOperator) -> None:
    data = given(operator, 0)
    shape = writer.tensors[data].shape
    words = ("its first elements", "its last elements", "its steps")
    begins, ends, steps = (
        writer.integers(given(operator, i + 1), word) for i, word in enumerate(words)
    )
    if operator.integer("EllipsisMask") or operator.integer("NewAxisMask"):
        raise Missing("an ellipsis or a new axis in its range has no rule")
    if operator.integer("Offset"):
        raise Missing("ends that count from the first element have no rule")
    if not len(begins) == len(ends) == len(steps) <= len(shape) or 0 in steps:
        raise Missing("its ranges do not fit its data")
    for i, size in enumerate(shape[: len(begins)]):
        forward = steps[i] > 0
        if operator.integer("BeginMask") >> i & 1:
            begins[i] = 0 if forward else size - 1
        if operator.integer("EndMask") >> i & 1:
            ends[i] = size if forward else -size - 1
        if operator.integer("ShrinkAxisMask") >> i & 1:
            begins[i] += size if begins[i] < 0 else 0
            ends[i], steps[i] = begins[i] + 1, 1
    keeps_rank = not operator.integer("ShrinkAxisMask")
    _sliced(writer, operator, begins, ends, steps, keeps_rank=keeps_rank)


def _slice(writer: Writer, operator: TfliteOperator) -> None:
    shape = writer.tensors[given(operator, 0)].shape
    begins = writer.integers(given(operator, 1), "its first elements")
    sizes = writer.integers(given(operator, 2), "its size")
    if not len(begins) == len(sizes) == len(shape):
        raise Missing("its ranges do not fit its data")
    ends = [
        length if size < 0 else begin + size
        for begin, size, length in zip(begins, sizes, shape, strict=True)
    ]
    _sliced(writer, operator, begins, ends, [1] * len(ends), keeps_rank=True)


def _sliced(
    writer: Writer, operator: TfliteOperator, begins: Sequence[int], ends: Sequence[int],
    steps: Sequence[int], *, keeps_rank: bool,
) -> None:  # fmt: skip
    data, result = given(operator, 0), output(operator)
    shape = writer.tensors[data].shape
    layout = writer.layout(data) if keeps_rank and len(shape) == 4 else FILED
    axes = [layout.axis(axis, len(shape)) for axis in range(len(begins))]
    ranges = [
        writer.add(name, np.array(values, np.int64))
        for name, values in (("starts", begins), ("ends", ends), ("axes", axes), ("steps", steps))
    ]

    def move(name: str) -> str:
        part = writer.node("Slice", [name, *ranges])
        if keeps_rank:
            return part
        sizes = writer.add("shape", np.array(writer.tensors[result].shape, np.int64))
        return writer.node("Reshape", [part, sizes], "Reshape")

    _move(writer, data, result, move, layout, layout)


def _split(writer: Writer, operator: TfliteOperator) -> None:
    """SPLIT and SPLIT_V, which have the axis and the data in another order."""
    plain = operator.kind == "SPLIT"
    data, at = (given(operator, 1), 0) if plain else (given(operator, 0), 2)
    shape, parts = writer.tensors[data].shape, operator.outputs
    axes = writer.integers(given(operator, at), "its axis")
    axis = axes[0] if len(axes) == 1 else len(shape)
    if not parts or not -len(shape) <= axis < len(shape):
        raise Missing(f"it splits the axis {axis} of {len(shape)} dimensions")
    found = [writer.tensors[part].shape for part in parts]
    if any(len(part) != len(shape) for part in found):
        raise Missing("its results have other dimensions than its data")
    sizes = [part[axis] for part in found]
    source = writer.tensors[data]
    layout = writer.layout(data) if len(shape) == 4 else FILED
    own = source.quantisation
    moved = own is None or all(own.same_as(writer.tensors[p].quantisation) for p in parts)
    name = writer.stored(data, layout) if moved else writer.real(data, layout)
    results = writer.split(name, layout.axis(axis, len(shape)), sizes)
    for part, result in zip(parts, results, strict=True):
        (writer.write_stored if moved else writer.write)(part, result, layout)


def _unpack(writer: Writer, operator: TfliteOperator) -> None:
    """UNPACK: parts of length 1 along an axis, without it."""
    data = given(operator, 0)
    shape, axis = writer.tensors[data].shape, operator.integer("Axis")
    if not -len(shape) <= axis < len(shape) or shape[axis] != len(operator.outputs):
        raise Missing(f"it takes apart the axis {axis} of {len(shape)} dimensions")
    ones = [1] * len(operator.outputs)
    parts = writer.split(writer.real(data), axis % len(shape), ones)
    for place, part in zip(operator.outputs, parts, strict=True):
        sizes = writer.add("shape", np.array(writer.tensors[place].shape, np.int64))
        writer.write(place, writer.node("Reshape", [part, sizes], "Reshape"))


def reads(operator: TfliteOperator) -> Shape:
    """The places of the tensors whose numbers an operator reads: of a reshape not the one that
    says the shape, which the result has as well."""
    ignored = operator.kind in ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
    inputs = operator.inputs[:1] if ignored else operator.inputs
    return tuple(place for place in inputs if place >= 0)


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
