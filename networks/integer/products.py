"""What multiplies in a call, in integers: workloads without epilogue, weights, exponents, and the
values they read in the shape they need."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from networks.integer.arithmetic import exponents_of
from networks.integer.walk import Tensors, View, rows_and_channels
from networks.relax import islands
from networks.relax.chains import Match, quantisation, window
from networks.relax.constants import along_channels, integers_of
from targets.averages import average_weights
from targets.capabilities import Blocks
from targets.workload import Workload

Shape = tuple[int, ...]


class NotALayer(Exception):
    """Why a call cannot be a layer; it stays with the CPU."""


@dataclass(frozen=True)
class Product:
    """What multiplies: a workload without epilogue, its weights (or the value that is packed as
    such) and their exponent, the int8 value it reads with its own, and the shape of the value it
    writes. The weights of an output channel may count in finer steps: by so many bits, `finer`
    (o,)."""

    workload: Workload
    data: str
    data_exponent: int
    shape: Shape
    weight: NDArray[np.int8] | None = None
    exponent: int = 0
    weight_from: str | None = None
    finer: NDArray[np.int64] | None = None

    @property
    def sums(self) -> int:
        """The exponent of its sums."""
        return self.data_exponent + self.exponent


@dataclass(frozen=True)
class _Weights:
    """Integers that count in 2^`exponent`; those of an output channel in finer steps, see
    `Product`."""

    integers: NDArray[Any]
    exponent: int
    finer: NDArray[np.int64] | None = None


class Products:
    """Finds them for the calls of a network. `NotALayer` is raised for what has no such form,
    `QuantisationError` for scales that are no powers of two."""

    def __init__(self, tensors: Tensors, blocks: Blocks) -> None:
        self._t = tensors
        self._blocks = blocks

    def data(self, value: Any) -> View:
        """The int8 value behind a float tensor."""
        view = self._t.real(value)
        if view is None:
            raise NotALayer("its data are no int8 tensor times a scale")
        return view

    def like(self, view: View, shape: tuple[int, ...]) -> View:
        """As a value of a shape, which a layer's residual has."""
        own = self._t.values[view.value].shape
        image = len(shape) == 4
        if own == shape or (not image and len(own) != 4 and own[-1] == shape[-1]):
            return view
        return self._t.in_shape(view, shape)

    def image(self, value: Any) -> tuple[View, tuple[int, int, int, int]]:
        """The data of an operator on images, as a value that lies as one, and its shape."""
        view = self.data(value)
        if len(view.shape) != 4:
            raise NotALayer("its data are no image")
        own = self._t.values[view.value].shape
        single = view.shape[0] == 1 == math.prod(view.shape[2:])
        if not (own == view.shape or (single and own[-1] == view.shape[1])):
            view = self._t.in_shape(view, view.shape)
        n, c, h, w = view.shape
        return view, (n, c, h, w)

    def _weights(self, value: Any, axis: int) -> _Weights:
        """Int8 weights in the shape that the operator reads, whose output channels are an axis."""
        found = integers_of(self._t.flat, value)
        if found is None:
            raise NotALayer("its weights are no int8 constants")
        integers, binding = found
        given = quantisation(binding)
        assert given is not None
        exponents = exponents_of(binding.node, given)
        if len(set(exponents.tolist())) == 1:
            return _Weights(integers, int(exponents[0]))
        each = np.moveaxis(along_channels(self._t.flat, value, exponents), axis, 0)
        own = each.reshape(len(each), -1).astype(np.int64)
        if (own != own[:, :1]).any():
            raise NotALayer("its weights have scales along what is summed")
        return _Weights(integers, int(own.max()), own.max() - own[:, 0])

    def conv2d(self, match: Match) -> Product:
        """A convolution with constant weights."""
        view, (n, c, h, w) = self.image(match.anchor.args[0])
        found = self._weights(match.anchor.args[1], 0)
        weight, attrs = found.integers, match.anchor.value.attrs
        top, left, bottom, right = (int(pad) for pad in attrs.padding)
        workload = Workload(
            "conv2d", n, c, h, w, weight.shape[0],
            kernel_h=weight.shape[2], kernel_w=weight.shape[3],
            stride_h=int(attrs.strides[0]), stride_w=int(attrs.strides[1]),
            pad_top=top, pad_left=left, pad_bottom=bottom, pad_right=right,
            dilation_h=int(attrs.dilation[0]), dilation_w=int(attrs.dilation[1]),
            groups=int(attrs.groups), epilogue=(),
        )  # fmt: skip
        shape = match.anchor.shape or ()
        return Product(
            workload, view.value, view.known, shape, weight, found.exponent, finer=found.finer
        )

    def dense(self, match: Match) -> Product:
        """A product with constant weights; of a flattened image they follow how it lies packed."""
        view = self.data(match.anchor.args[0])
        found = self._weights(match.anchor.args[1], 1)
        weight = np.ascontiguousarray(found.integers.T)[:, :, None, None]
        rows, channels = rows_and_channels(view.shape)
        own = self._t.values[view.value].shape
        if len(own) == 4 and (own[0] != 1 or rows != 1 or math.prod(own) != channels):
            view = self._t.in_shape(view, (rows, channels))
        elif len(own) == 4:
            weight = as_packed(weight, own, self._blocks.in_channels)
        elif own[-1] != channels:
            view = self._t.in_shape(view, view.shape)
        outputs, inputs = weight.shape[:2]
        workload = Workload("dense", rows, inputs, 1, 1, outputs, epilogue=())
        shape = match.anchor.shape or ()
        shape = shape if len(shape) != 4 else (rows, outputs)
        return Product(
            workload, view.value, view.known, shape, weight, found.exponent, finer=found.finer
        )

    def average(self, match: Match) -> Product:
        """A depthwise convolution with equal weights, as far as integers are."""
        view, (n, c, h, w) = self.image(match.anchor.args[0])
        read = window(match.anchor)
        if any(read.padding) and not read.count_include_pad:
            raise NotALayer("an average of fewer pixels at the border")
        taps, shift = average_weights(*read.kernel)
        workload = depthwise(n, c, h, w, read.kernel, read.strides, read.padding)
        weight = np.broadcast_to(taps, (c, 1, *read.kernel)).copy()
        shape = (n, c, workload.out_height, workload.out_width)
        return Product(workload, view.value, view.known, shape, weight, -shift)

    def identity(self, match: Match) -> Product:
        """What a relu, clip or requantisation that stands alone reads, times one."""
        return self.one_by_one(self.data(match.anchor.args[0]))

    def sum(self, match: Match) -> Product:
        """The first of a sum's operands, times one; the other is its residual."""
        return self.one_by_one(self.operands(match)[0])

    def operands(self, match: Match) -> tuple[View, View]:
        """Of a sum: the finer first, whose numbers the other's are shifted to."""
        one, two = sorted((self.data(arg) for arg in match.anchor.args[:2]), key=lambda v: v.known)
        return one, self.like(two, self._t.values[one.value].shape)

    def heads(self, match: Match) -> Iterator[Product]:
        """Of a product of two activations one a head: rows × channels of the first times the
        second, transposed as weights are, outputs × channels."""
        (one, two), node = (self.data(arg) for arg in match.anchor.args[:2]), match.anchor.node
        *_, rows, channels = one.shape
        outputs, heads = two.shape[-1], math.prod(one.shape[:-2])
        left = self._t.in_shape(one, (heads, rows, channels), f"{node}.data")
        right = self._t.in_shape(two, (heads, channels, outputs), f"{node}.weights")
        right = self._t.derived(
            right, islands.transposed, (heads, outputs, channels), f"{node}.turned"
        )
        workload = Workload("dense", rows, channels, 1, 1, outputs, epilogue=())
        for i in range(heads):
            data, weight = (
                self._t.derived(
                    side, partial(islands.part, index=i), side.shape[1:], f"{node}.{role}.{i}"
                )
                for side, role in ((left, "data"), (right, "weights"))
            )
            yield Product(
                workload, data.value, one.known, (rows, outputs), None, two.known, weight.value
            )

    def one_by_one(self, view: View) -> Product:
        """A depthwise convolution that multiplies by one, on whatever shape the value has."""
        shape = self._t.values[view.value].shape
        workload = passing(shape, self._blocks)
        weight = np.ones((workload.out_channels, 1, 1, 1), np.int8)
        return Product(workload, view.value, view.known, shape, weight)


def passing(shape: Shape, blocks: Blocks) -> Workload:
    """A depthwise convolution of one pixel's window, without epilogue, on a tensor of any shape."""
    if len(shape) == 4:
        n, c, h, w = shape
    else:
        rows, c = rows_and_channels(shape)
        n, h, w = blocks.batch, -(-rows // blocks.batch), 1
    return depthwise(n, c, h, w, (1, 1), (1, 1), (0, 0, 0, 0))


def as_packed(weight: NDArray[np.int8], image: tuple[int, ...], block: int) -> NDArray[np.int8]:
    """Weights (o, c·h·w, 1, 1) of a flattened `image` (1, c, h, w), for the image as it is packed:
    (o, ⌈c/block⌉·h·w·block, 1, 1), zero for channels that fill the last block."""
    _, c, h, w = image
    if h * w == 1:
        return weight
    blocks = -(-c // block)
    whole = np.zeros((len(weight), blocks * block, h * w), np.int8)
    whole[:, :c] = weight.reshape(len(weight), c, h * w)
    packed = whole.reshape(len(weight), blocks, block, h * w).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(packed.reshape(len(weight), -1, 1, 1))


def depthwise(
    n: int, c: int, h: int, w: int,
    kernel: tuple[int, int], strides: tuple[int, int], padding: tuple[int, int, int, int],
) -> Workload:  # fmt: skip
    """A depthwise convolution without epilogue."""
    top, left, bottom, right = padding
    return Workload(
        "conv2d", n, c, h, w, c, kernel_h=kernel[0], kernel_w=kernel[1],
        stride_h=strides[0], stride_w=strides[1],
        pad_top=top, pad_left=left, pad_bottom=bottom, pad_right=right, groups=c, epilogue=(),
    )  # fmt: skip
