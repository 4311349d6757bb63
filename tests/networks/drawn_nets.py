"""Random quantised networks in which no sum lies halfway between two int8 values.

Weights are even and biases odd, so every sum is odd. The scales drop at least two bits of it. The
rounding of ties therefore does not matter, and all correct implementations give equal int8 results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import onnx
from onnx import helper
from quantised_graphs import Graph

T = TypeVar("T")
INPUT, WEIGHT = -5, -7
"""Scale exponents of the input and of all weights."""


class Tensor(NamedTuple):
    """A quantised image: its name, exponent and shape."""

    name: str
    exponent: int
    shape: tuple[int, int, int, int]


def drawn_network(
    seed: int, batch: int, block: int | None, slope: float | None = None
) -> onnx.ModelProto:
    """Return a random network of plain, grouped and depthwise convolutions.

    Channel counts and strides are odd. If the machine has square blocks of `block` channels, the
    network also has residuals, max-pools and concatenations. Some networks end in a matrix product,
    some have several outputs. If `slope` is given, a power of two, the ReLUs are leaky with this
    slope.
    """
    net = _Drawn(seed, slope)
    x = net.conv(net.start(batch), groups=1, channels=net.draw(8, 20, 24, 40, 48, 72))
    for _ in range(int(net.random.integers(2, 5))):
        x = net.step(x, block)
    results = [x]
    if net.draw(False, True):
        results.append(net.conv(x, groups=1, channels=24))
    outputs = [(result.name, result.shape) for result in results]
    if net.draw(False, True):
        outputs.append(net.product(results[-1]))
    return net.model(*outputs)


class _Drawn(Graph):
    """A random network under construction."""

    def __init__(self, seed: int, slope: float | None) -> None:
        super().__init__(seed)
        self.count = 0
        self.slope = slope

    def draw(self, *among: T) -> T:
        """Choose one of the values at random."""
        return among[int(self.random.integers(len(among)))]

    def start(self, batch: int) -> Tensor:
        """Add the input."""
        sides = self.draw((7, 7), (5, 8), (8, 4))
        shape = (batch, self.draw(3, 16, 20, 33), *sides)
        return Tensor(self.quantise(self.input("x", shape), INPUT), INPUT, shape)

    def step(self, x: Tensor, block: int | None) -> Tensor:
        """Add one random operator, or a small group of operators."""
        channels = x.shape[1]
        kinds = ["plain", "grouped", "depthwise", "depthwise"]
        if block is not None:
            kinds += ["residual", "pooled", "joined"]
        kind = self.draw(*kinds)
        if kind == "grouped":
            groups = self.draw(*(g for g in range(2, channels + 1) if channels % g == 0))
            return self.conv(x, groups, groups * int(self.random.integers(1, 2 + 80 // groups)))
        if kind == "depthwise":
            return self.conv(
                x, channels, channels * (self.draw(1, 2, 2, 3) if channels < 80 else 1)
            )
        if kind == "residual":
            groups = self.draw(1, channels)
            return self.conv(x, groups, channels, added=x)
        if kind == "pooled" and min(x.shape[2:]) > 2:
            return self.pool(x)
        if kind == "joined" and block is not None:
            return self.joined(x, block)
        return self.conv(x, 1, self.draw(10, 16, 33, 40, 64))

    def conv(
        self, x: Tensor, groups: int, channels: int, added: Tensor | None = None,
        exponent: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Add a convolution with a random kernel and stride, and sometimes a ReLU.

        The stride is 1 if another tensor is `added` to its sums, or if the exponent of the result
        is given.
        """
        n, c, h, w = x.shape
        kernel = self.draw(1, 3, 3)
        stride = 1 if added or exponent is not None or min(h, w) < 3 else self.draw(1, 1, 2)
        y = self._product(
            "Conv", x, (channels, c // groups, kernel, kernel), channels,
            group=groups, strides=[stride] * 2, pads=[kernel // 2] * 4,
        )  # fmt: skip
        if added is not None:
            y = self.op("Add", self._name("add"), [y, added.name])
        if self.draw(False, True):
            if self.slope is None:
                y = self.op("Relu", self._name("relu"), [y])
            else:
                y = self.op("LeakyRelu", self._name("leaky"), [y], alpha=self.slope)
        if exponent is None:
            exponent = x.exponent + WEIGHT + _shift(c // groups * kernel * kernel)
        rows, cols = ((size - 1) // stride + 1 for size in (h, w))
        return Tensor(self.quantise(y, exponent), exponent, (n, channels, rows, cols))

    def pool(self, x: Tensor) -> Tensor:
        """Add a max-pool."""
        n, c, h, w = x.shape
        y = self.op(
            "MaxPool", self._name("pool"), [x.name], kernel_shape=[3, 3], strides=[2, 2],
            pads=[1] * 4,
        )  # fmt: skip
        shape = (n, c, (h - 1) // 2 + 1, (w - 1) // 2 + 1)
        return Tensor(self.quantise(y, x.exponent), x.exponent, shape)

    def joined(self, x: Tensor, block: int) -> Tensor:
        """Concatenate a grouped and a plain convolution of the same image.

        The channels of the first one fill whole blocks.
        """
        channels, exponent = x.shape[1], x.exponent + 3
        most = math.lcm(channels, block)
        groups, most = (channels, most) if most <= 96 else (1, 2 * block)
        first = self.conv(x, groups, most, exponent=exponent)
        second = self.conv(x, 1, self.draw(10, 16), exponent=exponent)
        y = self.op("Concat", self._name("concat"), [first.name, second.name], axis=1)
        n, _, h, w = first.shape
        shape = (n, first.shape[1] + second.shape[1], h, w)
        return Tensor(self.quantise(y, exponent), exponent, shape)

    def product(self, x: Tensor) -> tuple[str, Sequence[int]]:
        """Add a convolution as large as the image, and a matrix product of its result."""
        n, c, h, w = x.shape
        taps = c * h * w
        y = self._product("Conv", x, (20, c, h, w), 20)
        exponent = x.exponent + WEIGHT + _shift(taps)
        y = self.op("Flatten", self._name("flat"), [self.quantise(y, exponent)])
        image = Tensor(y, exponent, (n, 20, 1, 1))
        y = self._product("Gemm", image, (18, 20), 18, transB=1)
        return self.quantise(y, exponent + WEIGHT + _shift(20)), (n, 18)

    def _product(
        self, kind: str, x: Tensor, shape: Sequence[int], channels: int, **attributes: object
    ) -> str:
        """Add an operator with even weights and an odd bias."""
        name = self._name(kind.lower())
        weight = 2 * self.random.integers(-63, 64, list(shape))
        bias = 2 * self.random.integers(-1000, 1000, channels) + 1
        inputs = [
            x.name,
            self.dequantise(self.constant(f"{name}.weight", weight.astype(np.int8)), WEIGHT),
            self._bias(name, bias.astype(np.int32), x.exponent + WEIGHT),
        ]
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}:0"], name=name, **attributes))
        return f"{name}:0"

    def _bias(self, name: str, values: np.ndarray, exponent: int) -> str:
        scale = self.constant(f"{name}.bias.scale", np.ldexp(np.float32(1), exponent))
        zero = self.constant(f"{name}.bias.zero", np.int32(0))
        inputs = [self.constant(f"{name}.bias", values), scale, zero]
        return self.op("DequantizeLinear", f"{name}.bias.dq", inputs)

    def _name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"


def _shift(taps: int) -> int:
    """Return the shift that scales sums of `taps` products back to the spread of their data."""
    return round(math.log2(74 * math.sqrt(taps)))
