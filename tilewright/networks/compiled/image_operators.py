"""Writes pools, linear resizes and local response normalisations of images.

Pools read images whose channels lie in blocks, (n, c / block, h, w, block). TVM copies an image
between its padding before it pools it. Here a pixel of the padding is read from the border instead,
which changes no maximum, and counts nothing in a mean. All pixels of a window are written out; its
channels are vectors.

Resizes go first along rows and then along columns. TVM's operator reads four pixels for each of the
result, and computes where they are each time. Two passes read two each, the first of them for as
many rows as the image has. Places and weights are computed when the network is compiled.

A local response normalisation is x / (bias + alpha / size * (squares of `size` channels around
it)) ** beta. Krizhevsky et al., ImageNet Classification with Deep Convolutional Neural Networks,
2012. TVM's importer writes eight operators for it, among them a pool of volumes and a power that is
computed number by number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import GenericConst

from tilewright.core.tvm_types import Array, Condition, Expression, RelaxVar, Tensor
from tilewright.networks.compiled.vector_math import narrowed, widened
from tilewright.networks.relax.bindings import Binding, FlatGraph
from tilewright.networks.relax.nan_propagation import are_numbers

# -- pools -------------------------------------------------------------------------------------


MOST_PIXELS = 25
"""Of a window that is written out: our choice, 5×5."""
Pixel = tuple[Expression, Expression]


@dataclass(frozen=True)
class PoolWindow:
    """What a pool reads for a pixel of its result of `out` rows and columns: `kernel` pixels,
    `dilation` apart, from `stride` times its place less `before` on. Of a mean, `padded` says
    whether the padding counts, as zeros."""

    out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    before: tuple[int, int]
    dilation: tuple[int, int]
    mean: bool
    padded: bool

    def is_inside(self, size: Sequence[int]) -> bool:
        """Whether no window reaches into the padding of an image of this size."""
        last = [
            (out - 1) * stride - before + (kernel - 1) * apart
            for out, stride, before, kernel, apart in zip(
                self.out, self.stride, self.before, self.kernel, self.dilation, strict=True
            )
        ]
        return not any(self.before) and all(at < of for at, of in zip(last, size, strict=True))


def pool(image: Tensor, window: PoolWindow, bfloat16: bool) -> Tensor:
    """The result (n, c / block, out h, out w, block) of an image (n, c / block, h, w, block).
    Either is float32, or uint16 that holds bfloat16, the result where `bfloat16` says so."""
    n, blocks, *size, block = map(int, image.shape)
    inside = window.is_inside(size)
    lowest = tirx.const(-np.inf, "float32")
    read = widened if image.dtype == "uint16" else _same

    def value(
        n: Expression, c: Expression, y: Expression, x: Expression, i: Expression
    ) -> Expression:
        rows, columns = (
            [place * stride - before + tap * apart for tap in range(kernel)]
            for place, stride, before, kernel, apart in zip(
                (y, x), window.stride, window.before, window.kernel, window.dilation, strict=True
            )
        )
        taps = []
        for row, column in product(rows, columns):
            at = (row, column) if inside else _nearest((row, column), size)
            found = read(image[(n, c, *at, i)])
            if not inside and window.mean:
                found = found * tirx.Cast("float32", _is_within((row, column), size))
            elif not inside and max(window.dilation) > 1:  # the border may be no pixel of it
                found = tirx.Select(_is_within((row, column), size), found, lowest)
            taps.append(found)
        made = reduce(_plus if window.mean else tirx.max, taps)
        if window.mean:
            made = made * _share(window, (rows, columns), size, inside)
        else:  # one comparison a pair of pixels, where a maximum that keeps NaN takes two a pixel
            made = tirx.Select(are_numbers(taps), made, tirx.const(np.nan, "float32"))
        return narrowed(made) if bfloat16 else made

    return te.compute((n, blocks, *window.out, block), value, name="pool")


def _same(number: Expression) -> Expression:
    return number


def _plus(one: Expression, other: Expression) -> Expression:
    return one + other


def _nearest(place: Pixel, size: Sequence[int]) -> Pixel:
    """The pixel of the image that is nearest to one of its padding."""
    row, column = (tirx.max(tirx.min(at, of - 1), 0) for at, of in zip(place, size, strict=True))
    return row, column


def _is_within(place: Pixel, size: Sequence[int]) -> Condition:
    tests = [(at >= 0, at < of) for at, of in zip(place, size, strict=True)]
    return tirx.all(*(test for pair in tests for test in pair))


def _share(
    window: PoolWindow,
    taps: tuple[list[Expression], list[Expression]],
    size: Sequence[int],
    inside: bool,
) -> Expression:
    """What a value is multiplied by, for their mean."""
    if inside or window.padded:
        return tirx.const(1 / (window.kernel[0] * window.kernel[1]), "float32")
    counts = [
        reduce(_plus, [tirx.Cast("int32", tirx.all(at >= 0, at < of)) for at in places])
        for places, of in zip(taps, size, strict=True)
    ]
    return tirx.const(1.0, "float32") / tirx.Cast("float32", counts[0] * counts[1])


# -- linear resizes ----------------------------------------------------------------------------


MODES = frozenset(("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"))


@dataclass(frozen=True)
class ResizeTaps:
    """Of an axis: the pixels that each of the result is between, `first` and `second`, and the
    share of the second, each of shape (length of the result,)."""

    first: Array
    second: Array
    share: Array


def linear_taps(length: int, wanted: int, mode: str) -> ResizeTaps:
    """Of an axis of `length` that becomes `wanted` long, by ONNX's coordinate transformation modes
    `MODES`."""
    places = np.arange(wanted, dtype=np.float64)
    if mode == "asymmetric":
        at = places * length / wanted
    elif mode == "align_corners":
        at = places * (length - 1) / max(wanted - 1, 1)
    elif mode == "pytorch_half_pixel" and wanted == 1:
        at = np.zeros(1)
    else:
        at = (places + 0.5) * length / wanted - 0.5
    first = np.floor(at)
    one, other = (np.clip(each, 0, length - 1).astype(np.int32) for each in (first, first + 1))
    return ResizeTaps(one, other, (at - first).astype(np.float32))


def along(axis: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Writes the pass along an axis of an image (n, c, h, w), or of one in blocks of channels
    (n, c / block, h, w, block); `ResizeTaps` are tensors."""

    def computed(image: Tensor, first: Tensor, second: Tensor, share: Tensor) -> Tensor:
        def value(*place: Expression) -> Expression:
            at = place[axis]
            one, other = (
                image[(*place[:axis], taps[at], *place[axis + 1 :])] for taps in (first, second)
            )
            return one + (other - one) * share[at]

        shape = [int(size) for size in image.shape]
        shape[axis] = int(first.shape[0])
        return te.compute(tuple(shape), value, name="resize")

    return computed


def is_vector(block: int) -> bool:
    """Whether channels of a block are worth computing beside each other."""
    return block >= 8 and block.bit_count() == 1


# -- local response normalisation --------------------------------------------------------------


CHAIN = (
    "relax.power", "relax.add", "relax.multiply", "relax.squeeze", "relax.nn.avg_pool3d",
    "relax.expand_dims", "relax.multiply",
)  # fmt: skip
"""What lies between the result, a quotient, and the data, the last first."""
USUAL = 0.75
"""An exponent that square roots give."""


@dataclass(frozen=True, eq=False)
class LocalResponse:
    """Of the image `source` (n, c, h, w)."""

    source: RelaxVar
    size: int
    alpha: float
    beta: float
    bias: float


def local_responses(flat: FlatGraph) -> dict[RelaxVar, LocalResponse]:
    """All in a network, by the variable of the result, (n, c, h, w)."""
    found = {}
    for binding in flat.bindings:
        if binding.op == "relax.divide" and (made := _response_of(flat, binding)) is not None:
            found[binding.var] = made
    return found


def _response_of(flat: FlatGraph, quotient: Binding) -> LocalResponse | None:
    source, at = quotient.args
    numbers: list[float] = []
    pool: Binding | None = None
    for operator in CHAIN:
        binding = flat.by_var.get(at) if isinstance(at, relax.Var) else None
        if binding is None or binding.op != operator or len(flat.users.get(at, [])) != 1:
            return None
        constants = [arg for arg in binding.args if isinstance(arg, GenericConst)]
        if any(constant.value.numpy().size != 1 for constant in constants):
            return None
        numbers += [float(constant.value.numpy().item()) for constant in constants]
        others = [arg for arg in binding.args if isinstance(arg, relax.Var)]
        if binding.op == "relax.nn.avg_pool3d":
            pool = binding
        at = others[0] if others else None
        square = all(other.same_as(source) for other in others)
    if (
        len(numbers) != 3
        or pool is None
        or not square
        or quotient.shape is None
        or len(quotient.shape) != 4
    ):
        return None
    beta, bias, alpha = numbers
    size = _response_window(pool)
    return LocalResponse(source, size, alpha, beta, bias) if size else None


def _response_window(pool: Binding) -> int:
    """The channels of a pool of volumes that reads nothing else; 0 for others."""
    attrs, (n, one, *_) = pool.value.attrs, pool.shape or (0, 0)
    size = int(attrs.pool_size[0])
    pads = [int(pad) for pad in attrs.padding]
    expected = [(size - 1) // 2, 0, 0, size // 2, 0, 0]
    usual = list(map(int, attrs.strides)) == [1, 1, 1] == list(map(int, attrs.dilation))
    alone = list(map(int, attrs.pool_size[1:])) == [1, 1] and one == 1 and n > 0
    return size if usual and alone and pads == expected and attrs.count_include_pad else 0


def normalised(image: Tensor, found: LocalResponse) -> Tensor:
    """(n, c, h, w) of an image (n, c, h, w)."""
    _, channels, *_ = map(int, image.shape)
    share = np.float32(found.alpha / found.size)

    def value(n: Expression, c: Expression, y: Expression, x: Expression) -> Expression:
        total: Expression = tirx.const(0.0, "float32")
        for tap in range(-((found.size - 1) // 2), found.size // 2 + 1):
            at = c + tap
            near = image[n, tirx.max(tirx.min(at, channels - 1), 0), y, x]
            inside = tirx.Cast("float32", tirx.all(at >= 0, at < channels))
            total = total + near * near * inside
        total = total * tirx.const(float(share), "float32") + tirx.const(found.bias, "float32")
        if found.beta == USUAL:
            root = tirx.sqrt(total)
            return image[n, c, y, x] / (root * tirx.sqrt(root))
        return image[n, c, y, x] / tirx.pow(total, tirx.const(found.beta, "float32"))

    return te.compute(image.shape, value, name="local_response")
