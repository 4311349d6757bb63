"""Networks for `benchmarks.cpu.networks` on which no rule of the kernels was chosen.

They are a vocoder like HiFi-GAN (Kong et al., arXiv 2010.05646), a generator like DCGAN (Radford et
al., arXiv 1511.06434), two stages of a 3-D ResNet (Tran et al., arXiv 1711.11248), parallel dilated
convolutions (Chen et al., arXiv 1706.05587), the classifier of PointNet (Qi et al., arXiv
1612.00593), a graph network that sums over edges, bidirectional gated recurrent units, and two
layers of BERT that onnxruntime quantised dynamically.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from onnxruntime.quantization import QuantType, quantize_dynamic

from benchmarks.cpu import models as cpu_models


class FurtherNet(cpu_models.Net):
    """Builder of networks with windows along any number of axes. Operators are numbered."""

    def node(
        self, kind: str, inputs: Sequence[str], shape: Sequence[int], **attributes: object
    ) -> str:
        """Add an operator whose result has the shape `shape`."""
        return self._node(
            kind, list(inputs), f"{kind}_{len(self._nodes)}", tuple(shape), **attributes
        )

    def random_weights(self, shape: Sequence[int], deviation: float) -> str:
        """Add normally distributed weights of a shape."""
        return self._normal(f"weights_{len(self._tensors)}", tuple(shape), deviation)

    def convolution(
        self, x: str, channels: int, kernel: Sequence[int], stride: int = 1, dilation: int = 1
    ) -> str:
        """Add a convolution of (n, c, …) with a bias. Only its stride changes the spatial sizes."""
        batch, depth, *sizes = self.shapes[x]
        pads = [dilation * (taps - 1) // 2 for taps in kernel]
        strides = [stride if taps > 1 or len(set(kernel)) == 1 else 1 for taps in kernel]
        out = [
            (size + 2 * pad - dilation * (taps - 1) - 1) // step + 1
            for size, pad, taps, step in zip(sizes, pads, kernel, strides, strict=True)
        ]
        inputs = [
            x,
            self.random_weights(
                (channels, depth, *kernel), math.sqrt(1 / (depth * math.prod(kernel)))
            ),
            self.random_weights((channels,), 0.01),
        ]  # fmt: skip
        return self.node(
            "Conv", inputs, (batch, channels, *out), kernel_shape=list(kernel), strides=strides,
            pads=pads * 2, dilations=[dilation] * len(kernel),
        )  # fmt: skip

    def transposed_convolution(
        self, x: str, channels: int, kernel: int, stride: int, pad: int
    ) -> str:
        """Add a transposed convolution of (n, c, …) with the same parameters along all axes."""
        batch, depth, *sizes = self.shapes[x]
        axes = len(sizes)
        out = [(size - 1) * stride + kernel - 2 * pad for size in sizes]
        weight = self.random_weights((depth, channels, *[kernel] * axes), 0.5 / math.sqrt(depth))
        return self.node(
            "ConvTranspose", [x, weight], (batch, channels, *out), kernel_shape=[kernel] * axes,
            strides=[stride] * axes, pads=[pad] * 2 * axes,
        )  # fmt: skip

    def elementwise(self, kind: str, x: str, **attributes: object) -> str:
        """Add an elementwise operator."""
        return self.node(kind, [x], self.shapes[x], **attributes)

    def sum(self, x: str, y: str) -> str:
        """Add two tensors of the same shape, or of shapes that broadcast."""
        return self.node("Add", [x, y], np.broadcast_shapes(self.shapes[x], self.shapes[y]))

    def resize(self, x: str, size: int) -> str:
        """Resize images linearly to size × size."""
        shape = *self.shapes[x][:2], size, size
        sizes = self.constant(f"sizes_{len(self._tensors)}", np.array(shape, np.int64))
        return self.node(
            "Resize", [x, "", "", sizes], shape, mode="linear",
            coordinate_transformation_mode="half_pixel",
        )  # fmt: skip


def vocoder(net: FurtherNet) -> str:
    """Build a vocoder: 80 mel bands of 32 frames become 4,096 samples.

    Each of its three stages is a transposed convolution with three residual stacks of dilated
    convolutions.
    """

    def leaky(x: str) -> str:
        return net.elementwise("LeakyRelu", x, alpha=0.1)

    x, channels = net.convolution(net.input, 256, (7,)), 256
    for stride, taps in ((8, 16), (8, 16), (2, 4)):
        channels //= 2
        x = net.transposed_convolution(leaky(x), channels, taps, stride, (taps - stride) // 2)
        total = ""
        for kernel in (3, 7, 11):
            y = x
            for dilation in (1, 3, 5):
                z = net.convolution(leaky(y), channels, (kernel,), dilation=dilation)
                y = net.sum(y, net.convolution(leaky(z), channels, (kernel,)))
            total = net.sum(total, y) if total else y
        third = net.constant("third", np.float32(1 / 3))
        x = net.node("Mul", [total, third], net.shapes[total])
    return net.elementwise("Tanh", net.convolution(leaky(x), 1, (7,)))


def generator(net: FurtherNet) -> str:
    """Build a generator: a vector of 100 values becomes an image of 64×64.

    It has five transposed convolutions of 4×4.
    """
    x = net.transposed_convolution(net.input, 512, 4, 1, 0)
    for channels in (256, 128, 64):
        x = net.transposed_convolution(net.elementwise("Relu", x), channels, 4, 2, 1)
    return net.elementwise(
        "Tanh", net.transposed_convolution(net.elementwise("Relu", x), 3, 4, 2, 1)
    )


def video(net: FurtherNet) -> str:
    """Build a video classifier with two residual blocks of 3×3×3 convolutions.

    Its input has eight frames of 112×112 pixels, and its output 400 classes.
    """
    x = net.elementwise("Relu", net.convolution(net.input, 64, (3, 7, 7), stride=2))
    y = net.convolution(net.elementwise("Relu", net.convolution(x, 64, (3, 3, 3))), 64, (3, 3, 3))
    x = net.elementwise("Relu", net.sum(x, y))
    y = net.elementwise("Relu", net.convolution(x, 128, (3, 3, 3), stride=2))
    y = net.convolution(y, 128, (3, 3, 3))
    x = net.elementwise("Relu", net.sum(net.convolution(x, 128, (1, 1, 1), stride=2), y))
    x = net.node("GlobalAveragePool", [x], (1, 128, 1, 1, 1))
    return net.dense(net.reshape(x, "flat", (1, 128)), "classes", 400)


def segmentation(net: FurtherNet) -> str:
    """Build a segmentation network for an image of 256×256, with 21 classes per pixel.

    Five kinds of dilated convolutions run side by side.
    """

    def layer(x: str, channels: int, kernel: int = 3, stride: int = 1, dilation: int = 1) -> str:
        return net.elementwise(
            "Relu", net.convolution(x, channels, (kernel, kernel), stride, dilation)
        )

    x = layer(layer(layer(net.input, 32, stride=2), 64, stride=2), 128, stride=2)
    for dilation in (2, 4):
        x = net.sum(x, layer(layer(x, 128, dilation=dilation), 128, dilation=dilation))
    whole = layer(net.node("GlobalAveragePool", [x], (1, 128, 1, 1)), 64, 1)
    parts = [layer(x, 64, 1), *(layer(x, 64, dilation=item) for item in (6, 12, 18))]
    joined = net.join([*parts, net.resize(whole, 32)], "parts", 1)
    return net.resize(net.convolution(layer(joined, 64, 1), 21, (1, 1)), 256)


def points(net: FurtherNet) -> str:
    """Build a classifier of 1,024 points: five layers per point, and the maximum over all points.

    Its output has 40 classes.
    """
    x = net.input
    for channels in (64, 64, 64, 128, 1024):
        x = net.elementwise("Relu", net.convolution(x, channels, (1,)))
    x = net.node("ReduceMax", [x], (1, 1024), axes=[2], keepdims=0)
    for width in (512, 256):
        x = net.elementwise("Relu", net.dense(x, f"dense_{width}", width))
    return net.dense(x, "classes", 40)


def edges(net: FurtherNet) -> str:
    """Build a graph network of three layers over 2,000 nodes with 64 features and 10,000 edges.

    A layer adds up the features that arrive over the edges of each node.
    """
    nodes, features = net.shapes[net.input]
    rng = np.random.default_rng(0)
    begin = net.constant("begin", rng.integers(0, nodes, 10_000))
    end = net.constant("end", rng.integers(0, nodes, (10_000, 1)))
    zeros = net.constant("zeros", np.zeros((nodes, features), np.float32))
    x = net.input
    for layer in range(3):
        sent = net.dense(x, f"sent_{layer}", features)
        moved = net.node("Gather", [sent, begin], (10_000, features), axis=0)
        came = net.node("ScatterND", [zeros, end, moved], (nodes, features), reduction="add")
        x = net.elementwise("Relu", net.sum(net.dense(x, f"own_{layer}", features), came))
    return net.dense(x, "classes", 7)


def gru_2(net: FurtherNet) -> str:
    """Build two bidirectional GRU layers of 128 units over 100 steps of 80 features; 30 classes."""
    x, units = net.input, 128
    for layer in range(2):
        steps, batch, features = net.shapes[x]
        inputs = [
            x, net.random_weights((2, 3 * units, features), features**-0.5),
            net.random_weights((2, 3 * units, units), units**-0.5),
            net.random_weights((2, 6 * units), 0.1),
        ]  # fmt: skip
        y = net.node(
            "GRU", inputs, (steps, 2, batch, units), hidden_size=units, direction="bidirectional",
            linear_before_reset=1,
        )  # fmt: skip
        beside = net.transpose(y, f"beside_{layer}", (0, 2, 1, 3))
        x = net.reshape(beside, f"features_{layer}", (steps, batch, 2 * units))
    return net.linear(x, "classes", 30)


Draw = Callable[[FurtherNet], str]
MODELS: Mapping[str, tuple[Draw, tuple[int, ...]]] = {
    "vocoder": (vocoder, (1, 80, 32)),
    "generator": (generator, (1, 100, 1, 1)),
    "video": (video, (1, 3, 8, 112, 112)),
    "segmentation": (segmentation, (1, 3, 256, 256)),
    "points": (points, (1, 3, 1024)),
    "edges": (edges, (2000, 64)),
    "gru_2": (gru_2, (100, 1, 80)),
}
"""Function that builds the network and shape of its float32 input, by name."""
QUANTISED = "bert_2_dynamic"
NAMES = (*MODELS, QUANTISED)


def build_model(name: str) -> onnx.ModelProto:
    """Build the network with a name in `NAMES`. Raise `KeyError` for other names."""
    if name == QUANTISED:
        return _dynamically_quantised()
    draw, shape = MODELS[name]
    net = FurtherNet(name, shape, 0, True)
    return net.model(draw(net))


def _dynamically_quantised() -> onnx.ModelProto:
    """Build two layers of BERT-base on 128 tokens, quantised to int8 dynamically by onnxruntime."""
    net = cpu_models.Net(QUANTISED, (1, 128, 768), 0, True, input_type=TensorProto.FLOAT)
    with tempfile.TemporaryDirectory() as folder:
        source, out = (Path(folder) / f"{name}.onnx" for name in ("float", "integers"))
        onnx.save(net.model(cpu_models.bert_2(net)), source)
        quantize_dynamic(source, out, weight_type=QuantType.QInt8)
        return onnx.load(out)
