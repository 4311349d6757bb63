"""Determine the integer product of each fused call: its operands, scales and additional terms.

A fused call is a group of operators that the importer matched together. Its product is the
convolution or matrix product that the accelerator computes in its accumulators. The accumulated
values are called sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeVar

import numpy as np

from tilewright.core.tvm_types import RelaxExpr
from tilewright.networks.integer.qdq_propagation import QdqTensors, View, rows_and_channels
from tilewright.networks.relax import cpu_subgraphs
from tilewright.networks.relax.constants import along_channels, integers_of
from tilewright.networks.relax.op_patterns import Match, quantisation, step_of, upper_bound, window
from tilewright.networks.requantisation import (
    FINE_BITS,
    MAX_RESIDUAL_SHIFT,
    Integers,
    Real,
    scale_of,
    shifts_of,
    steps_of,
)
from tilewright.targets.capabilities import Blocks
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.integer_reference import average_weights, reference
from tilewright.targets.layer import Scale
from tilewright.targets.workload import Workload

Shape = tuple[int, ...]


class NotALayer(Exception):
    """Raised if a fused call cannot become a layer, so that the CPU has to compute it.

    The message states the reason.
    """


@dataclass(frozen=True)
class MatmulLayer:
    """A convolution or matrix product of integers that becomes a layer.

    Attributes:
        workload: the workload, without an epilogue.
        data: name of the int8 tensor that the layer reads.
        scale: scale of the data.
        shape: shape of the value that the layer writes.
        weight: weights of shape (o, c / groups, kh, kw), from which the zero point is subtracted.
            None if the weights are data.
        steps: scales of the weights, of shape (1,) or (o,).
        weight_from: if the weights are data, the name of the tensor that is packed as weights.
    """

    workload: Workload
    data: str
    scale: Scale
    shape: Shape
    weight: Integers | None = None
    steps: Real = field(default_factory=lambda: np.ones(1))
    weight_from: str | None = None

    @property
    def sums(self) -> Real:
        """Scales of the int32 accumulators, of shape (1,) or (o,)."""
        return self.scale.step * self.steps


class Products:
    """Converter of fused calls to integer products.

    All methods raise `NotALayer` for a call that is not a product of integers, and
    `QuantisationError` if its scales are only known at run time.

    Args:
        tensors: for each variable of the network, the int8 tensor or CPU result that it stands for.
        blocks: block sizes of the accelerator.
    """

    def __init__(self, tensors: QdqTensors, blocks: Blocks) -> None:
        self._t = tensors
        self._blocks = blocks

    def data(self, value: RelaxExpr) -> View:
        """Return the int8 tensor from which a float tensor is dequantised.

        Args:
            value: variable of the float tensor.

        Raises:
            NotALayer: the tensor is not dequantised from an int8 tensor.
        """
        view = self._t.real(value)
        if view is None:
            raise NotALayer("its input is not an int8 tensor times a scale")
        return view

    def reshape_residual(self, view: View, shape: tuple[int, ...]) -> View:
        """Return an int8 tensor in a shape in which a layer can add it to its result.

        The CPU reshapes the tensor if necessary.

        Args:
            view: the tensor, with the shape and scale in which it is read.
            shape: shape of the layer's result.
        """
        own = self._t.values[view.value].shape
        image = len(shape) == 4
        if own == shape or (not image and len(own) != 4 and own[-1] == shape[-1]):
            return view
        return self._t.in_shape(view, shape)

    def image(self, value: RelaxExpr) -> tuple[View, tuple[int, int, int, int]]:
        """Return the data of an operator on images as an int8 image.

        Args:
            value: variable of the float tensor that the operator reads.

        Returns:
            The int8 tensor, and its shape (n, c, h, w).

        Raises:
            NotALayer: the tensor is not dequantised from an int8 tensor, or is not an image.
        """
        view = self.data(value)
        if len(view.shape) != 4:
            raise NotALayer("its input is not an image")
        own = self._t.values[view.value].shape
        single = view.shape[0] == 1 == math.prod(view.shape[2:])
        if not (own == view.shape or (single and own[-1] == view.shape[1])):
            view = self._t.in_shape(view, view.shape)
        n, c, h, w = view.shape
        return view, (n, c, h, w)

    def _weights(self, value: RelaxExpr, axis: int) -> tuple[Integers, Real]:
        """Return the weights of an operator and their scales.

        Args:
            value: the weights as a Relax expression.
            axis: axis of the output channels.

        Returns:
            The integers after subtraction of their zero points, in the operator's shape, and the
            scales, of shape (1,) or (channels,).
        """
        result = integers_of(self._t.flat, value)
        if result is None:
            raise NotALayer("its weights are not int8 constants")
        integers, binding = result
        given = quantisation(binding)
        assert given is not None
        steps, zeros = steps_of(binding.node, given)
        values = integers.astype(np.int64) - (128 if given.dtype == "uint8" else 0)
        own = self._distribute_scales(value, zeros.astype(np.float64), axis)
        values = values - own.astype(np.int64).reshape(-1, *[1] * (values.ndim - axis - 1))
        return values, self._distribute_scales(value, steps, axis)

    def _distribute_scales(self, value: RelaxExpr, values: Real, axis: int) -> Real:
        """Convert one value per quantisation scale to one value per index along an axis.

        Args:
            value: the constant whose values have these scales, as a Relax expression.
            values: one value per scale, of shape (scales,).
            axis: axis of the constant.

        Returns:
            Array of shape (1,) if all values are equal, otherwise one value per index along the
            axis.

        Raises:
            NotALayer: the values differ along another axis of the constant.
        """
        if len(set(values.tolist())) == 1:
            return values[:1]
        whole = np.moveaxis(along_channels(self._t.flat, value, values), axis, 0)
        own = whole.reshape(len(whole), -1)
        if (own != own[:, :1]).any():
            raise NotALayer("its weights have different scales along the axis that is summed")
        return own[:, 0].astype(np.float64)

    def conv2d(self, match: Match) -> MatmulLayer:
        """Return the product of a convolution with constant weights.

        Args:
            match: the matched operators, whose anchor is the convolution.
        """
        view, (n, c, h, w) = self.image(match.anchor.args[0])
        (weight, steps), attrs = self._weights(match.anchor.args[1], 0), match.anchor.value.attrs
        top, left, bottom, right = (int(pad) for pad in attrs.padding)
        workload = Workload(
            "conv2d", n, c, h, w, weight.shape[0],
            kernel_h=weight.shape[2], kernel_w=weight.shape[3],
            stride_h=int(attrs.strides[0]), stride_w=int(attrs.strides[1]),
            pad_top=top, pad_left=left, pad_bottom=bottom, pad_right=right,
            dilation_h=int(attrs.dilation[0]), dilation_w=int(attrs.dilation[1]),
            groups=int(attrs.groups), post=(),
        )  # fmt: skip
        shape = match.anchor.shape or ()
        return MatmulLayer(workload, view.value, view.known_scale, shape, weight, steps)

    def dense(self, match: Match) -> MatmulLayer:
        """Return the product of a dense layer with constant weights.

        If the data are a flattened image, the weights are reordered to match the order in which the
        image is packed.

        Args:
            match: the matched operators, whose anchor is the matrix product.
        """
        view = self.data(match.anchor.args[0])
        integers, steps = self._weights(match.anchor.args[1], 1)
        weight = np.ascontiguousarray(integers.T)[:, :, None, None]
        rows, channels = rows_and_channels(view.shape)
        own = self._t.values[view.value].shape
        if len(own) == 4 and (own[0] != 1 or rows != 1 or math.prod(own) != channels):
            view = self._t.in_shape(view, (rows, channels))
        elif len(own) == 4:
            weight = as_packed(weight, own, self._blocks.in_channels)
        elif own[-1] != channels:
            view = self._t.in_shape(view, view.shape)
        outputs, inputs = weight.shape[:2]
        workload = Workload("dense", rows, inputs, 1, 1, outputs, post=())
        shape = match.anchor.shape or ()
        shape = shape if len(shape) != 4 else (rows, outputs)
        return MatmulLayer(workload, view.value, view.known_scale, shape, weight, steps)

    def average(self, match: Match) -> MatmulLayer:
        """Return an average pool as a depthwise convolution with (almost) equal weights.

        Args:
            match: the matched operators, whose anchor is the pool.
        """
        view, (n, c, h, w) = self.image(match.anchor.args[0])
        read = window(match.anchor)
        if any(read.padding) and not read.count_include_pad:
            raise NotALayer("it averages fewer pixels at the border")
        taps, shift = average_weights(*read.kernel)
        workload = depthwise(n, c, h, w, read.kernel, read.strides, read.padding)
        weight = np.broadcast_to(taps, (c, 1, *read.kernel)).astype(np.int64)
        shape = (n, c, workload.out_height, workload.out_width)
        return MatmulLayer(
            workload, view.value, view.known_scale, shape, weight, np.exp2([-float(shift)])
        )

    def identity(self, match: Match) -> MatmulLayer:
        """Return a multiplication by 1, for a ReLU, clip or requantisation that is not fused.

        Args:
            match: the matched operators. The first one (the anchor) is the ReLU, clip or
                requantisation.
        """
        return self.one_by_one(self.data(match.anchor.args[0]))

    def sum(self, match: Match) -> MatmulLayer:
        """Return the product of an addition: a multiplication of its first operand by 1.

        The layer adds the second operand to its sums. See `operands` for the order of the operands.

        Args:
            match: the matched operators, whose anchor (the first operator) is the addition.
        """
        return self.one_by_one(self.operands(match)[0])

    def operands(self, match: Match) -> tuple[View, View]:
        """Return the operands of an addition, the one with the finer quantisation scale first.

        The second operand is later shifted to the scale of the first.

        Args:
            match: the matched operators, whose anchor is the addition.
        """
        one, two = sorted((self.data(arg) for arg in match.anchor.args[:2]), key=_step)
        return one, self.reshape_residual(two, self._t.values[one.value].shape)

    def heads(self, match: Match) -> Iterator[MatmulLayer]:
        """Yield one product per attention head, for a matrix product of two activations.

        The data have the shape rows × channels. The second operand is transposed to outputs ×
        channels, which is the layout of weights.

        Args:
            match: the matched operators, whose anchor is the matrix product.
        """
        (one, two), node = (self.data(arg) for arg in match.anchor.args[:2]), match.anchor.node
        *_, rows, channels = one.shape
        outputs, heads = two.shape[-1], math.prod(one.shape[:-2])
        left = self._t.in_shape(one, (heads, rows, channels), f"{node}.data")
        right = self._t.in_shape(two, (heads, channels, outputs), f"{node}.weights")
        right = self._t.derive_view(
            right, cpu_subgraphs.transposed, (heads, outputs, channels), f"{node}.turned"
        )
        if one.known_scale.zero_point or two.known_scale.zero_point:
            raise NotALayer("it multiplies two activations, and one has a zero point")
        workload = Workload("dense", rows, channels, 1, 1, outputs, post=())
        for i in range(heads):
            data, weight = (
                self._t.derive_view(
                    side,
                    partial(cpu_subgraphs.select_part, index=i),
                    side.shape[1:],
                    f"{node}.{role}.{i}",
                )
                for side, role in ((left, "data"), (right, "weights"))
            )
            yield MatmulLayer(
                workload, data.value, one.known_scale, (rows, outputs), None,
                np.array([two.known_scale.step]), weight.value,
            )  # fmt: skip

    def one_by_one(self, view: View) -> MatmulLayer:
        """Return a 1×1 depthwise convolution that multiplies an int8 tensor of any shape by 1.

        Args:
            view: the tensor, with the shape and scale in which it is read.
        """
        shape = self._t.values[view.value].shape
        workload = identity_workload(shape, self._blocks)
        weight = np.ones((workload.out_channels, 1, 1, 1), np.int64)
        return MatmulLayer(workload, view.value, view.known_scale, shape, weight)


def _step(view: View) -> float:
    return view.known_scale.step


def identity_workload(shape: Shape, blocks: Blocks) -> Workload:
    """Return the workload of a 1×1 depthwise convolution over a tensor of any shape.

    The workload has no epilogue.

    Args:
        shape: shape of the tensor.
        blocks: block sizes of the accelerator.
    """
    if len(shape) == 4:
        n, c, h, w = shape
    else:
        rows, c = rows_and_channels(shape)
        n, h, w = blocks.batch, -(-rows // blocks.batch), 1
    return depthwise(n, c, h, w, (1, 1), (1, 1), (0, 0, 0, 0))


def as_packed(weight: Integers, image: tuple[int, ...], block: int) -> Integers:
    """Reorder the weights for a flattened image to the order in which the image is packed.

    Args:
        weight: weights of shape (o, c · h · w, 1, 1).
        image: shape (1, c, h, w) of the image.
        block: number of channels per block.

    Returns:
        Weights of shape (o, ⌈c / block⌉ · h · w · block, 1, 1). They are zero for the channels that
        pad the last block.
    """
    _, c, h, w = image
    if h * w == 1:
        return weight
    blocks = -(-c // block)
    whole = np.zeros((len(weight), blocks * block, h * w), np.int64)
    whole[:, :c] = weight.reshape(len(weight), c, h * w)
    packed = whole.reshape(len(weight), blocks, block, h * w).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(packed.reshape(len(weight), -1, 1, 1))


def depthwise(
    n: int, c: int, h: int, w: int,
    kernel: tuple[int, int], strides: tuple[int, int], padding: tuple[int, int, int, int],
) -> Workload:  # fmt: skip
    """Return the workload of a depthwise convolution, without epilogue.

    Args:
        n: batch size.
        c: channels.
        h: height of the image.
        w: width of the image.
        kernel: height and width of the window.
        strides: vertical and horizontal stride.
        padding: top, left, bottom and right padding.
    """
    top, left, bottom, right = padding
    return Workload(
        "conv2d", n, c, h, w, c, kernel_h=kernel[0], kernel_w=kernel[1],
        stride_h=strides[0], stride_w=strides[1],
        pad_top=top, pad_left=left, pad_bottom=bottom, pad_right=right, groups=c, post=(),
    )  # fmt: skip


FAR_APART = "its scales are too far apart for shifts"


@dataclass(frozen=True, eq=False)
class IntegerCall:
    """A fused call that is being converted to layers.

    Attributes:
        match: the matched operators.
        product: the convolution or matrix product.
        output: scale of the output.
        bounds: smallest and largest int8 value of the output.
        bias: real-valued constants that are added, of shape (o,), or None.
        residual: int8 tensor that is added, or None.
        layer_name: name of the layer.
        value_name: name of the tensor that the layer writes.
        parts: number of layers into which the call is split.
        activation: activation after the additions, or None.
    """

    match: Match
    product: MatmulLayer
    output: Scale
    bounds: tuple[int, int]
    bias: Real | None
    residual: View | None
    layer_name: str
    value_name: str
    parts: int = 1
    activation: EpilogueOp | None = None

    @property
    def ratios(self) -> Real:
        """Scale of the sums divided by the scale of the output, of shape (1,) or (o,)."""
        return self.product.sums / self.output.step

    @property
    def channels(self) -> int:
        """Number of output channels."""
        return self.product.workload.out_channels


T = TypeVar("T")


def reached(made: T | None) -> T:
    """Raise `NotALayer` if a result of `networks.requantisation` is None.

    Functions of `networks.requantisation` return None if the ratio of two scales is too large or
    too small for a shift or factor.

    Args:
        made: the result.

    Returns:
        `made`, which is not None.
    """
    if made is None:
        raise NotALayer(FAR_APART)
    return made


def residual_step(call: IntegerCall, shifts: Integers) -> EpilogueOp | Literal[False] | None:
    """Return the epilogue step that adds a call's residual, shifted to the scale of the sums.

    Args:
        call: the call.
        shifts: right shifts of the sums, of shape (1,) or (o,).

    Returns:
        The step. False if the call has no residual. None if no left shift converts the residual to
        the scale of the sums. If this is the case and the right shifts differ between channels, a
        step with the shift 0 is returned, and the caller refuses the call.
    """
    if call.residual is None:
        return False
    ratio = call.residual.known_scale.step / call.product.sums
    left = shifts_of(np.unique(1 / ratio))
    if left is None or len(left) > 1 or not 0 <= int(left[0]) <= MAX_RESIDUAL_SHIFT:
        return None if len(set(shifts.tolist())) == 1 else EpilogueOp("residual", 0)
    return EpilogueOp("residual", int(left[0]))


def times(residual: EpilogueOp | None) -> int:
    """Return the factor by which a layer multiplies the tensor that it adds to its sums.

    Args:
        residual: the epilogue operation that adds the tensor, or None.

    Returns:
        The factor; 0 if the layer adds no tensor.
    """
    if residual is None:
        return 0
    return residual.value if residual.kind == "weighted" else 1 << residual.value


def of_zero_point(product: MatmulLayer, weight: Real | Integers | None) -> Real:
    """Return the constant to add to the sums that compensates for the zero point of the data.

    Args:
        product: the product.
        weight: weights of shape (o, c / groups, kh, kw); None if the weights are data.

    Returns:
        Array of shape (o,), or of shape (1, o, oh, ow) if padding makes the constant differ between
        pixels. The array is empty if nothing has to be added.
    """
    w, zero = product.workload, product.scale.zero_point
    if not zero or weight is None:
        return np.zeros(0)
    if not max(w.pad_top, w.pad_left, w.pad_bottom, w.pad_right):
        return np.asarray(-zero * weight.sum(axis=(1, 2, 3)), np.float64)
    ones = np.ones((1, w.in_channels, w.height, w.width), np.int8)
    fine = np.rint(weight * (1 << FINE_BITS))  # the reference computes with integers
    alone = replace(w, batch=1).with_steps(())
    sums = reference(alone, {"data": ones, "weight": fine}, acc_bits=62, out_bits=62)
    return -zero * sums / (1 << FINE_BITS)


class Behind:
    """The steps of a fused call after its product: requantisation, clipping and activation.

    Args:
        match: the matched operators.

    Attributes:
        output: scale of the output; None if the call does not end with a quantisation.
        relu: whether negative values are clipped to 0.
        upper: upper bound of the clipping as a real value, or None.
        activation: non-linear activation as an epilogue operation, or None.
    """

    def __init__(self, match: Match) -> None:
        self.output: Scale | None = None
        self.relu = False
        self.upper: float | None = None
        self.activation: EpilogueOp | None = None
        for link in match.links:
            if link.kind in ("relu", "clip"):
                self.relu = True
                bound = upper_bound(link.binding)
                known = [item for item in (self.upper, bound) if item is not None]
                self.upper = min(known, default=None)
            elif link.kind == "activation":
                self.activation = step_of(link.binding)
            elif link.kind == "quantise":
                result = quantisation(link.binding)
                assert result is not None
                self.output = scale_of(link.binding.node, result)
