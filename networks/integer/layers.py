"""From a call that the importer found to layers in integers: weights, bias, shifts, tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from networks.integer.arithmetic import (
    INT8,
    Requantisation,
    average_weights,
    exponent_of,
    finish,
)
from networks.integer.walk import Tensors, View, nodes_of, rows_and_channels
from networks.relax.chains import Link, Match, quantisation, upper_bound, window
from networks.relax.constants import integers_of, value_of
from targets.capabilities import Blocks
from targets.layer import Layer, Value
from targets.unfold import Unfold
from targets.workload import EpilogueOp, Workload

UnfoldRule = Callable[[Workload], Unfold | None]
Weights = NDArray[np.int8]


class NotALayer(Exception):
    """Why a call cannot be a layer; it stays with the CPU."""


@dataclass(frozen=True)
class Product:
    """What multiplies: a workload without epilogue, its weights and their exponent, and the int8
    value it reads."""

    workload: Workload
    weight: Weights | None
    exponent: int
    data: str
    data_exponent: int
    shape: tuple[int, ...]
    """Of the value it writes."""
    unfold: Unfold | None = None

    @property
    def sums(self) -> int:
        """The exponent of its sums."""
        return self.data_exponent + self.exponent


class Layers:
    """Writes calls as layers, in order, into `steps`."""

    def __init__(
        self, tensors: Tensors, blocks: Blocks, unfold: UnfoldRule, macs: dict[str, int],
        types: dict[str, str],
    ) -> None:  # fmt: skip
        self._t = tensors
        self._flat = tensors.flat
        self._blocks = blocks
        self._unfold = unfold
        self._macs = macs
        self._types = types
        self.steps: list[Layer] = []

    def write(self, match: Match) -> None:
        """Append the layers of a call and bind its result. Raises `NotALayer`, and
        `QuantisationError` for scales that shifts cannot represent."""
        rules: dict[str, Callable[[Match], Product]] = {
            "conv2d": self._conv2d,
            "dense": self._dense,
            "average_pool": self._average,
            "elementwise": self._identity,
            "add": self._sum,
        }
        if match.operator == "max_pool":
            self._maximum(match)
        elif match.operator in rules:
            self._accumulate(match, rules[match.operator](match))
        else:
            raise NotALayer("a product of two activations")

    def _data(self, value: Any) -> View:
        view = self._t.real(value)
        if view is None:
            raise NotALayer("its data are no int8 tensor times a scale")
        return view

    def _accumulate(self, match: Match, product: Product) -> None:
        """A layer that sums products and requantises; the match's result is its output."""
        residual, bias = None, None
        relu, upper = False, None
        output: int | None = None
        channels = product.workload.out_channels
        for link in match.links:
            if link.kind == "bias":
                more = self._bias(link, channels)
                bias = more if bias is None else bias + more
            elif link.kind == "add" and residual is None:
                residual = self._residual(match, link, product)
            elif link.kind in ("relu", "clip"):
                bound = upper_bound(link.binding)
                relu = True
                upper = bound if upper is None or bound is None else min(upper, bound)
            elif link.kind == "quantise":
                output = self._exponent(link)
        if output is None:
            if match.operator != "elementwise" or upper is not None:
                raise NotALayer("nothing quantises its result")
            output = product.sums
        exponent = None if residual is None else residual.exponent
        r = Requantisation(product.sums, output, exponent, relu, upper)
        if not r.is_possible:
            raise NotALayer("its scales are too far apart for shifts")
        epilogue, integers = finish(r, bias, channels)
        value = self._t.add(match.result.node, product.shape, output)
        self._append(
            match, product, epilogue, integers, value, None if residual is None else residual.value
        )
        self._bind(match, value)

    def _bind(self, match: Match, value: Value) -> None:
        shape = match.result.shape or ()
        self._t.bind(match.result.var, View(value.name, shape, value.exponent))

    def _append(
        self,
        match: Match,
        product: Product,
        epilogue: tuple[EpilogueOp, ...],
        bias: NDArray[np.int32] | None,
        value: Value,
        residual: str | None = None,
    ) -> None:
        name = match.anchor.node
        workload, weight, unfold = product.workload, product.weight, None
        plain = replace(workload, epilogue=epilogue)
        if match.operator == "conv2d" and product.data in self._t.host and weight is not None:
            unfold = self._unfold(plain)
        if unfold is not None and weight is not None:
            plain, weight = unfold.workload(plain), unfold.weight(weight)
        self.steps.append(
            Layer(
                name=name,
                names=nodes_of(match),
                operator=self._types.get(name, match.operator),
                workload=plain,
                data=product.data,
                output=value.name,
                residual=residual,
                weight=weight,
                bias=bias,
                unfold=unfold,
                macs=self._macs.get(name, 0),
            )
        )

    def _bias(self, link: Link, channels: int) -> NDArray[np.float64]:
        array = value_of(self._flat, link.binding.args[1 - link.position])
        if array is None:
            raise NotALayer("its bias is computed by operators that are not known here")
        return np.broadcast_to(array.astype(np.float64).ravel(), (channels,))

    def _exponent(self, link: Link) -> int:
        found = quantisation(link.binding)
        assert found is not None
        return exponent_of(link.binding.node, found)

    def _residual(self, match: Match, link: Link, product: Product) -> View:
        if match.operator == "add":
            return self._operands(match)[1]
        return self._like(self._data(link.binding.args[1 - link.position]), product.shape)

    def _like(self, view: View, shape: tuple[int, ...]) -> View:
        """As a value of a shape, which a layer's residual has."""
        own = self._t.values[view.value].shape
        image = len(shape) == 4
        if own == shape or (not image and len(own) != 4 and own[-1] == shape[-1]):
            return view
        return self._t.in_shape(view, shape, f"{view.value}.reshaped")

    def _image(self, value: Any) -> tuple[View, tuple[int, int, int, int]]:
        """The data of an operator on images, as a value that lies as one, and its shape."""
        view = self._data(value)
        if len(view.shape) != 4:
            raise NotALayer("its data are no image")
        own = self._t.values[view.value].shape
        single = view.shape[0] == 1 == math.prod(view.shape[2:])
        if not (own == view.shape or (single and own[-1] == view.shape[1])):
            view = self._t.in_shape(view, view.shape, f"{view.value}.reshaped")
        n, c, h, w = view.shape
        return view, (n, c, h, w)

    def _weights(self, value: Any) -> tuple[NDArray[Any], int]:
        """Int8 weights in the shape that the operator reads, and their exponent."""
        found = integers_of(self._flat, value)
        if found is None:
            raise NotALayer("its weights are no int8 constants")
        integers, binding = found
        given = quantisation(binding)
        assert given is not None
        return integers, exponent_of(binding.node, given)

    def _conv2d(self, match: Match) -> Product:
        view, (n, c, h, w) = self._image(match.anchor.args[0])
        weight, exponent = self._weights(match.anchor.args[1])
        attrs = match.anchor.value.attrs
        top, left, bottom, right = (int(pad) for pad in attrs.padding)
        workload = Workload(
            "conv2d", n, c, h, w, weight.shape[0],
            kernel_h=weight.shape[2], kernel_w=weight.shape[3],
            stride_h=int(attrs.strides[0]), stride_w=int(attrs.strides[1]),
            pad_top=top, pad_left=left, pad_bottom=bottom, pad_right=right,
            dilation_h=int(attrs.dilation[0]), dilation_w=int(attrs.dilation[1]),
            groups=int(attrs.groups), epilogue=(),
        )  # fmt: skip
        assert view.exponent is not None
        shape = match.anchor.shape or ()
        return Product(workload, weight, exponent, view.value, view.exponent, shape)

    def _dense(self, match: Match) -> Product:
        view = self._data(match.anchor.args[0])
        matrix, exponent = self._weights(match.anchor.args[1])
        weight = np.ascontiguousarray(matrix.T)[:, :, None, None]
        rows, channels = rows_and_channels(view.shape)
        own = self._t.values[view.value].shape
        if len(own) == 4 and (own[0] != 1 or rows != 1 or math.prod(own) != channels):
            view = self._t.in_shape(view, (rows, channels), f"{view.value}.rows")
        elif len(own) == 4:
            weight = as_packed(weight, own, self._blocks.in_channels)
        elif own[-1] != channels:
            view = self._t.in_shape(view, view.shape, f"{view.value}.reshaped")
        outputs, inputs = weight.shape[:2]
        workload = Workload("dense", rows, inputs, 1, 1, outputs, epilogue=())
        shape = match.anchor.shape or ()
        assert view.exponent is not None
        return Product(
            workload, weight, exponent, view.value, view.exponent,
            shape if len(shape) != 4 else (rows, outputs),
        )  # fmt: skip

    def _average(self, match: Match) -> Product:
        view, (n, c, h, w) = self._image(match.anchor.args[0])
        read = window(match.anchor)
        if any(read.padding) and not read.count_include_pad:
            raise NotALayer("an average of fewer pixels at the border")
        taps, shift = average_weights(*read.kernel)
        workload = _depthwise(n, c, h, w, read.kernel, read.strides, read.padding)
        weight = np.broadcast_to(taps, (c, 1, *read.kernel)).copy()
        assert view.exponent is not None
        shape = (n, c, workload.out_height, workload.out_width)
        return Product(workload, weight, -shift, view.value, view.exponent, shape)

    def _identity(self, match: Match) -> Product:
        return self._one_by_one(self._data(match.anchor.args[0]))

    def _sum(self, match: Match) -> Product:
        return self._one_by_one(self._operands(match)[0])

    def _operands(self, match: Match) -> tuple[View, View]:
        """Of a sum: the finer first, whose numbers the other's are shifted to."""
        one, two = sorted(
            (self._data(arg) for arg in match.anchor.args[:2]), key=lambda v: v.exponent or 0
        )
        return one, self._like(two, self._t.values[one.value].shape)

    def _one_by_one(self, view: View) -> Product:
        """A depthwise convolution that multiplies by one, on whatever shape the value has."""
        shape = self._t.values[view.value].shape
        assert view.exponent is not None
        if len(shape) == 4:
            n, c, h, w = shape
        else:
            rows, c = rows_and_channels(shape)
            n, h, w = self._blocks.batch, -(-rows // self._blocks.batch), 1
        workload = _depthwise(n, c, h, w, (1, 1), (1, 1), (0, 0, 0, 0))
        weight = np.ones((c, 1, 1, 1), np.int8)
        return Product(workload, weight, 0, view.value, view.exponent, shape)

    def _maximum(self, match: Match) -> None:
        """A maximum keeps its scale; another scale behind it is a layer of its own."""
        view, (n, c, h, w) = self._image(match.anchor.args[0])
        assert view.exponent is not None
        read = window(match.anchor)
        cuts = [link for link in match.chain if link.kind in ("relu", "clip")]
        outputs = [self._exponent(link) for link in match.chain if link.kind == "quantise"]
        moved = bool(outputs) and outputs[-1] != view.exponent
        bounds = [b for link in cuts if (b := upper_bound(link.binding)) is not None]
        if bounds and not outputs:
            raise NotALayer("nothing quantises its result")
        high = Requantisation(0, view.exponent, upper=min(bounds, default=None)).bounds[1]
        epilogue: tuple[EpilogueOp, ...] = ()
        if high < INT8[1] and not moved:
            epilogue = (EpilogueOp("min", high),)
        epilogue += (EpilogueOp("max", 0),) if cuts else ()
        workload = replace(
            _depthwise(n, c, h, w, read.kernel, read.strides, read.padding),
            operator="max_pool",
        )  # fmt: skip
        shape = (n, c, workload.out_height, workload.out_width)
        product = Product(workload, None, 0, view.value, view.exponent, shape)
        name = match.result.node if not moved else match.anchor.node
        value = self._t.add(name, shape, view.exponent)
        self._append(match, product, epilogue, None, value)
        if moved:
            behind = View(value.name, shape, view.exponent)
            r = Requantisation(
                view.exponent, outputs[-1], None, bool(cuts), min(bounds, default=None)
            )
            epilogue, bias = finish(r, None, c)
            value = self._t.add(match.result.node, shape, outputs[-1])
            self._append(match, self._one_by_one(behind), epilogue, bias, value)
        self._bind(match, value)


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


def _depthwise(
    n: int, c: int, h: int, w: int,
    kernel: tuple[int, int], strides: tuple[int, int], padding: tuple[int, int, int, int],
) -> Workload:  # fmt: skip
    top, left, bottom, right = padding
    return Workload(
        "conv2d", n, c, h, w, c, kernel_h=kernel[0], kernel_w=kernel[1],
        stride_h=strides[0], stride_w=strides[1],
        pad_top=top, pad_left=left, pad_bottom=bottom, pad_right=right, groups=c, epilogue=(),
    )  # fmt: skip
