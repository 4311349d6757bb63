"""Rewrite transposed convolutions as convolutions whose output channels become pixels.

With a stride of s, an output pixel reads every s-th element (tap) of the kernel. A group of s
neighbouring pixels is therefore the result of s convolutions of the same data, which run as one
convolution with s times as many output channels. Along one axis of length h, with m = ceil(k / s)
taps per pixel, the shapes are:

    (n, c, h) → Conv (n, s * o, h + m - 1) → (n, o, (h + m - 1) * s) → cut to the output

The channels of each of the s convolutions are contiguous, so that blocks of channels are not split.
TVM's own form multiplies by the zeros between the pixels, which is s times the work per axis. See
W. Shi et al., "Is the deconvolution layer the same as a convolutional layer?", 2016.

This form may compute pixels that are cut off afterwards. If they cost more than 10 %, the pixels
are instead divided into kinds by the data that their first tap reads, and each kind gets a
convolution with its own taps and padding. For example, along an axis with k = 3, s = 2 and one
pixel cut off, even pixels have one tap and odd pixels have two.
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
"""Number of spatial axes of an image."""
WASTED = 1.1
"""Maximum ratio of multiply-adds at which a single convolution for all output pixels is preferred
to one convolution per kind of pixel. Pixels are of the same kind if their first kernel position
reads the same input element."""


@dataclass(frozen=True)
class _Kind:
    """Neighbouring output pixels of a transposed convolution whose taps read the same data.

    A tap is an element of the kernel that contributes to a pixel. One convolution computes all
    pixels of a kind.

    Attributes:
        taps: kernel indices of the taps of each pixel, from the last to the first; −1 stands for a
            zero.
        pads: padding of the data before and after.
    """

    taps: tuple[tuple[int, ...], ...]
    pads: tuple[int, int]


@dataclass(frozen=True)
class _OutputAxis:
    """Composition of the output of a transposed convolution along one axis.

    The output consists of groups of `stride` neighbouring pixels. A group contains pixels of all
    kinds (see `_Kind`).

    Attributes:
        kinds: the kinds of pixels, in the order in which they occur in a group.
        length: number of groups.
        begin: number of pixels that are cut off at the beginning.
        size: number of pixels that remain.
    """

    kinds: tuple[_Kind, ...]
    length: int
    begin: int
    size: int

    @property
    def stride(self) -> int:
        """Number of pixels per group."""
        return sum(len(kind.taps) for kind in self.kinds)

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds along this axis, per channel."""
        return self.length * sum(len(taps) for kind in self.kinds for taps in kind.taps)


@dataclass(frozen=True)
class _Upsampling:
    """Parameters of a transposed convolution of images.

    Attributes:
        images: batch size.
        groups: number of groups.
        channels: output channels per group.
        rows: composition of the output along its height.
        columns: composition of the output along its width.
    """

    images: int
    groups: int
    channels: int
    rows: _OutputAxis
    columns: _OutputAxis


def as_convolutions(normal: NormalGraph) -> None:
    """Rewrite transposed convolutions in a graph as convolutions, in place.

    This applies to float32 convolutions of images with constant weights and without dilation. All
    others are kept.
    """
    if not any(node.op_type == "ConvTranspose" for node in normal.graph.node):
        return
    infer_shapes(normal)  # shapes of sequences that were converted to images
    shapes, types, tensors = normal.shapes(), normal.types(), normal.tensors()
    nodes: list[onnx.NodeProto] = []
    for node in normal.graph.node:
        weight = tensors.get(node.input[1]) if len(node.input) > 1 else None
        known = types.get(node.input[0]) if len(node.input) else None
        upsampling = None
        if weight is not None and known == weight.data_type == onnx.TensorProto.FLOAT:
            upsampling = _upsampling(node, shapes)
        bias = tensors.get(node.input[2]) if len(node.input) > AXES and node.input[2] else None
        has_bias = len(node.input) > AXES and bool(node.input[2])
        if upsampling is None or weight is None or (has_bias and bias is None):
            nodes.append(node)
            continue
        nodes += _PixelWriter(normal, node, upsampling).write_nodes(weight, bias)
    normal.replace_nodes(nodes)


def _upsampling(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> _Upsampling | None:
    """Read the parameters of a transposed convolution of images.

    Args:
        node: the transposed convolution.
        shapes: known shapes by tensor name.

    Returns:
        The parameters, or None if its form is not supported.
    """
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
    # `normalise` has replaced `output_shape` and `auto_pad` by `pads` where their meaning is clear.
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
    """Choose how the output pixels along an axis are computed: by one convolution or by several.

    A single convolution for all pixels is preferred to one convolution per kind of pixel if it
    needs at most `WASTED` times as many multiply-adds.

    Args:
        length: length of the input along the axis.
        taps: length of the kernel.
        stride: the stride.
        begin: number of pixels that are cut off at the beginning.
        size: length of the output.

    Returns:
        The composition of the output axis.
    """
    if length == 1:  # each output pixel reads at most one tap
        stride = max(stride, taps)
    whole = _in_turns(length, taps, stride, 0, begin + size)
    assert whole is not None
    apart = _in_turns(length, taps, stride, begin, size)
    one = _OutputAxis(whole.kinds, whole.length, begin, size)
    if apart is None or one.multiply_adds <= WASTED * apart.multiply_adds:
        return one
    return apart


def _in_turns(length: int, taps: int, stride: int, begin: int, size: int) -> _OutputAxis | None:
    """Divide the output pixels along an axis into kinds, each with its own convolution.

    Pixels are of the same kind if their first tap reads the same data element. The kinds alternate
    along the axis.

    Args:
        length: length of the input along the axis.
        taps: length of the kernel.
        stride: the stride.
        begin: number of pixels that are cut off at the beginning.
        size: length of the output.

    Returns:
        The composition of the axis, or None if a kind would need negative padding.
    """
    kinds, groups = groupby(range(stride), lambda pixel: (pixel + begin) // stride), []
    for ahead, pixels in kinds:
        firsts = [(pixel + begin) % stride for pixel in pixels]
        count = max(-(-(taps - first) // stride) for first in firsts)
        groups.append((ahead, firsts, max(count, 1)))
    turns = max(-(-size // stride), length - min(ahead for ahead, _, _ in groups))
    if any(ahead >= count for ahead, _, count in groups):
        return None
    pixel_kinds = tuple(
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
        for ahead, firsts, count in groups
    )
    return _OutputAxis(pixel_kinds, turns, 0, size)


class _PixelWriter:
    """Writes the operators that replace a transposed convolution. The first one keeps its name.

    Args:
        normal: the graph.
        node: the transposed convolution.
        up: its parameters.
    """

    def __init__(self, normal: NormalGraph, node: onnx.NodeProto, up: _Upsampling) -> None:
        self._normal = normal
        self._node = node
        self._up = up
        self._base = f"{node.name}/pixels"
        self._made: list[onnx.NodeProto] = []

    def write_nodes(
        self, weight: onnx.TensorProto, bias: onnx.TensorProto | None
    ) -> list[onnx.NodeProto]:
        """Return the operators that replace the transposed convolution, in execution order.

        Args:
            weight: weights of the transposed convolution, (g · c, o, kh, kw).
            bias: its bias, or None.
        """
        up = self._up
        has_several_pixels = up.rows.stride * up.columns.stride > 1
        lines = []
        for row, high in enumerate(up.rows.kinds):
            parts = []
            for column, wide in enumerate(up.columns.kinds):
                tensor = self._convolution(f"{row}_{column}", (high, wide), weight, bias)
                if has_several_pixels:
                    tensor = self._write_reshape(
                        tensor, f"apart_{row}_{column}", self._apart(high, wide)
                    )
                parts.append(tensor)
            lines.append(self._write_concat(parts, f"line_{row}", self._place + 1))
        tensor = self._write_concat(lines, "lines", self._place)
        if has_several_pixels:
            tensor = self._add("Transpose", "beside", tensor, perm=self._interleaved_order)
            image = [up.images, up.groups * up.channels]
            image += [axis.length * axis.stride for axis in (up.rows, up.columns)]
            tensor = self._write_reshape(tensor, "image", image)
        axes = up.rows, up.columns
        if any(axis.begin or axis.size != axis.length * axis.stride for axis in axes):
            self._add(
                "Slice", "cut", tensor,
                self._numbers("begins", [axis.begin for axis in axes]),
                self._numbers("ends", [axis.begin + axis.size for axis in axes]),
                self._numbers("axes", [2, 3]),
            )  # fmt: skip
        self._made[-1].output[0] = self._node.output[0]
        return self._made

    @property
    def _place(self) -> int:
        """Index of the dimension for the pixels of a row; a group dimension may precede it."""
        return 1 if self._up.groups == 1 else 2

    @property
    def _interleaved_order(self) -> list[int]:
        """Permutation from (n, [g], sy, sx, o, h, w) to (n, [g], o, h, sy, w, sx)."""
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
        """Append a convolution that computes some of the output pixels.

        Args:
            tail: suffix of the names of new operators and tensors.
            kinds: the kind of pixels along the height, and the kind along the width.
            weight: weights of the transposed convolution.
            bias: its bias, or None.

        Returns:
            The name of the convolution's result.
        """
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

    def _write_concat(self, parts: list[str], tail: str, axis: int) -> str:
        if len(parts) == 1:
            return parts[0]
        return self._add("Concat", tail, *parts, axis=axis)

    def _write_reshape(self, held: str, tail: str, shape: list[int]) -> str:
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
        """Convert the weights of the transposed convolution to those of a convolution.

        The weights (g · c, o, kh, kw) become (g · sy · sx · o, c, my, mx). Here sy and sx are the
        numbers of pixels of the two kinds, and my and mx their numbers of taps.

        Args:
            tail: suffix of the name of the new weights.
            kinds: the kind of pixels along the height, and the kind along the width.
            weight: weights of the transposed convolution.

        Returns:
            The name of the new weights.
        """
        up = self._up
        rows, columns = (np.array(kind.taps) for kind in kinds)
        inputs, taps = int(weight.dims[0]) // up.groups, tuple(weight.dims[2:])
        outputs = up.groups * len(rows) * len(columns) * up.channels
        shape = (outputs, inputs, rows.shape[1], columns.shape[1])
        if is_stub(weight):
            name = f"{self._base}/{tail}"
            self._normal.add_tensor(stub(name, shape, weight.data_type))
            return name
        by_groups = numpy_helper.to_array(weight).reshape(up.groups, inputs, up.channels, *taps)
        # Zeros at index −1, for a missing tap.
        filled = np.pad(by_groups, ((0, 0),) * 3 + ((0, 1),) * AXES)
        chosen = filled[:, :, :, rows[:, :, None, None], columns]
        arranged = chosen.transpose(0, 3, 5, 2, 1, 4, 6).reshape(shape)
        return self._tensor(tail, np.ascontiguousarray(arranged))

    def _bias(self, tail: str, kinds: tuple[_Kind, _Kind], bias: onnx.TensorProto) -> str:
        """Repeat a bias for every pixel that a convolution computes, and return its name.

        The bias (g · o,) becomes (g · sy · sx · o,), for sy · sx pixels.

        Args:
            tail: suffix of the name of the new bias.
            kinds: the kind of pixels along the height, and the kind along the width.
            bias: bias of the transposed convolution.
        """
        up = self._up
        pixels = len(kinds[0].taps) * len(kinds[1].taps)
        if is_stub(bias):
            name = f"{self._base}/{tail}"
            self._normal.add_tensor(stub(name, (int(bias.dims[0]) * pixels,), bias.data_type))
            return name
        by_groups = numpy_helper.to_array(bias).reshape(up.groups, 1, up.channels)
        return self._tensor(tail, np.tile(by_groups, (1, pixels, 1)).reshape(-1))
