"""Implement pools, linear resizes and local response normalisations of images as TE functions.

Pools read packed images, (n, c / block, h, w, block). TVM would first copy the image into a padded
image. Here, a pixel of the padding is replaced by the nearest pixel of the image, which does not
change a maximum, and counts as zero in a mean. The loops over the pixels of a window are unrolled,
and the channels of a block are computed as a vector.

Resizes interpolate first along each row and then along each column. TVM's operator reads four
pixels per result pixel and computes their positions each time. Each of the two steps reads only two
pixels per result, and the first step covers only the rows of the source image. Positions and
weights are computed at compile time.

A local response normalisation is x / (bias + alpha / size * (sum of squares of `size` neighbouring
channels)) ** beta (Krizhevsky et al., ImageNet Classification with Deep Convolutional Neural
Networks, 2012). TVM's importer expresses it as eight operators, including a 3-D pool and a power
that is computed element by element.
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
from tilewright.networks.compiled.vector_math import bfloat16_to_float32, float32_to_bfloat16
from tilewright.networks.relax.bindings import Binding, FlatGraph
from tilewright.networks.relax.nan_propagation import are_numbers

# -- pools -------------------------------------------------------------------------------------


MOST_PIXELS = 25
"""Maximum number of pixels in a pooling window that is unrolled. We chose the size of a 5×5
window."""
Pixel = tuple[Expression, Expression]


@dataclass(frozen=True)
class PoolWindow:
    """Parameters of a pool.

    Attributes:
        out: rows and columns of the result.
        kernel: rows and columns of a window.
        stride: vertical and horizontal stride.
        before: padding at the top and on the left.
        dilation: vertical and horizontal distance between neighbouring pixels of a window.
        mean: whether the pool computes means instead of maxima.
        padded: whether a mean counts pixels of the padding as zeros. If False, a mean ignores them.
    """

    out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    before: tuple[int, int]
    dilation: tuple[int, int]
    mean: bool
    padded: bool

    def is_inside(self, size: Sequence[int]) -> bool:
        """Return whether all windows lie inside an image of the given size, without padding.

        Args:
            size: rows and columns of the image.
        """
        last = [
            (out - 1) * stride - before + (kernel - 1) * apart
            for out, stride, before, kernel, apart in zip(
                self.out, self.stride, self.before, self.kernel, self.dilation, strict=True
            )
        ]
        return not any(self.before) and all(
            position < length for position, length in zip(last, size, strict=True)
        )


def pool(image: Tensor, window: PoolWindow, bfloat16: bool) -> Tensor:
    """Apply a pool to a packed image and return the result as a TE tensor.

    Args:
        image: packed image (n, c / block, h, w, block), in float32, or in bfloat16 stored as
            uint16.
        window: parameters of the pool.
        bfloat16: return bfloat16 stored as uint16 instead of float32.

    Returns:
        Tensor of shape (n, c / block, out h, out w, block).
    """
    n, blocks, *size, block = map(int, image.shape)
    inside = window.is_inside(size)
    lowest = tirx.const(-np.inf, "float32")
    read = bfloat16_to_float32 if image.dtype == "uint16" else _same

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
            at = (row, column) if inside else _nearest_pixel((row, column), size)
            number = read(image[(n, c, *at, i)])
            if not inside and window.mean:
                number = number * tirx.Cast("float32", _is_within((row, column), size))
            elif not inside and max(window.dilation) > 1:
                # The nearest pixel inside may not belong to the window.
                number = tirx.Select(_is_within((row, column), size), number, lowest)
            taps.append(number)
        pooled = reduce(_plus if window.mean else tirx.max, taps)
        if window.mean:
            pooled = pooled * _share(window, (rows, columns), size, inside)
        else:
            # One comparison per pair of pixels. A maximum that propagates NaN takes two per pixel.
            pooled = tirx.Select(are_numbers(taps), pooled, tirx.const(np.nan, "float32"))
        return float32_to_bfloat16(pooled) if bfloat16 else pooled

    return te.compute((n, blocks, *window.out, block), value, name="pool")


def _same(number: Expression) -> Expression:
    return number


def _plus(one: Expression, other: Expression) -> Expression:
    return one + other


def _nearest_pixel(place: Pixel, size: Sequence[int]) -> Pixel:
    """Return the pixel of an image that is nearest to a position.

    Args:
        place: row and column of the position, which may lie in the padding around the image.
        size: rows and columns of the image.
    """
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
    """Return the factor that turns the sum of a window into the mean.

    Args:
        window: parameters of the pool.
        taps: the window's rows and its columns, as indices in the image.
        size: rows and columns of the image.
        inside: whether all windows lie inside the image.
    """
    if inside or window.padded:
        return tirx.const(1 / (window.kernel[0] * window.kernel[1]), "float32")
    counts = [
        reduce(_plus, [tirx.Cast("int32", tirx.all(at >= 0, at < of)) for at in places])
        for places, of in zip(taps, size, strict=True)
    ]
    return tirx.const(1.0, "float32") / tirx.Cast("float32", counts[0] * counts[1])


# -- linear resizes ----------------------------------------------------------------------------


MODES = frozenset(("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"))
"""Coordinate transformation modes of ONNX's Resize that are supported."""


@dataclass(frozen=True)
class ResizeTaps:
    """Source pixels and weights of a linear interpolation along one axis.

    Element i of the result is source[first[i]] · (1 − share[i]) + source[second[i]] · share[i].

    Attributes:
        first: index of the first source pixel, int32 of shape (length of the result,).
        second: index of the second source pixel, of the same shape and type.
        share: weight of the second source pixel, float32 of the same shape.
    """

    first: Array
    second: Array
    share: Array


def linear_taps(length: int, wanted: int, mode: str) -> ResizeTaps:
    """Return the source pixels and weights that resize an axis linearly.

    Args:
        length: length of the axis.
        wanted: length of the result.
        mode: ONNX's coordinate transformation mode, one of `MODES`.
    """
    indices = np.arange(wanted, dtype=np.float64)
    if mode == "asymmetric":
        positions = indices * length / wanted
    elif mode == "align_corners":
        positions = indices * (length - 1) / max(wanted - 1, 1)
    elif mode == "pytorch_half_pixel" and wanted == 1:
        positions = np.zeros(1)
    else:
        positions = (indices + 0.5) * length / wanted - 0.5
    first = np.floor(positions)
    lower, upper = (np.clip(tap, 0, length - 1).astype(np.int32) for tap in (first, first + 1))
    return ResizeTaps(lower, upper, (positions - first).astype(np.float32))


def interpolate_along(axis: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return a TE function that interpolates an image along one axis.

    The function takes an image, (n, c, h, w) or packed (n, c / block, h, w, block), and the three
    arrays of `ResizeTaps` as tensors.

    Args:
        axis: number of the axis.
    """

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
    """Return whether the channels of a block are worth computing as a vector.

    Args:
        block: channels per block. It must be a power of two and at least 8.
    """
    return block >= 8 and block.bit_count() == 1


# -- local response normalisation --------------------------------------------------------------


CHAIN = (
    "relax.power", "relax.add", "relax.multiply", "relax.squeeze", "relax.nn.avg_pool3d",
    "relax.expand_dims", "relax.multiply",
)  # fmt: skip
"""Operators of a local response normalisation between the final division and its data, in the order
from the division back to the data."""
USUAL = 0.75
"""Exponent for which the power is computed with two square roots: x^0.75 = √x · √√x."""


@dataclass(frozen=True, eq=False)
class LocalResponse:
    """Parameters of a local response normalisation.

    Attributes:
        source: variable of the image (n, c, h, w).
        size: number of channels in the window.
        alpha: factor of the sum of squares, before division by `size`.
        beta: the exponent.
        bias: constant that is added to the scaled sum.
    """

    source: RelaxVar
    size: int
    alpha: float
    beta: float
    bias: float


def local_responses(flat: FlatGraph) -> dict[RelaxVar, LocalResponse]:
    """Find all local response normalisations of a network.

    Args:
        flat: the network.

    Returns:
        The normalisations, by variable of the result.
    """
    responses = {}
    for binding in flat.bindings:
        if binding.op == "relax.divide" and (response := _response_of(flat, binding)) is not None:
            responses[binding.var] = response
    return responses


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
        operands = [arg for arg in binding.args if isinstance(arg, relax.Var)]
        if binding.op == "relax.nn.avg_pool3d":
            pool = binding
        at = operands[0] if operands else None
        square = all(other.same_as(source) for other in operands)
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
    """Return the number of neighbouring channels over which a 3-D average pool sums.

    Args:
        pool: the pool, which is one of the operators of a local response normalisation.

    Returns:
        The number of channels. 0 if the pool also reduces rows or columns, or if its strides,
        dilation or padding are not those of a local response normalisation.
    """
    attrs, (n, one, *_) = pool.value.attrs, pool.shape or (0, 0)
    size = int(attrs.pool_size[0])
    pads = [int(pad) for pad in attrs.padding]
    expected = [(size - 1) // 2, 0, 0, size // 2, 0, 0]
    usual = list(map(int, attrs.strides)) == [1, 1, 1] == list(map(int, attrs.dilation))
    alone = list(map(int, attrs.pool_size[1:])) == [1, 1] and one == 1 and n > 0
    return size if usual and alone and pads == expected and attrs.count_include_pad else 0


def local_response_norm(image: Tensor, response: LocalResponse) -> Tensor:
    """Compute a local response normalisation as a TE tensor.

    Args:
        image: float32 image of shape (n, c, h, w).
        response: parameters of the normalisation.

    Returns:
        Tensor with the shape of `image`.
    """
    _, channels, *_ = map(int, image.shape)
    share = np.float32(response.alpha / response.size)

    def value(n: Expression, c: Expression, y: Expression, x: Expression) -> Expression:
        total: Expression = tirx.const(0.0, "float32")
        for tap in range(-((response.size - 1) // 2), response.size // 2 + 1):
            at = c + tap
            near = image[n, tirx.max(tirx.min(at, channels - 1), 0), y, x]
            inside = tirx.Cast("float32", tirx.all(at >= 0, at < channels))
            total = total + near * near * inside
        total = total * tirx.const(float(share), "float32") + tirx.const(response.bias, "float32")
        if response.beta == USUAL:
            root = tirx.sqrt(total)
            return image[n, c, y, x] / (root * tirx.sqrt(root))
        return image[n, c, y, x] / tirx.pow(total, tirx.const(response.beta, "float32"))

    return te.compute(image.shape, value, name="local_response")
