"""Networks that `benchmarks.cpu.networks` times besides the built-in ones, with random weights.

They are EfficientNet-B0 (Tan and Le, arXiv 1905.11946), a U-Net with half the width (Ronneberger et
al., arXiv 1505.04597), ConvNeXt-T (Liu et al., arXiv 2201.03545), MLP-Mixer S/16 (Tolstikhin et
al., arXiv 2105.01601), six layers of BERT and of GPT-2, a recommender like DLRM (Naumov et al.,
arXiv 1906.00091), keyword spotting with separable convolutions (Zhang et al., arXiv 1711.07128),
and convolutions over audio samples. The seeds of the weights are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto

from tilewright.networks.zoo.builder import Builder
from tilewright.networks.zoo.transformer import attention, feed_forward

Draw = Callable[["Net"], str]


class Net(Builder):
    """Builder with the operators that only these networks need."""

    def sigmoid(self, x: str, name: str) -> str:
        """Add a sigmoid, 1 / (1 + exp(−x))."""
        return self._node("Sigmoid", [x], name, self.shapes[x])

    def swish(self, x: str, name: str) -> str:
        """Multiply `x` by its sigmoid, as two nodes."""
        return self.multiply(x, self.sigmoid(x, f"{name}.sigmoid"), name)

    def upsample(self, x: str, name: str, out_channels: int) -> str:
        """Add a transposed convolution with a 2×2 kernel and a stride of 2."""
        batch, channels, height, width = self.shapes[x]
        weight = self._normal(f"{name}.weight", (channels, out_channels, 2, 2), channels**-0.5)
        bias = self._normal(f"{name}.bias", (out_channels,), 0.01)
        return self._node(
            "ConvTranspose", [x, weight, bias], name, (batch, out_channels, 2 * height, 2 * width),
            kernel_shape=[2, 2], strides=[2, 2],
        )  # fmt: skip

    def conv1d(self, x: str, name: str, channels: int, kernel: int, stride: int) -> str:
        """Add a convolution along one axis, padded so that only the stride changes the length."""
        batch, depth, length = self.shapes[x]
        weight = self._normal(
            f"{name}.weight", (channels, depth, kernel), math.sqrt(2 / (depth * kernel))
        )
        bias = self._normal(f"{name}.bias", (channels,), 0.01)
        pad = kernel // 2
        out = (length + 2 * pad - kernel) // stride + 1
        return self._node(
            "Conv", [x, weight, bias], name, (batch, channels, out),
            kernel_shape=[kernel], strides=[stride], pads=[pad, pad],
        )  # fmt: skip

    def lstm(self, x: str, name: str, hidden: int) -> str:
        """Add a one-directional LSTM from (steps, batch, features) to (steps, batch, hidden)."""
        steps, batch, features = self.shapes[x]
        inputs = [
            x,
            self._normal(f"{name}.weight", (1, 4 * hidden, features), features**-0.5),
            self._normal(f"{name}.recurrence", (1, 4 * hidden, hidden), hidden**-0.5),
            self._normal(f"{name}.bias", (1, 8 * hidden), 0.01),
        ]
        y = self._node("LSTM", inputs, name, (steps, 1, batch, hidden), hidden_size=hidden)
        return self.reshape(y, f"{name}.squeezed", (steps, batch, hidden))


def efficientnet_b0(net: Net) -> str:
    """Build EfficientNet-B0: sixteen inverted residual blocks with squeeze-and-excitation.

    Its input is a 224×224 image, and its output has 1000 classes.
    """
    stages = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
              (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # fmt: skip
    x = _swish_convolution(net, net.input, "stem", 32, 3, 2)
    for stage, (expansion, channels, repeats, first, kernel) in enumerate(stages):
        for repeat in range(repeats):
            name, stride = f"stage{stage}.{repeat}", first if repeat == 0 else 1
            depth = net.shapes[x][1]
            y = (
                x
                if expansion == 1
                else _swish_convolution(net, x, f"{name}.expand", depth * expansion, 1)
            )
            hidden = net.shapes[y][1]
            y = _swish_convolution(net, y, f"{name}.depthwise", hidden, kernel, stride, hidden)
            mean = net.global_average_pool(y, f"{name}.mean")
            mean = net.conv(mean, f"{name}.reduce", max(1, depth // 4), 1, bias=True)
            mean = net.conv(net.swish(mean, f"{name}.act"), f"{name}.gate", hidden, 1, bias=True)
            y = net.multiply(y, net.sigmoid(mean, f"{name}.sigmoid"), f"{name}.scaled")
            y = net.batch_norm(net.conv(y, f"{name}.project", channels, 1), f"{name}.norm")
            x = net.add(x, y, f"{name}.add") if net.shapes[x] == net.shapes[y] else y
    x = _swish_convolution(net, x, "head", 1280, 1)
    return net.dense(net.flatten(net.global_average_pool(x, "mean"), "flat"), "fc", 1000)


def _swish_convolution(
    net: Net, x: str, name: str, channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> str:
    x = net.conv(x, f"{name}.conv", channels, kernel, stride, kernel // 2, groups)
    return net.swish(net.batch_norm(x, f"{name}.bn"), f"{name}.swish")


def unet(net: Net) -> str:
    """Build a U-Net of four levels with 32 channels at the top; 256×256 images, 2 classes."""
    x, kept = net.input, []
    for level in range(5):
        if level:
            x = net.max_pool(x, f"down{level}", 2, 2)
        x = _double_convolution(net, x, f"encode{level}", 32 << level)
        kept.append(x)
    for level in reversed(range(4)):
        x = net.upsample(x, f"up{level}", 32 << level)
        x = _double_convolution(
            net, net.concat([kept[level], x], f"join{level}"), f"decode{level}", 32 << level
        )
    return net.conv(x, "classes", 2, 1, bias=True)


def _double_convolution(net: Net, x: str, name: str, channels: int) -> str:
    for half in "ab":
        x = net.batch_norm(net.conv(x, f"{name}{half}", channels, 3, pad=1), f"{name}{half}.bn")
        x = net.relu(x, f"{name}{half}.relu")
    return x


def convnext_t(net: Net) -> str:
    """Build ConvNeXt-T with stages of 3, 3, 9 and 3 blocks.

    A block has a depthwise 7×7 convolution, a layer norm, and two matrix products with GELU.
    """
    x = net.conv(net.input, "stem", 96, 4, 4, bias=True)
    for stage, (channels, blocks) in enumerate(((96, 3), (192, 3), (384, 9), (768, 3))):
        if stage:
            x = net.transpose(x, f"down{stage}.last", (0, 2, 3, 1))
            x = net.layer_norm(x, f"down{stage}.norm", 1e-6)
            x = net.transpose(x, f"down{stage}.first", (0, 3, 1, 2))
            x = net.conv(x, f"down{stage}.conv", channels, 2, 2, bias=True)
        for block in range(blocks):
            name = f"stage{stage}.{block}"
            y = net.conv(x, f"{name}.depthwise", channels, 7, 1, 3, channels, bias=True)
            y = net.layer_norm(net.transpose(y, f"{name}.last", (0, 2, 3, 1)), f"{name}.norm", 1e-6)
            y = net.gelu(net.linear(y, f"{name}.up", 4 * channels), f"{name}.gelu")
            y = net.transpose(
                net.linear(y, f"{name}.down", channels), f"{name}.first", (0, 3, 1, 2)
            )
            x = net.add(x, y, f"{name}.add")
    x = net.flatten(net.global_average_pool(x, "mean"), "flat")
    return net.dense(x, "fc", 1000)


def mixer_s16(net: Net) -> str:
    """Build MLP-Mixer S/16: eight blocks that mix 196 patches and 512 channels in turns.

    Its input is a 224×224 image.
    """
    x = net.conv(net.input, "patches", 512, 16, 16, bias=True)
    x = net.transpose(net.reshape(x, "rows", (1, 512, 196)), "tokens", (0, 2, 1))
    for block in range(8):
        y = net.transpose(net.layer_norm(x, f"{block}.norm1", 1e-6), f"{block}.turn", (0, 2, 1))
        y = net.linear(_gelu_of(net, y, f"{block}.tokens", 256), f"{block}.tokens.down", 196)
        x = net.add(x, net.transpose(y, f"{block}.back", (0, 2, 1)), f"{block}.add1")
        y = net.layer_norm(x, f"{block}.norm2", 1e-6)
        y = net.linear(_gelu_of(net, y, f"{block}.channels", 2048), f"{block}.channels.down", 512)
        x = net.add(x, y, f"{block}.add2")
    x = net.layer_norm(x, "norm", 1e-6)
    return net.linear(net.take(x, "first", 0, 1), "fc", 1000)


def _gelu_of(net: Net, x: str, name: str, features: int) -> str:
    return net.gelu(net.linear(x, f"{name}.up", features), f"{name}.gelu")


def bert_6(net: Net) -> str:
    """Build six layers of BERT-base."""
    return _bert(net, 6)


def bert_2(net: Net) -> str:
    """Build two layers of BERT-base, for long texts."""
    return _bert(net, 2)


def _bert(net: Net, layers: int) -> str:
    """Build layers of BERT-base (width 768) on embedded tokens, with a norm after each sum."""
    x = net.input
    for index in range(layers):
        y = net.add(attention(net, x, f"{index}.attention", 12), x, f"{index}.add1")
        x = net.layer_norm(y, f"{index}.norm1", 1e-12)
        y = net.add(feed_forward(net, x, f"{index}.ffn", 3072), x, f"{index}.add2")
        x = net.layer_norm(y, f"{index}.norm2", 1e-12)
    return x


def gpt_6(net: Net) -> str:
    """Build six layers of GPT-2 (width 768), with a norm before each part and no output head."""
    x = net.input
    for index in range(6):
        y = net.layer_norm(x, f"{index}.norm1", 1e-5)
        x = net.add(attention(net, y, f"{index}.attention", 12), x, f"{index}.add1")
        y = net.layer_norm(x, f"{index}.norm2", 1e-5)
        x = net.add(feed_forward(net, y, f"{index}.ffn", 3072), x, f"{index}.add2")
    return net.layer_norm(x, "norm", 1e-5)


def dlrm(net: Net) -> str:
    """Build a recommender with eight tables of 10,000 rows and all pairwise products.

    Its input are IDs of shape (batch, 8).
    """
    batch = net.shapes[net.input][0]
    columns = [
        net.reshape(
            net.embedding(net.take(net.input, f"ids{i}", i, 1), f"table{i}", 10_000, 64),
            f"row{i}", (batch, 1, 64),
        )
        for i in range(8)
    ]  # fmt: skip
    x = net.join(columns, "rows", 1)
    pairs = net.matmul(x, net.transpose(x, "columns", (0, 2, 1)), "pairs")
    y = net.join([net.flatten(pairs, "flat"), net.reshape(x, "all", (batch, 512))], "joined", 1)
    for index, features in enumerate((512, 256)):
        y = net.relu(net.dense(y, f"top{index}", features), f"relu{index}")
    return net.sigmoid(net.dense(y, "top2", 1), "score")


def keywords(net: Net) -> str:
    """Build four separable layers of 64 channels over 49×10 coefficients; twelve words."""
    x = net.relu(net.batch_norm(net.conv(net.input, "stem", 64, (10, 4), 2, (5, 1)), "bn"), "relu")
    for index in range(4):
        for part, kernel, groups in (("depthwise", 3, 64), ("pointwise", 1, 1)):
            name = f"{index}.{part}"
            x = net.conv(x, name, 64, kernel, 1, kernel // 2, groups)
            x = net.relu(net.batch_norm(x, f"{name}.bn"), f"{name}.relu")
    return net.dense(net.flatten(net.global_average_pool(x, "mean"), "flat"), "fc", 12)


def audio(net: Net) -> str:
    """Build seven convolutions over one second of samples, like M5 but wider; 35 words."""
    x = net.relu(net.conv1d(net.input, "0", 64, 80, 4), "0.relu")
    for index, (channels, stride) in enumerate(
        ((64, 4), (128, 1), (128, 4), (256, 1), (256, 4), (512, 1)), start=1
    ):
        x = net.relu(net.conv1d(x, str(index), channels, 3, stride), f"{index}.relu")
    batch, channels, length = net.shapes[x]
    x = net.reshape(x, "image", (batch, channels, length, 1))
    return net.dense(net.flatten(net.global_average_pool(x, "mean"), "flat"), "fc", 35)


def lstm_2(net: Net) -> str:
    """Build two LSTM layers of 256 units over 50 steps of 40 features.

    The last step gives 12 classes.
    """
    x = net.lstm(net.lstm(net.input, "first", 256), "second", 256)
    return net.dense(net.take(x, "last", net.shapes[x][0] - 1, 0), "fc", 12)


IMAGE = (1, 3, 224, 224)
MODELS: Mapping[str, tuple[Draw, tuple[int, ...], int]] = {
    "efficientnet_b0": (efficientnet_b0, IMAGE, TensorProto.FLOAT),
    "unet": (unet, (1, 3, 256, 256), TensorProto.FLOAT),
    "convnext_t": (convnext_t, IMAGE, TensorProto.FLOAT),
    "mixer_s16": (mixer_s16, IMAGE, TensorProto.FLOAT),
    "bert_6_128": (bert_6, (1, 128, 768), TensorProto.FLOAT),
    "bert_2_512": (bert_2, (1, 512, 768), TensorProto.FLOAT),
    "bert_2_1024": (bert_2, (1, 1024, 768), TensorProto.FLOAT),
    "bert_2_2048": (bert_2, (1, 2048, 768), TensorProto.FLOAT),
    "gpt_6_128": (gpt_6, (1, 128, 768), TensorProto.FLOAT),
    "gpt_6_256": (gpt_6, (1, 256, 768), TensorProto.FLOAT),
    "dlrm_1": (dlrm, (1, 8), TensorProto.INT64),
    "dlrm_64": (dlrm, (64, 8), TensorProto.INT64),
    "keywords": (keywords, (1, 1, 49, 10), TensorProto.FLOAT),
    "audio": (audio, (1, 1, 16000), TensorProto.FLOAT),
    "lstm_2": (lstm_2, (50, 1, 40), TensorProto.FLOAT),
}
"""Function that builds the network, shape of its input, and ONNX type of its input, by name."""


def build_model(name: str) -> onnx.ModelProto:
    """Build the network with a name in `MODELS`. Raise `KeyError` for other names."""
    draw, shape, kind = MODELS[name]
    net = Net(name, shape, 0, True, input_type=kind)
    return net.model(draw(net))


def parameters(model: onnx.ModelProto) -> int:
    """Return the number of weights of a model."""
    return sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
