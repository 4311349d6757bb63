"""Draws the parts of a network other than convolutions and pools."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.agreement.graph import FloatGraph, Tensor
from benchmarks.agreement.windows import MOST_MACS


def activation(net: FloatGraph, x: Tensor) -> Tensor:
    """One of the usual ones, as exporters write it."""
    kind = net.pick(
        ["Relu"] * 6
        + ["relu6"] * 3
        + ["Clip", "LeakyRelu", "HardSwish", "Sigmoid", "swish", "Tanh"]
    )
    if kind in ("relu6", "Clip"):
        low, high = (
            (0.0, 6.0) if kind == "relu6" else net.pick([(0.0, 1.5), (-1.0, 1.0), (-0.5, 2)])
        )
        shape = (1,) if net.chance(0.2) else ()  # as some exporters have it
        bounds = [net.constant(np.full(shape, each, np.float32)) for each in (low, high)]
        if low == 0.0 and net.chance(0.2) and net.opset > 11:
            return net.op("Clip", [net.op("Relu", [x], x.shape), "", bounds[1]], x.shape)
        return net.op("Clip", [x, *bounds], x.shape)
    if kind == "LeakyRelu":
        return net.op(kind, [x], x.shape, alpha=float(net.pick([0.01, 0.1, 0.25])))
    if kind == "HardSwish" and net.opset < 14:
        kind = "Relu"
    if kind == "swish":
        return net.op("Mul", [x, net.op("Sigmoid", [x], x.shape)], x.shape)
    return net.op(kind, [x], x.shape)


def batch_norm(net: FloatGraph, x: Tensor) -> Tensor:
    """As inference runs it; some of its gains are negative."""
    c = x.shape[1]
    gain, shift, mean = (net.normal((c,)) for _ in range(3))
    signs = np.sign(gain) if net.chance(0.3) else np.ones(c)
    variance = net.rng.uniform(0.5, 2.0, c)
    values = (signs * (0.5 + np.abs(gain) / 2), shift * 0.3, mean * 0.3, variance)
    reads = [net.constant(each.astype(np.float32)) for each in values]
    return net.op("BatchNormalization", [x, *reads], x.shape)


def added_constant(net: FloatGraph, x: Tensor) -> Tensor:
    """A number, or one a channel, or a whole tensor of constants."""
    c, ones = x.shape[1], (1,) * (len(x.shape) - 2)
    shape = net.pick([(), (1, c, *ones), (c, *ones), (1, *x.shape[1:])])
    return net.op("Add", [x, net.constant(net.normal(shape))], x.shape)


def scaled(net: FloatGraph, x: Tensor) -> Tensor:
    """By one constant, or one a channel."""
    c, ones = x.shape[1], (1,) * (len(x.shape) - 2)
    shape = net.pick([(), (1, c, *ones)])
    return net.op("Mul", [x, net.constant(net.normal(shape))], x.shape)


def channels_of(net: FloatGraph, x: Tensor) -> Tensor:
    """Some channels that lie together, at the border of a block where that is possible."""
    c = x.shape[1]
    begin = int(net.pick([0, c // 2, min(16, c - 1), 1 % c]))
    end = int(net.rng.integers(begin + 1, c + 1)) if net.chance(0.5) else c
    bounds = [net.constant(np.array([each], np.int64)) for each in (begin, end, 1)]
    return net.op("Slice", [x, *bounds], (x.shape[0], end - begin, *x.shape[2:]))


def cropped(net: FloatGraph, x: Tensor) -> Tensor:
    """Without the pixels of one side."""
    size = x.shape[2]
    if size < 2:
        return x
    bounds = [net.constant(np.array([each], np.int64)) for each in (1, size, 2)]
    return net.op("Slice", [x, *bounds], (*x.shape[:2], size - 1, *x.shape[3:]))


def padded(net: FloatGraph, x: Tensor) -> Tensor:
    """With zeros around it, by an operator of its own."""
    rank = len(x.shape) - 2
    begin, end = ([int(net.rng.integers(0, 2)) for _ in range(rank)] for _ in range(2))
    pads = net.constant(np.array([0, 0, *begin, 0, 0, *end], np.int64))
    sizes = (s + b + e for s, b, e in zip(x.shape[2:], begin, end, strict=True))
    return net.op("Pad", [x, pads], (*x.shape[:2], *sizes))


def gated(net: FloatGraph, x: Tensor) -> Tensor:
    """Squeeze and excite: channels times what a product makes of their averages."""
    n, c, *sizes = x.shape
    ones = tuple(1 for _ in sizes)
    mean = net.op("GlobalAveragePool", [x], (n, c, *ones))
    weight = net.weight((c, c, *ones), c)
    made = net.op("Conv", [mean, weight, net.constant(net.normal((c,)))], mean.shape)
    gate = net.op(net.pick(["Sigmoid", "HardSigmoid"]), [made], mean.shape)
    return net.op("Mul", [x, gate] if net.chance(0.5) else [gate, x], x.shape)


def transposed(net: FloatGraph, x: Tensor) -> Tensor:
    """Height and width exchanged; or channels last, a softmax, and first again."""
    n, c, *sizes = x.shape
    if len(sizes) != 2:
        return x
    if net.chance(0.5):
        return net.op("Transpose", [x], (n, c, sizes[1], sizes[0]), perm=(0, 1, 3, 2))
    last = net.op("Transpose", [x], (n, *sizes, c), perm=(0, 2, 3, 1))
    done = net.op("Softmax", [last], last.shape, axis=-1) if net.chance(0.4) else last
    return net.op("Transpose", [done], x.shape, perm=(0, 3, 1, 2))


def shuffled(net: FloatGraph, x: Tensor) -> Tensor:
    """Channels of two halves by turns, as ShuffleNet has it."""
    n, c, *sizes = x.shape
    if c % 2 or len(sizes) != 2:
        return x
    apart = reshaped(net, x, (n, 2, c // 2, *sizes))
    turned = net.op("Transpose", [apart], (n, c // 2, 2, *sizes), perm=(0, 2, 1, 3, 4))
    return reshaped(net, turned, x.shape)


def reshaped(net: FloatGraph, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """In another shape, one of whose sizes the operator may have to find out."""
    wanted = np.array(shape, np.int64)
    if net.chance(0.5):
        wanted[int(net.rng.integers(len(shape)))] = -1
    return net.op("Reshape", [x, net.constant(wanted)], shape)


def flat(net: FloatGraph, x: Tensor) -> Tensor:
    """(n, everything else)."""
    n, rest = x.shape[0], math.prod(x.shape[1:])
    if net.chance(0.5):
        return net.op("Flatten", [x], (n, rest))
    return reshaped(net, x, (n, rest))


def dense(net: FloatGraph, x: Tensor) -> Tensor | None:
    """A product with constant weights, behind whatever dimensions; None where it is too large."""
    c, made = x.shape[-1], int(net.pick([4, 7, 10, 16, 32, 33]))
    macs = math.prod(x.shape) * made
    if net.macs + macs > MOST_MACS:
        return None
    net.macs += macs
    shape, bias = (*x.shape[:-1], made), net.normal((made,)) * np.float32(0.3)
    if len(x.shape) == 2 and net.chance(0.6):
        turned = int(net.pick([0, 1]))
        weight = net.weight((made, c) if turned else (c, made), c)
        reads: list[Tensor | str] = [x, weight]
        if net.chance(0.8):
            reads.append(net.constant(bias))
        factors = {"alpha": 0.5, "beta": 2.0} if net.chance(0.15) else {}
        return net.op("Gemm", reads, shape, transB=turned, **factors)
    y = net.op("MatMul", [x, net.weight((c, made), c)], shape)
    return net.op("Add", [y, net.constant(bias)], shape) if net.chance(0.6) else y


def attention(net: FloatGraph, x: Tensor) -> Tensor | None:
    """One head over rows (n, rows, channels); None where it is too large."""
    n, rows = x.shape[:2]
    made = [dense(net, x) for _ in range(3)]
    if any(each is None for each in made) or len({each.shape for each in made if each}) > 1:
        return None
    query, key, value = (each for each in made if each is not None)
    d = query.shape[-1]
    net.macs += 2 * n * rows * rows * d
    turned = net.op("Transpose", [key], (n, d, rows), perm=(0, 2, 1))
    scores = net.op("MatMul", [query, turned], (n, rows, rows))
    root = net.constant(np.float32(math.sqrt(d)))
    scores = net.op("Div", [scores, root], scores.shape)
    shares = net.op("Softmax", [scores], scores.shape, axis=-1)
    return net.op("MatMul", [shares, value], value.shape)
