"""Generates small random float networks. The same seed always gives the same network."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import onnx

from benchmarks.artifacts import network_parts as pieces
from benchmarks.artifacts.network_parts import Convolutions, FloatGraph, Shape, Tensor, pool

STYLES = ("image",) * 8 + ("signal", "rows")
SALT = 0x77
"""Constant in the seed of the random generator. With it, a seed gives the same network in all
programs, but a different one than a generator with the plain seed."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """A random float network, with the number of multiply-accumulates of one inference."""

    seed: int
    style: str
    model: onnx.ModelProto
    macs: int


def draw(seed: int) -> Drawn:
    """Generate the network of a seed, with at most about 2 million multiply-accumulates."""
    net = FloatGraph(seed * 1000 + SALT)
    style = str(net.pick(STYLES))
    outputs = {"image": _image, "signal": _signal, "rows": _rows}[style](net)
    return Drawn(seed, style, net.model(outputs), net.macs)


def _image(net: FloatGraph) -> list[Tensor]:
    shape = (_batch(net), int(net.pick([1, 3, 3, 4, 16, 16, 19])), *_sizes(net))
    body = _body(net, shape)
    return _outputs(net, body, _tail(net, body[-1]))


def _signal(net: FloatGraph) -> list[Tensor]:
    shape = (_batch(net), int(net.pick([1, 2, 3, 16])), int(net.rng.integers(12, 40)))
    body = _body(net, shape)
    return _outputs(net, body, _tail(net, body[-1]))


def _rows(net: FloatGraph) -> list[Tensor]:
    c = int(net.pick([7, 16, 32, 48]))
    shape = (_batch(net), c) if net.chance(0.6) else (_batch(net), int(net.rng.integers(2, 9)), c)
    x = net.input(shape)
    return _outputs(net, [x], _products(net, x, int(net.rng.integers(1, 5))))


def _body(net: FloatGraph, shape: Shape) -> list[Tensor]:
    """Generate the body of a network: a list of tensors, each computed from earlier ones."""
    body = [net.input(shape)]
    if net.chance(0.2):
        body.append(net.input(shape))
    if net.chance(0.08):
        net.input((1, 2))  # nobody reads it
    convolutions = Convolutions(net)
    first = convolutions.conv(body[0])
    body.append(body[0] if first is None else _after_convolution(net, first))
    for _ in range(int(net.rng.integers(1, 7))):
        made = _piece(net, convolutions, body)
        if made is not None and math.prod(made.shape) <= 1 << 14:
            body.append(made)
    return body


def _piece(net: FloatGraph, convolutions: Convolutions, tensors: list[Tensor]) -> Tensor | None:
    """Add a random operator that reads the last tensor or one of the three before it."""
    x = tensors[-1] if net.chance(0.75) else net.pick(tensors[-4:])
    same = [item for item in tensors if item.shape == x.shape]
    beside = [
        item for item in tensors if item.shape[:1] + item.shape[2:] == x.shape[:1] + x.shape[2:]
    ]
    kind = net.pick(
        ["conv"] * 6 + ["pool"] * 5 + ["block"] * 3 + ["add"] * 2 + ["concat"] * 2
        + ["slice", "slice", "constant", "scale", "norm", "activation", "mul", "gate", "transpose"]
        + ["pad", "crop", "shuffle", "softmax", "identity", "sub", "fork"]
    )  # fmt: skip
    match kind:
        case "conv" | "fork":
            y = convolutions.conv(x)
            return None if y is None else _after_convolution(net, y)
        case "block":  # what a residual network is made of
            y = convolutions.conv(x, x.shape[1])
            if y is not None and net.chance(0.5):
                y = convolutions.conv(_after_convolution(net, y), x.shape[1])
            if y is None:
                return None
            y = net.op("Add", [y, x] if net.chance(0.5) else [x, y], x.shape)
            return net.op("Relu", [y], x.shape) if net.chance(0.6) else y
        case "pool":
            return pool(net, x)
        case "concat":
            other = net.pick(beside)
            channels = x.shape[1] + other.shape[1]
            return net.op("Concat", [x, other], (x.shape[0], channels, *x.shape[2:]), axis=1)
        case "add" | "mul" | "sub":
            return net.op(kind.capitalize(), [x, net.pick(same)], x.shape)
        case "softmax":
            return net.op("Softmax", [x], x.shape, axis=1)
        case "identity":
            return net.op("Identity", [x], x.shape)
    alone: dict[str, Callable[[FloatGraph, Tensor], Tensor]] = {
        "slice": pieces.slice_channels, "constant": pieces.add_constant, "scale": pieces.scaled,
        "norm": pieces.batch_norm, "activation": pieces.activation, "gate": pieces.gated,
        "transpose": pieces.transposed, "pad": pieces.pad, "crop": pieces.crop,
        "shuffle": pieces.shuffle_channels,
    }  # fmt: skip
    return alone[kind](net, x)


def _after_convolution(net: FloatGraph, x: Tensor) -> Tensor:
    """Add a random selection of the operators that usually follow a convolution."""
    y = pieces.batch_norm(net, x) if net.chance(0.3) else x
    return pieces.activation(net, y) if net.chance(0.7) else y


def _tail(net: FloatGraph, x: Tensor) -> Tensor:
    """Add the end of a network: nothing, or matrix products of the last image."""
    n, c, *sizes = x.shape
    kind = net.pick(["none", "none", "pooled", "pooled", "flat", "flat", "rows"])
    match kind:
        case "pooled":
            y = net.op("GlobalAveragePool", [x], (n, c, *(1 for _ in sizes)))
            return _products(net, pieces.flat(net, y), 1)
        case "flat":
            return _products(net, pieces.flat(net, x), int(net.pick([1, 1, 2])))
        case "rows":
            whole = pieces.reshape(net, x, (n, c, math.prod(sizes)))
            turned = net.op("Transpose", [whole], (n, math.prod(sizes), c), perm=(0, 2, 1))
            return _products(net, turned, 1)
    return x


def _products(net: FloatGraph, x: Tensor, count: int) -> Tensor:
    """Add `count` dense layers, with random activations and shortcuts between them."""
    for place in range(count):
        y = pieces.dense(net, x)
        if y is None:
            return x
        before = x
        x = y if place == count - 1 else pieces.activation(net, y)
        if x.shape == before.shape and net.chance(0.5):
            x = net.op("Add", [x, before], x.shape)
    if len(x.shape) == 3 and net.chance(0.4):
        x = pieces.attention(net, x) or x
    return net.op("Softmax", [x], x.shape, axis=-1) if net.chance(0.4) else x


def _outputs(net: FloatGraph, tensors: list[Tensor], last: Tensor) -> list[Tensor]:
    """Choose the outputs: the last tensor and, with probability 1/4, also an earlier tensor."""
    last = net.op("Identity", [last], last.shape) if last in net.inputs else last
    between = [item for item in tensors if item not in (*net.inputs, last)]
    if between and net.chance(0.25):
        other = net.pick(between)
        return [last, other] if net.chance(0.5) else [other, last]
    return [last]


def _batch(net: FloatGraph) -> int:
    return int(net.pick([1, 1, 1, 1, 2, 3, 4]))


def _sizes(net: FloatGraph) -> tuple[int, int]:
    height = int(net.rng.integers(5, 15))
    return height, height if net.chance(0.6) else int(net.rng.integers(5, 15))
