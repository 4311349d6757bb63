"""Writes a convolution of one long signal as the product of its frames with the kernel's taps.

Speech models compute spectrograms so: one input channel, a kernel of some 400 samples, a stride of
160. A convolution kernel fills no vector with one channel. The frames overlap, so they are put
together out of slices, where s is the stride, n = ceil(k / s) and t the number of outputs:

    (1, 1, length) → (1, t + n - 1, s) → n slices beside each other: (1, t, k) → product (1, t, o)

Copying k samples of a frame costs little beside its k * o multiplications.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tilewright.networks.graph import STANDARD_DOMAINS, NormalGraph, Shape
from tilewright.networks.onnx_file import is_stub, stub

LEAST_TAPS = 64
"""Of a kernel: shorter ones are convolutions as others are."""
MOST_SLICES = 8
"""Of a signal, which are the taps of a kernel over its stride: with more, the frames are many times
as large as the signal."""
LEAST_CHANNELS = 16
"""Of the output, each of which reads a frame once."""


def as_frame_products(normal: NormalGraph) -> None:
    """Rewrite such convolutions of a graph in place. Padding has to be explicit."""
    shapes, types, tensors = normal.shapes(), normal.types(), normal.tensors()
    nodes: list[onnx.NodeProto] = []
    for node in normal.graph.node:
        weight = tensors.get(node.input[1]) if len(node.input) > 1 else None
        signal = shapes.get(node.input[0]) if node.input else None
        is_float = bool(node.input) and types.get(node.input[0]) == TensorProto.FLOAT
        if signal is None or weight is None or not is_float or not _is_framed(node, signal, weight):
            nodes.append(node)
        else:
            nodes += _FrameProduct(normal, node, signal, weight).nodes()
    normal.replace_nodes(nodes)


def _is_framed(node: onnx.NodeProto, signal: Shape, weight: onnx.TensorProto) -> bool:
    if node.op_type != "Conv" or node.domain not in STANDARD_DOMAINS or len(signal) != 3:
        return False
    numbers = {a.name: list(a.ints) for a in node.attribute if a.ints}
    automatic = any(a.name == "auto_pad" and a.s != b"NOTSET" for a in node.attribute)
    channels, inner, taps = weight.dims
    stride, dilation = numbers.get("strides", [1])[0], numbers.get("dilations", [1])[0]
    return bool(
        not automatic and inner == signal[1] == 1 and dilation == 1 and taps >= LEAST_TAPS
        and taps <= stride * MOST_SLICES and channels >= LEAST_CHANNELS
    )  # fmt: skip


class _FrameProduct:
    def __init__(
        self, normal: NormalGraph, node: onnx.NodeProto, signal: Shape, weight: onnx.TensorProto
    ) -> None:
        self._normal, self._node, self._weight = normal, node, weight
        numbers = {a.name: list(a.ints) for a in node.attribute if a.ints}
        self._stride = numbers.get("strides", [1])[0]
        self._pads = numbers.get("pads", [0, 0])
        self._images, _, self._length = signal
        self._made: list[onnx.NodeProto] = []

    def nodes(self) -> list[onnx.NodeProto]:
        """Return the operators in place of the convolution. The last one has its name."""
        node, stride, taps = self._node, self._stride, self._weight.dims[2]
        frames = (self._length + sum(self._pads) - taps) // stride + 1
        slices = -(-taps // stride)
        rows = frames + slices - 1
        signal = self._cut_to(rows * stride)
        rows_shape = (self._images, rows, stride)
        apart = self._add("Reshape", "rows", [signal, self._integers("shape", rows_shape)])
        parts = []
        for number in range(slices):
            last = taps - number * stride
            parts.append(
                self._slice(apart, f"part{number}", (1, number, number + frames), (2, 0, last))
            )
        joined = parts[0] if slices == 1 else self._add("Concat", "frames", parts, axis=2)
        product = self._add("MatMul", "product", [joined, self._taps_first()])
        bias = node.input[2] if len(node.input) > 2 else ""
        if bias:
            product = self._add("Add", "sum", [product, bias])
        node.op_type = "Transpose"
        del node.input[:], node.attribute[:]
        node.input.append(product)
        node.attribute.append(helper.make_attribute("perm", [0, 2, 1]))
        return [*self._made, node]

    def _cut_to(self, length: int) -> str:
        """Return the signal with its padding, of exactly that length."""
        begin, _ = self._pads
        name, behind = str(self._node.input[0]), length - self._length - begin
        if behind < 0:
            name = self._slice(name, "cut", (2, 0, self._length + behind))
        if begin or behind > 0:
            pads = self._integers("pads", (0, 0, begin, 0, 0, max(behind, 0)))
            name = self._add("Pad", "padded", [name, pads])
        return name

    def _slice(self, name: str, role: str, *cuts: tuple[int, int, int]) -> str:
        """Return a tensor cut along axes; each of `cuts` is an axis, its begin and its end."""
        axes, begins, ends = (list(values) for values in zip(*cuts, strict=True))
        vectors = [
            self._integers(f"{role}/{label}", values)
            for label, values in (("starts", begins), ("ends", ends), ("axes", axes))
        ]
        return self._add("Slice", role, [name, *vectors])

    def _taps_first(self) -> str:
        """Return the weights as (taps, channels); without data, if they have none."""
        channels, _, taps = self._weight.dims
        name = f"{self._node.name}/taps"
        if is_stub(self._weight):
            made = stub(name, (taps, channels), self._weight.data_type)
        else:
            values = numpy_helper.to_array(self._weight).reshape(channels, taps)
            made = numpy_helper.from_array(np.ascontiguousarray(values.T), name)
        self._normal.add_tensor(made)
        return name

    def _integers(self, role: str, values: tuple[int, ...] | list[int]) -> str:
        name = f"{self._node.name}/{role}"
        self._normal.add_tensor(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def _add(self, kind: str, role: str, inputs: list[str], **attributes: object) -> str:
        name = f"{self._node.name}/{role}"
        node = helper.make_node(kind, inputs, [name], name=name, **attributes)
        self._made.append(node)
        self._normal.add_operator(node)
        return name
