"""Rewrites transposed convolutions as convolutions whose channels become pixels.

With a stride of s, an output pixel reads every s-th tap of the kernel. So s pixels beside each
other are s convolutions of the same data, and run as one with s times the channels. Shapes along
one axis of length h, with m = ceil(k / s) taps each:

    (n, c, h) → Conv (n, s * o, h + m - 1) → (n, o, (h + m - 1) * s) → cut to the output

The channels of one of these convolutions lie together, and so blocks of channels stay whole. TVM's
own form multiplies by the zeros between the pixels, s times as many an axis. W. Shi et al., "Is the
deconvolution layer the same as a convolutional layer?", 2016.

Where that computes a tenth more than the output needs, pixels are told apart by what their taps
read. Each kind is a convolution with its own taps and padding. Along an axis with k = 3, s = 2 and
one pixel cut off, even pixels have one tap, odd ones two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tilewright.networks.onnx.files import is_stub, stub
from tilewright.networks.onnx.graph import STANDARD_DOMAINS, NormalGraph, Shape
from tilewright.networks.onnx.static_shapes import infer_shapes

AXES = 2
WASTED = 1.1
"""How many times the multiply-adds of pixels told apart the one convolution may have."""


@dataclass(frozen=True)
class _Kind:
    """Pixels beside each other whose taps read the same data: `taps` are the taps of each, from the
    last to the first, and −1 for a zero."""

    taps: tuple[tuple[int, ...], ...]
    pads: tuple[int, int]


@dataclass(frozen=True)
class _OutputAxis:
    """How the output along an axis is made: `length` times the pixels of all kinds in turn, of
    which `size` remain behind the first `begin`."""

    kinds: tuple[_Kind, ...]
    length: int
    begin: int
    size: int

    @property
    def stride(self) -> int:
        """Pixels of all kinds together."""
        return sum(len(kind.taps) for kind in self.kinds)

    @property
    def multiply_adds(self) -> int:
        """Of a channel."""
        return self.length * sum(len(taps) for kind in self.kinds for taps in kind.taps)


@dataclass(frozen=True)
class _Upsampling:
    """A transposed convolution of images, `channels` of output a group."""

    images: int
    groups: int
    channels: int
    rows: _OutputAxis
    columns: _OutputAxis


def as_convolutions(normal: NormalGraph) -> None:
    """Rewrite a graph in place, where weights are constants in float32 without dilation. Others
    stay."""
    if not any(node.op_type == "ConvTranspose" for node in normal.graph.node):
        return
    infer_shapes(normal)  # of sequences that became images
    shapes, types, tensors = normal.shapes(), normal.types(), normal.tensors()
    nodes: list[onnx.NodeProto] = []
    for node in normal.graph.node:
        weight = tensors.get(node.input[1]) if len(node.input) > 1 else None
        known = types.get(node.input[0]) if len(node.input) else None
        found = None
        if weight is not None and known == weight.data_type == onnx.TensorProto.FLOAT:
            found = _upsampling(node, shapes)
        bias = tensors.get(node.input[2]) if len(node.input) > AXES and node.input[2] else None
        given = len(node.input) > AXES and bool(node.input[2])
        if found is None or weight is None or (given and bias is None):
            nodes.append(node)
            continue
        nodes += _PixelWriter(normal, node, found).written(weight, bias)
    normal.replace_nodes(nodes)


def _upsampling(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> _Upsampling | None:
    """What a node computes; None where it is none of these."""
    if node.op_type != "ConvTranspose" or node.domain not in STANDARD_DOMAINS:
        return None
    data, weight = shapes.get(node.input[0], ()), shapes.get(node.input[1], ())
    if len(data) != 4 or len(weight) != 4 or data[1] != weight[0]:
        return None
    numbers = {a.name: tuple(a.ints) for a in node.attribute if a.ints}
    groups = {a.name: a.i for a in node.attribute}.get("group", 1)
    named = {a.name: a.s for a in node.attribute}.get("auto_pad", b"NOTSET") == b"NOTSET"
    ones, zeros = (1,) * AXES, (0,) * AXES
    kernel = numbers.get("kernel_shape", weight[2:])
    stride, pads = numbers.get("strides", ones), numbers.get("pads", zeros * 2)
    extra = numbers.get("output_padding", zeros)
    lengths = {len(kernel), len(stride), len(extra)} == {AXES} and len(pads) == 2 * AXES
    if not (named and lengths) or numbers.get("dilations", ones) != ones:
        return None
    if "output_shape" in numbers or kernel != weight[2:] or min(*pads, *extra, *data) < 0:
        return None
    if groups < 1 or data[1] % groups:
        return None
    sizes = [
        (h - 1) * s + k - before - after + more
        for h, s, k, before, after, more in zip(
            data[2:], stride, kernel, pads[:2], pads[2:], extra, strict=True
        )
    ]
    if min(sizes) < 1:
        return None
    rows, columns = (
        _axis(h, k, s, begin, size)
        for h, k, s, begin, size in zip(data[2:], kernel, stride, pads[:2], sizes, strict=True)
    )
    return _Upsampling(data[0], groups, weight[1], rows, columns)


def _axis(length: int, taps: int, stride: int, begin: int, size: int) -> _OutputAxis:
    """The form with the fewest multiply-adds, but for `WASTED`; of data of `length`."""
    if length == 1:  # each pixel has one tap, or none
        stride = max(stride, taps)
    whole = _in_turns(length, taps, stride, 0, begin + size)
    assert whole is not None
    apart = _in_turns(length, taps, stride, begin, size)
    one = _OutputAxis(whole.kinds, whole.length, begin, size)
    if apart is None or one.multiply_adds <= WASTED * apart.multiply_adds:
        return one
    return apart


def _in_turns(length: int, taps: int, stride: int, begin: int, size: int) -> _OutputAxis | None:
    """`size` pixels behind the first `begin`, told apart by the pixel of the data that their first
    tap reads; None where one reads none from its first tap on."""
    kinds, found = groupby(range(stride), lambda pixel: (pixel + begin) // stride), []
    for ahead, pixels in kinds:
        firsts = [(pixel + begin) % stride for pixel in pixels]
        count = max(-(-(taps - first) // stride) for first in firsts)
        found.append((ahead, firsts, max(count, 1)))
    turns = max(-(-size // stride), length - min(ahead for ahead, _, _ in found))
    if any(ahead >= count for ahead, _, count in found):
        return None
    made = tuple(
        _Kind(
            tuple(
                tuple(
                    first + stride * tap if first + stride * tap < taps else -1
                    for tap in reversed(range(count))
                )
                for first in firsts
            ),
            (count - 1 - ahead, turns + ahead - length),
        )
        for ahead, firsts, count in found
    )
    return _OutputAxis(made, turns, 0, size)


class _PixelWriter:
    """Writes the operators in place of one; its first convolution keeps its name."""

    def __init__(self, normal: NormalGraph, node: onnx.NodeProto, up: _Upsampling) -> None:
        self._normal = normal
        self._node = node
        self._up = up
        self._base = f"{node.name}/pixels"
        self._made: list[onnx.NodeProto] = []

    def written(
        self, weight: onnx.TensorProto, bias: onnx.TensorProto | None
    ) -> list[onnx.NodeProto]:
        """The last of them gives the result."""
        up = self._up
        apart = up.rows.stride * up.columns.stride > 1
        lines = []
        for row, high in enumerate(up.rows.kinds):
            parts = []
            for column, wide in enumerate(up.columns.kinds):
                held = self._convolution(f"{row}_{column}", (high, wide), weight, bias)
                if apart:
                    held = self._reshaped(held, f"apart_{row}_{column}", self._apart(high, wide))
                parts.append(held)
            lines.append(self._joined(parts, f"line_{row}", self._place + 1))
        held = self._joined(lines, "lines", self._place)
        if apart:
            held = self._add("Transpose", "beside", held, perm=self._beside)
            image = [up.images, up.groups * up.channels]
            image += [axis.length * axis.stride for axis in (up.rows, up.columns)]
            held = self._reshaped(held, "image", image)
        axes = up.rows, up.columns
        if any(axis.begin or axis.size != axis.length * axis.stride for axis in axes):
            self._add(
                "Slice", "cut", held,
                self._numbers("begins", [axis.begin for axis in axes]),
                self._numbers("ends", [axis.begin + axis.size for axis in axes]),
                self._numbers("axes", [2, 3]),
            )  # fmt: skip
        self._made[-1].output[0] = self._node.output[0]
        return self._made

    @property
    def _place(self) -> int:
        """Of the pixels along rows among the dimensions: groups are before them."""
        return 1 if self._up.groups == 1 else 2

    @property
    def _beside(self) -> list[int]:
        """(n, [g], sy, sx, o, h, w) as (n, [g], o, h, sy, w, sx)."""
        if self._up.groups == 1:
            return [0, 3, 4, 1, 5, 2]
        return [0, 1, 4, 5, 2, 6, 3]

    def _apart(self, high: _Kind, wide: _Kind) -> list[int]:
        up = self._up
        groups = [] if up.groups == 1 else [up.groups]
        pixels = [len(high.taps), len(wide.taps)]
        return [up.images, *groups, *pixels, up.channels, up.rows.length, up.columns.length]

    def _convolution(
        self, tail: str, kinds: tuple[_Kind, _Kind],
        weight: onnx.TensorProto, bias: onnx.TensorProto | None,
    ) -> str:  # fmt: skip
        """Of pixels of one kind along both axes."""
        inputs = [self._node.input[0], self._weights(f"weights_{tail}", kinds, weight)]
        if bias is not None:
            inputs.append(self._bias(f"bias_{tail}", kinds, bias))
        begins, ends = zip(*(kind.pads for kind in kinds), strict=True)
        first = not self._made
        conv = helper.make_node(
            "Conv", inputs, [f"{self._node.output[0]}/channels_{tail}"],
            name=self._node.name if first else f"{self._base}/{tail}",
            kernel_shape=[len(kind.taps[0]) for kind in kinds], pads=[*begins, *ends],
            group=self._up.groups,
        )  # fmt: skip
        if not first:
            self._normal.add_operator(conv)
        self._made.append(conv)
        return str(conv.output[0])

    def _joined(self, parts: list[str], tail: str, axis: int) -> str:
        if len(parts) == 1:
            return parts[0]
        return self._add("Concat", tail, *parts, axis=axis)

    def _reshaped(self, held: str, tail: str, shape: list[int]) -> str:
        return self._add("Reshape", tail, held, self._numbers(f"{tail}_shape", shape))

    def _add(self, kind: str, tail: str, *inputs: str, **attributes: object) -> str:
        result = f"{self._node.output[0]}/{tail}"
        extra = helper.make_node(kind, inputs, [result], name=f"{self._base}/{tail}", **attributes)
        self._normal.add_operator(extra)
        self._made.append(extra)
        return result

    def _numbers(self, tail: str, values: list[int]) -> str:
        return self._tensor(tail, np.array(values, np.int64))

    def _tensor(self, tail: str, values: NDArray[np.generic]) -> str:
        name = f"{self._base}/{tail}"
        self._normal.add_tensor(numpy_helper.from_array(values, name))
        return name

    def _weights(self, tail: str, kinds: tuple[_Kind, _Kind], weight: onnx.TensorProto) -> str:
        """(g * c, o, kh, kw) as (g * sy * sx * o, c, my, mx)."""
        up = self._up
        rows, columns = (np.array(kind.taps) for kind in kinds)
        inputs, taps = int(weight.dims[0]) // up.groups, tuple(weight.dims[2:])
        outputs = up.groups * len(rows) * len(columns) * up.channels
        shape = (outputs, inputs, rows.shape[1], columns.shape[1])
        if is_stub(weight):
            name = f"{self._base}/{tail}"
            self._normal.add_tensor(stub(name, shape, weight.data_type))
            return name
        given = numpy_helper.to_array(weight).reshape(up.groups, inputs, up.channels, *taps)
        filled = np.pad(given, ((0, 0),) * 3 + ((0, 1),) * AXES)  # tap −1
        chosen = filled[:, :, :, rows[:, :, None, None], columns]
        moved = chosen.transpose(0, 3, 5, 2, 1, 4, 6).reshape(shape)
        return self._tensor(tail, np.ascontiguousarray(moved))

    def _bias(self, tail: str, kinds: tuple[_Kind, _Kind], bias: onnx.TensorProto) -> str:
        """(g * o,) as (g * sy * sx * o,)."""
        up = self._up
        pixels = len(kinds[0].taps) * len(kinds[1].taps)
        if is_stub(bias):
            name = f"{self._base}/{tail}"
            self._normal.add_tensor(stub(name, (int(bias.dims[0]) * pixels,), bias.data_type))
            return name
        given = numpy_helper.to_array(bias).reshape(up.groups, 1, up.channels)
        return self._tensor(tail, np.tile(given, (1, pixels, 1)).reshape(-1))
