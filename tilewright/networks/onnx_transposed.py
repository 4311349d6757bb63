"""Rewrites transposed convolutions as convolutions whose channels become pixels.

With a stride of s, an output pixel reads every s-th tap of the kernel. So s pixels beside each
other are s convolutions of the same data, and run as one with s times the channels. Shapes along
one axis of length h, with m = k / s taps each:

    (n, c, h) → Conv (n, s * o, h + m - 1) → (n, o, (h + m - 1) * s) → cut to the output

The channels of one of these convolutions lie together, and so blocks of channels stay whole.

No multiply-add is added or lost, but for pixels at the border. TVM's own form multiplies by the
zeros between the pixels, s times as many an axis. W. Shi et al., "Is the deconvolution layer the
same as a convolutional layer?", 2016.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright.networks.graph import STANDARD_DOMAINS, NormalGraph, Shape
from tilewright.networks.onnx_file import is_stub, stub

AXES = 2


@dataclass(frozen=True)
class _Upsampling:
    """A transposed convolution of images, sizes in (y, x): `begin` pixels are cut off before the
    output."""

    images: int
    channels: int
    taps: tuple[int, int]
    stride: tuple[int, int]
    begin: tuple[int, int]
    size: tuple[int, int]
    wide: tuple[int, int]  # before anything is cut off


def as_convolutions(normal: NormalGraph) -> None:
    """Rewrite a graph in place, where weights are constants in float32 without groups and
    dilation, and where the stride divides the kernel. Others stay."""
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
        nodes += _written(normal, node, found, weight, bias)
    normal.replace_nodes(nodes)


def _upsampling(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> _Upsampling | None:
    """What a node computes; None where it is none of these."""
    if node.op_type != "ConvTranspose" or node.domain not in STANDARD_DOMAINS:
        return None
    data, weight = shapes.get(node.input[0], ()), shapes.get(node.input[1], ())
    if len(data) != 4 or len(weight) != 4 or data[1] != weight[0]:
        return None
    numbers = {a.name: tuple(a.ints) for a in node.attribute if a.ints}
    plain = {a.name: a.i for a in node.attribute}.get("group", 1) == 1
    named = {a.name: a.s for a in node.attribute}.get("auto_pad", b"NOTSET") == b"NOTSET"
    ones, zeros = (1,) * AXES, (0,) * AXES
    kernel = numbers.get("kernel_shape", weight[2:])
    stride, pads = numbers.get("strides", ones), numbers.get("pads", zeros * 2)
    extra = numbers.get("output_padding", zeros)
    lengths = {len(kernel), len(stride), len(extra)} == {AXES} and len(pads) == 2 * AXES
    if not (plain and named and lengths) or numbers.get("dilations", ones) != ones:
        return None
    if "output_shape" in numbers or kernel != weight[2:] or min(*pads, *extra, *data) < 0:
        return None
    if any(k % s for k, s in zip(kernel, stride, strict=True)):
        return None
    taps = tuple(k // s for k, s in zip(kernel, stride, strict=True))
    wide = tuple((h + m - 1) * s for h, m, s in zip(data[2:], taps, stride, strict=True))
    size = tuple(
        whole - before - after + more
        for whole, before, after, more in zip(wide, pads[:2], pads[2:], extra, strict=True)
    )
    inside = all(
        0 < length <= whole - before
        for length, whole, before in zip(size, wide, pads[:2], strict=True)
    )
    if not inside:  # what is beyond the last pixel holds the bias alone
        return None
    return _Upsampling(
        data[0], weight[1], _pair(taps), _pair(stride), _pair(pads[:2]), _pair(size), _pair(wide)
    )


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    return values[0], values[1]


def _written(
    normal: NormalGraph,
    node: onnx.NodeProto,
    up: _Upsampling,
    weight: onnx.TensorProto,
    bias: onnx.TensorProto | None,
) -> list[onnx.NodeProto]:
    """The operators in place of one; the convolution keeps its name."""
    (sy, sx), (my, mx), (high, wide) = up.stride, up.taps, up.wide
    base, result = f"{node.name}/pixels", node.output[0]
    inputs = [node.input[0], _weights(normal, f"{base}/weights", up, weight)]
    if bias is not None:
        inputs.append(_bias(normal, f"{base}/bias", sy * sx, bias))
    conv = helper.make_node(
        "Conv", inputs, [f"{result}/channels"], name=node.name, kernel_shape=up.taps,
        pads=[my - 1, mx - 1, my - 1, mx - 1],
    )  # fmt: skip
    made, held = [conv], conv.output[0]

    def add(kind: str, tail: str, *more: str, **attributes: object) -> None:
        nonlocal held
        name = f"{result}/{tail}"
        extra = helper.make_node(kind, [held, *more], [name], name=f"{base}/{tail}", **attributes)
        normal.add_operator(extra)
        made.append(extra)
        held = name

    def numbers(tail: str, values: list[int]) -> str:
        name = f"{base}/{tail}"
        normal.add_tensor(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    rows, columns = high // sy, wide // sx
    if sy * sx > 1:
        apart = [up.images, sy, sx, up.channels, rows, columns]
        add("Reshape", "apart", numbers("apart_shape", apart))
        add("Transpose", "beside", perm=[0, 3, 4, 1, 5, 2])
        image = [up.images, up.channels, high, wide]
        add("Reshape", "image", numbers("image_shape", image))
    if up.size != up.wide or any(up.begin):
        ends = [begin + size for begin, size in zip(up.begin, up.size, strict=True)]
        begins = numbers("begins", list(up.begin))
        add("Slice", "cut", begins, numbers("ends", ends), numbers("axes", [2, 3]))
    made[-1].output[0] = result
    return made


def _weights(normal: NormalGraph, name: str, up: _Upsampling, weight: onnx.TensorProto) -> str:
    """(c, o, kh, kw) as (sy * sx * o, c, my, mx), the taps from the last to the first."""
    (sy, sx), (my, mx), inputs = up.stride, up.taps, int(weight.dims[0])
    shape = (up.channels * sy * sx, inputs, my, mx)
    if is_stub(weight):
        normal.add_tensor(stub(name, shape, weight.data_type))
        return name
    taps = numpy_helper.to_array(weight).reshape(inputs, up.channels, my, sy, mx, sx)
    moved = taps[:, :, ::-1, :, ::-1, :].transpose(3, 5, 1, 0, 2, 4).reshape(shape)
    normal.add_tensor(numpy_helper.from_array(np.ascontiguousarray(moved), name))
    return name


def _bias(normal: NormalGraph, name: str, pixels: int, bias: onnx.TensorProto) -> str:
    """(o,) as (pixels * o,)."""
    if is_stub(bias):
        normal.add_tensor(stub(name, (int(bias.dims[0]) * pixels,), bias.data_type))
        return name
    numbers = np.tile(numpy_helper.to_array(bias), pixels)
    normal.add_tensor(numpy_helper.from_array(numbers, name))
    return name
