"""Parts of small random float networks: ONNX operators on tensors of known shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """Name and shape of a tensor. The batch is the first axis."""

    name: str
    shape: Shape


class FloatGraph:
    """A random float network under construction.

    Attributes:
        rng: random generator of all random choices.
        opset: ONNX opset of the network.
        macs: multiply-accumulates of one inference so far.
        inputs: inputs of the network so far.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = int(self.rng.choice([11, 13, 15, 17, 19, 21]))
        self.macs = 0
        self.inputs: list[Tensor] = []
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def input(self, shape: Shape) -> Tensor:
        """Add a float input to the network."""
        tensor = Tensor(f"x{len(self.inputs)}", shape)
        self.inputs.append(tensor)
        return tensor

    def constant(self, value: Any) -> str:
        """Add an initializer and return its name."""
        name = f"k{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, shape: Shape, reads: int) -> str:
        """Add random weights of a product that sums `reads` values, and return their name.

        Their standard deviation is 1/√reads, so that the results are as large as the data.
        """
        return self.constant(self.normal(shape) / np.float32(math.sqrt(reads)))

    def normal(self, shape: Shape) -> NDArray[np.float32]:
        """Draw standard normal values in the given shape."""
        return self.rng.standard_normal(shape, dtype=np.float32)

    def op(self, kind: str, reads: Sequence[Tensor | str], shape: Shape, **given: Any) -> Tensor:
        """Add a node with a single output of shape `shape`, and return the output."""
        name = f"{kind.lower()}{len(self._nodes)}"
        inputs = [read if isinstance(read, str) else read.name for read in reads]
        self._nodes.append(helper.make_node(kind, inputs, [f"{name}_y"], name=name, **given))
        return Tensor(f"{name}_y", shape)

    def pick(self, values: Sequence[Any]) -> Any:
        """Return one of the values. All values have the same probability."""
        return values[int(self.rng.integers(len(values)))]

    def chance(self, share: float) -> bool:
        """Return True with probability `share`."""
        return bool(self.rng.random() < share)

    def model(self, outputs: Sequence[Tensor]) -> onnx.ModelProto:
        """Return the finished model, after checking it with the ONNX checker."""
        graph = helper.make_graph(
            self._nodes, "drawn", [_info(input_) for input_ in self.inputs],
            [_info(output) for output in outputs], self._constants,
        )  # fmt: skip
        opset = helper.make_opsetid("", self.opset)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
        onnx.checker.check_model(model, full_check=True)
        return model


def _info(tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.shape)


MOST_MACS = 1_500_000
"""Maximum number of multiply-accumulates of convolutions and products in a network."""


@dataclass(frozen=True)
class Window:
    """ONNX attributes of a sliding window, and the resulting size of each axis."""

    attributes: dict[str, Any]
    results: Shape

    @property
    def kernel(self) -> Shape:
        """Size of the window along each axis."""
        return tuple(self.attributes["kernel_shape"])


def draw_window(net: FloatGraph, sizes: Shape, *, pool: bool) -> Window | None:
    """Draw a window over an image of `sizes` pixels; None if the window does not fit."""
    rank = len(sizes)
    kernel = _draw_per_axis(net, rank, [2, 2, 3] if pool else [1, 1, 3, 3, 3, 2, 5])
    stride = _draw_per_axis(net, rank, [1, 2, 2] if pool else [1, 1, 1, 2])
    dilation = _draw_per_axis(net, rank, [1, 1, 1, 1, 2]) if not pool else (1,) * rank
    reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    given: dict[str, Any] = {"kernel_shape": kernel, "strides": stride}
    if not pool:
        given["dilations"] = dilation
    ceil = pool and net.chance(0.3)
    form = net.pick(["same", "same", "none", "drawn", "SAME_UPPER", "SAME_LOWER", "VALID"])
    begin, end = (0,) * rank, (0,) * rank
    if form in ("same", "drawn"):
        least = tuple(k - 1 for k in kernel) if pool else tuple(r - 1 for r in reach)
        if form == "same":
            begin = tuple(size // 2 for size in least)
            end = (
                begin
                if net.chance(0.7)
                else tuple(s - b for s, b in zip(least, begin, strict=True))
            )
        else:
            begin, end = (
                tuple(int(net.rng.integers(0, min(size, 3) + 1)) for size in least)
                for _ in range(2)
            )
        given["pads"] = (*begin, *end)
    elif form != "none":
        given["auto_pad"], ceil = form, False
        if form != "VALID" and not pool:  # onnxruntime runs no dilation with these
            given["dilations"], reach = (1,) * rank, kernel
    if ceil:
        given["ceil_mode"] = 1
    results = []
    for size, r, s, b, e in zip(sizes, reach, stride, begin, end, strict=True):
        if form.startswith("SAME"):
            results.append(-(-size // s))
            continue
        room = size + b + e - r
        if room < 0:
            return None
        made = (-(-room // s) if ceil else room // s) + 1
        if ceil and (made - 1) * s >= size + b:  # a window of padding alone is left out
            made -= 1
        results.append(made)
    return Window(given, tuple(results))


def _draw_per_axis(net: FloatGraph, rank: int, values: list[int]) -> Shape:
    """Draw a value for each axis; usually the same value for all axes."""
    if net.chance(0.2):
        return tuple(int(net.pick(values)) for _ in range(rank))
    return (int(net.pick(values)),) * rank


class Convolutions:
    """Adds random convolutions to one network. Some of them share their weights."""

    def __init__(self, net: FloatGraph) -> None:
        self.net = net
        self._known: dict[Shape, str] = {}

    def conv(self, x: Tensor, channels: int | None = None) -> Tensor | None:
        """Add a grouped, depthwise or plain convolution; None if it does not fit or is too large.

        With `channels`, the result has this number of channels and the spatial size of `x`.
        """
        net, (n, c, *sizes) = self.net, x.shape
        if channels is None:
            window = draw_window(net, tuple(sizes), pool=False)
        else:
            window = _same_size(net, tuple(sizes))
        if window is None or not math.prod(window.results):
            return None
        groups = self._groups(c) if channels is None else 1
        if groups == c and c > 1:
            made = c * int(net.pick([1, 1, 2]))
        elif groups > 1:
            made = groups * int(net.pick([1, 3, 8]))
        else:
            made = channels or int(net.pick([3, 5, 8, 16, 16, 17, 24, 32, 40]))
        shape = (made, c // groups, *window.kernel)
        macs = math.prod(window.results) * math.prod(shape) * n
        if net.macs + macs > MOST_MACS:
            return None
        net.macs += macs
        given = dict(window.attributes)
        if groups > 1:
            given["group"] = groups
        if net.chance(0.3):
            given.pop("kernel_shape")  # the weights say it, too
        reads: list[Tensor | str] = [x, self._weight(shape)]
        if net.chance(0.7):
            reads.append(net.constant(net.normal((made,)) * np.float32(0.3)))
        return net.op("Conv", reads, (n, made, *window.results), **given)

    def _weight(self, shape: Shape) -> str:
        if shape in self._known and self.net.chance(0.5):
            return self._known[shape]
        self._known[shape] = self.net.weight(shape, math.prod(shape[1:]))
        return self._known[shape]

    def _groups(self, channels: int) -> int:
        some = [item for item in (2, 3, 4, 8) if not channels % item and item < channels]
        kind = self.net.pick(["plain"] * 5 + ["depthwise", "depthwise", "grouped"])
        if kind == "grouped" and some:
            return int(self.net.pick(some))
        return channels if kind == "depthwise" else 1


def _same_size(net: FloatGraph, sizes: Shape) -> Window:
    kernel = (int(net.pick([1, 3])),) * len(sizes)
    pads = tuple(k // 2 for k in kernel) * 2
    return Window({"kernel_shape": kernel, "pads": pads}, sizes)


def pool(net: FloatGraph, x: Tensor) -> Tensor | None:
    """Add a max or average pool; None if its window does not fit."""
    n, c, *sizes = x.shape
    if net.chance(0.15):
        kind = net.pick(["GlobalAveragePool", "GlobalMaxPool"])
        return net.op(kind, [x], (n, c, *(1 for _ in sizes)))
    window = draw_window(net, tuple(sizes), pool=True)
    if window is None or not math.prod(window.results):
        return None
    given = dict(window.attributes)
    if net.chance(0.5):
        return net.op("MaxPool", [x], (n, c, *window.results), **given)
    if net.opset < 19 and given.get("ceil_mode"):
        return None  # what is divided by there was only settled later
    given["count_include_pad"] = int(net.pick([0, 1]))
    return net.op("AveragePool", [x], (n, c, *window.results), **given)


def activation(net: FloatGraph, x: Tensor) -> Tensor:
    """Add one of the usual activation functions, in a form that exporters write."""
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
        bounds = [net.constant(np.full(shape, item, np.float32)) for item in (low, high)]
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
    """Add a batch normalisation in inference mode. Some of its scales are negative."""
    c = x.shape[1]
    gain, shift, mean = (net.normal((c,)) for _ in range(3))
    signs = np.sign(gain) if net.chance(0.3) else np.ones(c)
    variance = net.rng.uniform(0.5, 2.0, c)
    values = (signs * (0.5 + np.abs(gain) / 2), shift * 0.3, mean * 0.3, variance)
    reads = [net.constant(item.astype(np.float32)) for item in values]
    return net.op("BatchNormalization", [x, *reads], x.shape)


def add_constant(net: FloatGraph, x: Tensor) -> Tensor:
    """Add a scalar, one constant per channel, or a whole constant tensor to `x`."""
    c, ones = x.shape[1], (1,) * (len(x.shape) - 2)
    shape = net.pick([(), (1, c, *ones), (c, *ones), (1, *x.shape[1:])])
    return net.op("Add", [x, net.constant(net.normal(shape))], x.shape)


def scaled(net: FloatGraph, x: Tensor) -> Tensor:
    """Multiply `x` by one random constant, or by one constant per channel."""
    c, ones = x.shape[1], (1,) * (len(x.shape) - 2)
    shape = net.pick([(), (1, c, *ones)])
    return net.op("Mul", [x, net.constant(net.normal(shape))], x.shape)


def slice_channels(net: FloatGraph, x: Tensor) -> Tensor:
    """Slice adjacent channels of `x`, at the border of a hardware block where possible."""
    c = x.shape[1]
    begin = int(net.pick([0, c // 2, min(16, c - 1), 1 % c]))
    end = int(net.rng.integers(begin + 1, c + 1)) if net.chance(0.5) else c
    bounds = [net.constant(np.array([item], np.int64)) for item in (begin, end, 1)]
    return net.op("Slice", [x, *bounds], (x.shape[0], end - begin, *x.shape[2:]))


def crop(net: FloatGraph, x: Tensor) -> Tensor:
    """Remove the first row of pixels (the first index of axis 2) with a Slice."""
    size = x.shape[2]
    if size < 2:
        return x
    bounds = [net.constant(np.array([item], np.int64)) for item in (1, size, 2)]
    return net.op("Slice", [x, *bounds], (*x.shape[:2], size - 1, *x.shape[3:]))


def pad(net: FloatGraph, x: Tensor) -> Tensor:
    """Pad `x` with zeros by a separate Pad operator."""
    rank = len(x.shape) - 2
    begin, end = ([int(net.rng.integers(0, 2)) for _ in range(rank)] for _ in range(2))
    pads = net.constant(np.array([0, 0, *begin, 0, 0, *end], np.int64))
    sizes = (s + b + e for s, b, e in zip(x.shape[2:], begin, end, strict=True))
    return net.op("Pad", [x, pads], (*x.shape[:2], *sizes))


def gated(net: FloatGraph, x: Tensor) -> Tensor:
    """Add a squeeze-and-excite block: scale the channels by a function of their averages."""
    n, c, *sizes = x.shape
    ones = tuple(1 for _ in sizes)
    mean = net.op("GlobalAveragePool", [x], (n, c, *ones))
    weight = net.weight((c, c, *ones), c)
    made = net.op("Conv", [mean, weight, net.constant(net.normal((c,)))], mean.shape)
    gate = net.op(net.pick(["Sigmoid", "HardSigmoid"]), [made], mean.shape)
    return net.op("Mul", [x, gate] if net.chance(0.5) else [gate, x], x.shape)


def transposed(net: FloatGraph, x: Tensor) -> Tensor:
    """Exchange height and width, or move the channels last and back, with a softmax in between."""
    n, c, *sizes = x.shape
    if len(sizes) != 2:
        return x
    if net.chance(0.5):
        return net.op("Transpose", [x], (n, c, sizes[1], sizes[0]), perm=(0, 1, 3, 2))
    last = net.op("Transpose", [x], (n, *sizes, c), perm=(0, 2, 3, 1))
    done = net.op("Softmax", [last], last.shape, axis=-1) if net.chance(0.4) else last
    return net.op("Transpose", [done], x.shape, perm=(0, 3, 1, 2))


def shuffle_channels(net: FloatGraph, x: Tensor) -> Tensor:
    """Interleave the channels of the two halves, as ShuffleNet does."""
    n, c, *sizes = x.shape
    if c % 2 or len(sizes) != 2:
        return x
    apart = reshape(net, x, (n, 2, c // 2, *sizes))
    turned = net.op("Transpose", [apart], (n, c // 2, 2, *sizes), perm=(0, 2, 1, 3, 4))
    return reshape(net, turned, x.shape)


def reshape(net: FloatGraph, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Reshape `x`. Sometimes one size is -1, so that the operator has to infer it."""
    wanted = np.array(shape, np.int64)
    if net.chance(0.5):
        wanted[int(net.rng.integers(len(shape)))] = -1
    return net.op("Reshape", [x, net.constant(wanted)], shape)


def flat(net: FloatGraph, x: Tensor) -> Tensor:
    """Flatten `x` to the shape (n, all other axes)."""
    n, rest = x.shape[0], math.prod(x.shape[1:])
    if net.chance(0.5):
        return net.op("Flatten", [x], (n, rest))
    return reshape(net, x, (n, rest))


def dense(net: FloatGraph, x: Tensor) -> Tensor | None:
    """Add a product with constant weights over the last axis; None if it is too large."""
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
    """Add an attention head over `x`, of shape (n, rows, channels); None if it is too large."""
    n, rows = x.shape[:2]
    made = [dense(net, x) for _ in range(3)]
    if any(item is None for item in made) or len({item.shape for item in made if item}) > 1:
        return None
    query, key, value = (item for item in made if item is not None)
    d = query.shape[-1]
    net.macs += 2 * n * rows * rows * d
    turned = net.op("Transpose", [key], (n, d, rows), perm=(0, 2, 1))
    scores = net.op("MatMul", [query, turned], (n, rows, rows))
    root = net.constant(np.float32(math.sqrt(d)))
    scores = net.op("Div", [scores, root], scores.shape)
    shares = net.op("Softmax", [scores], scores.shape, axis=-1)
    return net.op("MatMul", [shares, value], value.shape)
