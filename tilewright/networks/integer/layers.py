"""Convert fused calls to integer layers of an accelerator.

A fused call is a group of operators that the importer matched together, such as a convolution with
its bias and ReLU. It becomes one layer if its scales are a power of two apart. Otherwise, the
factor between the scales is multiplied into the weights (`networks.requantisation`), and a call
with constant weights becomes two layers. The first layer multiplies by the rounding errors of the
scaled weights. The second layer multiplies by the rounded weights and adds the result of the first
layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tilewright.networks.integer.products import (
    FAR_APART,
    Behind,
    IntegerCall,
    MatmulLayer,
    NotALayer,
    Products,
    depthwise,
    of_zero_point,
    reached,
    residual_step,
    times,
)
from tilewright.networks.integer.qdq_propagation import QdqTensors, View, nodes_of
from tilewright.networks.relax import cpu_subgraphs
from tilewright.networks.relax.constants import value_of
from tilewright.networks.relax.op_patterns import Link, Match, window
from tilewright.networks.requantisation import (
    FINE_BITS,
    INT8,
    MAX_OFFSET_SHIFT,
    Finished,
    Integers,
    Real,
    Requantisation,
    Scaled,
    SumsOverflow,
    bounds_of,
    check_sums,
    finish_epilogue,
    scale_weights,
    shifts_of,
    spread_taps,
    weighted_pair,
)
from tilewright.targets.capabilities import Blocks
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.im2col import Unfold
from tilewright.targets.layer import Layer, Scale, Value
from tilewright.targets.workload import Workload

UnfoldRule = Callable[[Workload], Unfold | None]
"""Function that chooses how the data of a convolution are unfolded (im2col). It returns None if
they are not unfolded."""
WIDEST_SUM = 128
"""Maximum number of channels for which the addition of two tensors is computed as one convolution
over the channels of both tensors.

The number of multiplications of this convolution grows with the square of the channels. With more
channels, each tensor is instead multiplied by an int8 factor. The result of that addition is off by
one or two quantisation steps."""


class Layers:
    """Converter of fused calls to layers that an accelerator accepts.

    Args:
        tensors: for each variable of the network, the int8 tensor or CPU result that it stands for.
        blocks: block sizes of the accelerator.
        unfold: function that chooses how the input of the first convolution is rearranged (im2col).
        macs: multiply-accumulates by operator name.
        types: ONNX type by operator name.
        exact: if True, use two passes where needed. If False, use one pass with rounded weights.
        accept: function that raises `WorkloadError` for a workload that the accelerator does not
            support.

    Attributes:
        steps: the layers that were written so far.
        lost: signal-to-noise ratio in dB of each layer whose weights were rounded again, by layer
            name.
    """

    def __init__(
        self, tensors: QdqTensors, blocks: Blocks, unfold: UnfoldRule, macs: dict[str, int],
        types: dict[str, str], *, exact: bool = True,
        accept: Callable[[Workload], object] = lambda workload: None,
    ) -> None:  # fmt: skip
        self._t = tensors
        self._products = Products(tensors, blocks)
        self._passes = blocks.in_channels == blocks.out_channels
        self._exact = exact
        self._accept = accept
        self._unfold = unfold
        self._macs = macs
        self._types = types
        self.steps: list[Layer] = []
        self.lost: dict[str, float] = {}

    def write(self, match: Match) -> None:
        """Append the layers of a fused call, and record the value that holds the call's result.

        Args:
            match: the matched operators of the call.

        Raises:
            NotALayer: the call cannot be computed by integer layers.
            QuantisationError: scales are only known at run time.
            WorkloadError: the accelerator does not support a workload.
        """
        p = self._products
        rules: dict[str, Callable[[Match], MatmulLayer]] = {
            "conv2d": p.conv2d, "dense": p.dense, "average_pool": p.average,
            "elementwise": p.identity, "add": p.sum,
        }  # fmt: skip
        try:
            if match.operator == "max_pool":
                self._maximum(match)
            elif match.operator == "matmul":
                self._heads(match)
            else:
                self._bind(match, self._accumulate(match, rules[match.operator](match)))
        except SumsOverflow:
            raise NotALayer("its sums could overflow 32 bits") from None

    def _heads(self, match: Match) -> None:
        """Append the layers of a product of two activations: one dense layer per attention head.

        If there are several heads, the CPU stacks the outputs of the layers.

        Args:
            match: the matched operators of the product.
        """
        products = list(self._products.heads(match))
        outputs = [
            self._accumulate(match, product, f"{match.anchor.node}.{i}", len(products))
            for i, product in enumerate(products)
        ]
        shape, node = match.result.shape or (), match.result.node
        if len(outputs) == 1:
            self._bind(match, outputs[0])
            return
        holders = [self._t.holders[value.name] for value in outputs]
        view = self._t.integers(
            cpu_subgraphs.stack_tensors(holders, shape), shape, outputs[0].scale, node
        )
        self._t.bind(match.result.var, view)

    def _accumulate(
        self, match: Match, product: MatmulLayer, name: str = "", parts: int = 1
    ) -> Value:
        """Append the layers that compute sums of products and requantise them to int8.

        Args:
            match: the matched operators.
            product: the convolution or matrix product.
            name: name of the layer and of its result. By default, the names come from the matched
                operators.
            parts: number of layers into which the call is split.

        Returns:
            The int8 tensor that the layers write.
        """
        steps, bias, residual = Behind(match), None, None
        for link in match.links:
            if link.kind == "bias":
                more = self._bias(link, product.workload.out_channels)
                bias = more if bias is None else bias + more
            elif link.kind == "add":
                self._check_passes()
                residual = self._residual(match, link, product)
        output = steps.output
        if output is None:
            if match.operator != "elementwise" or steps.upper is not None:
                raise NotALayer("its result is not quantised")
            # A ReLU without a quantisation after it keeps the scale of its input.
            output = product.scale
        bounds = bounds_of(output, steps.relu, steps.upper)
        layer_name, value = name or match.anchor.node, name or match.result.node
        return self._append_requantised(
            IntegerCall(
                match,
                product,
                output,
                bounds,
                bias,
                residual,
                layer_name,
                value,
                parts,
                steps.activation,
            )
        )

    def _append_requantised(self, call: IntegerCall) -> Value:
        """Append the layers that compute a call and requantise its sums to the output's scale.

        If the scales are a power of two apart, a single layer shifts the sums. Otherwise, the
        factor between the scales is multiplied into the weights.

        Returns:
            The int8 tensor that the last layer writes.
        """
        weight, shifts = call.product.weight, shifts_of(call.ratios)
        is_int8 = weight is None or bool(INT8[0] <= weight.min() and weight.max() <= INT8[1])
        if (
            shifts is not None
            and is_int8
            and (residual_op := residual_step(call, shifts)) is not None
        ):
            r = Requantisation(shifts, residual_op or None, call.bounds)
            if r.by_channel and call.residual is not None:
                raise NotALayer(
                    "a tensor is added to its sums, whose scales differ between channels"
                )
            return self._layer(call, weight, r)
        if weight is None:
            raise NotALayer(
                "it multiplies two activations, and no shift can requantise the products"
            )
        if call.match.operator == "average_pool":
            return self._append_average(call)
        if call.match.operator == "add":
            return self._append_weighted_sum(call)
        if call.residual is not None:
            raise NotALayer("a tensor is added to its sums with a scale that no shift can produce")
        return self._append_scaled(call, weight)

    def _append_scaled(self, call: IntegerCall, weight: Integers | Real) -> Value:
        """Append the layers of a call, with the ratio of its scales multiplied into the weights.

        There are two passes if rounding the scaled weights causes an error, and one pass otherwise
        or if two passes are not allowed.

        Args:
            call: the call.
            weight: weights of the call.
        """
        scaled = reached(scale_weights(weight, call.ratios))
        if scaled.fine is None or not (self._exact and self._passes):
            if scaled.decibels is not None:
                self.lost[call.layer_name] = scaled.decibels
            r = Requantisation(scaled.shifts, None, call.bounds)
            return self._layer(call, scaled.coarse.astype(np.int64), r)
        fine = self._fine(call, scaled, scaled.fine)
        added = EpilogueOp("residual", scaled.residual)
        r = Requantisation(scaled.shifts, added, call.bounds)
        both = scaled.coarse + scaled.fine / (1 << FINE_BITS)
        return self._layer(call, scaled.coarse.astype(np.int64), r, fine, both)

    def _fine(self, call: IntegerCall, made: Scaled, weight: NDArray[np.int8]) -> str:
        """Append the first pass, which multiplies by the rounding errors of the scaled weights.

        One step of the int8 result equals 2^`made.residual` steps of the second pass's sums. The
        zero point of the result is 0.

        Args:
            call: the call.
            made: the scaled weights of both passes.
            weight: weights of the first pass.

        Returns:
            The name of the result.
        """
        name = f"{call.layer_name}.fine"
        finished = finish_epilogue(Requantisation(np.array([made.fine_shift])), (), call.channels)
        value = self._t.add(name, call.product.shape, Scale(1.0))
        self._append(call, weight, finished, value, None, name=name, macs=0)
        return value.name

    def _append_average(self, call: IntegerCall) -> Value:
        """Append an average pool as a depthwise convolution that also converts the scale.

        The weights contain the ratio of the input's scale to the output's scale. Returns the int8
        tensor that the layer writes.
        """
        w = call.product.workload
        factor = call.product.scale.step / call.output.step
        taps, shift = reached(spread_taps(factor, w.kernel_h, w.kernel_w))
        weight = np.broadcast_to(taps, (w.out_channels, 1, *taps.shape)).astype(np.int64)
        return self._layer(call, weight, Requantisation(np.array([shift]), None, call.bounds))

    def _append_weighted_sum(self, call: IntegerCall) -> Value:
        """Append an addition of two tensors with different scales.

        Each operand is multiplied by an integer factor that converts it to a common scale. Returns
        the int8 tensor that the last layer writes.
        """
        assert call.residual is not None
        if self._exact and call.channels <= WIDEST_SUM and (value := self._append_joined_sum(call)):
            return value
        one, two = (
            s.step / call.output.step for s in (call.product.scale, call.residual.known_scale)
        )
        # The operand with the finer scale comes first.
        first, second, shift = reached(weighted_pair(one, two))
        weight = np.full((call.channels, 1, 1, 1), first, np.int64)
        added = EpilogueOp("weighted", second)
        return self._layer(call, weight, Requantisation(np.array([shift]), added, call.bounds))

    def _append_joined_sum(self, call: IntegerCall) -> Value | None:
        """Append an addition as one convolution that reads both operands as adjacent channels.

        The weights of the convolution contain the ratios of the scales. The convolution runs in two
        passes if needed.

        Returns:
            The result. None, without appending anything, if the operands cannot be placed next to
            each other in memory.
        """
        one, two = View(call.product.data, call.product.shape, call.product.scale), call.residual
        assert two is not None
        node, c = call.match.anchor.node, call.channels
        whole = self._t.side_by_side([one, two], f"{node}.operands")
        if whole is None:
            return None
        factors = [view.known_scale.step / call.output.step for view in (one, two)]
        weight = np.concatenate([np.eye(c) * factor for factor in factors], axis=1)
        n, _, h, w = whole.shape
        workload = Workload("conv2d", n, 2 * c, h, w, c, post=())
        product = MatmulLayer(workload, whole.name, Scale(call.output.step), call.product.shape)
        # The bias subtracts the zero points, since the concatenated tensor has a scale of its own.
        zeros = -sum(view.known_scale.zero_point * view.known_scale.step for view in (one, two))
        joined = replace(call, product=product, bias=np.full(c, zeros), residual=None)
        return self._append_scaled(joined, weight[:, :, None, None])

    def _layer(
        self,
        call: IntegerCall,
        weight: Integers | None,
        r: Requantisation,
        residual: str | None = None,
        stands_for: Real | None = None,
    ) -> Value:
        """Append the layer that writes the result of a call.

        Args:
            call: the call.
            weight: weights of this pass; None if the weights are data.
            r: parameters with which the sums are requantised.
            residual: name of a value that the layer adds instead of the call's own residual, or
                None.
            stands_for: weights of this pass and of the earlier pass together; None if there is only
                one pass.
        """
        if not r.is_possible or (call.output.zero_point and r.shifts.min() < 0):
            raise NotALayer(FAR_APART)
        steps = call.output.step * np.exp2(-r.shifts.astype(np.float64))
        zero = None if residual or call.residual is None else call.residual.known_scale.zero_point
        zeros, activates = call.output.zero_point * np.exp2(r.shifts), call.activation is not None
        if activates:
            _check_behind(r, zeros)
        # Added to the sums: the output's zero point, the bias, and the zero points of residual and
        # data.
        constants = [
            np.broadcast_to(0 * zeros if activates else zeros, (call.channels,)),
            call.bias / steps if call.bias is not None else np.zeros(0),
            -(zero or 0) * times(r.residual) * np.ones(call.channels),
            of_zero_point(call.product, weight if stands_for is None else stands_for),
        ]
        finished = finish_epilogue(
            r,
            [constant for constant in constants if constant.any()],
            call.channels,
            has_bias=call.bias is not None,
            activation=call.activation,
            zero=int(zeros[0]) if activates else 0,
        )
        int8_weight = None if weight is None else weight.astype(np.int8)
        w = call.product.workload
        products = w.in_channels // w.groups * w.kernel_h * w.kernel_w
        check_sums(int8_weight, products, finished)
        value = self._t.add(call.value_name, call.product.shape, call.output)
        own_residual = None if call.residual is None else call.residual.value
        self._append(call, int8_weight, finished, value, residual or own_residual)
        return value

    def _check_passes(self) -> None:
        """Raise `NotALayer` unless the accelerator's input and output channel blocks are equal.

        A tensor that a layer adds or passes on unchanged is multiplied by an identity matrix, which
        requires square blocks.
        """
        if not self._passes:
            raise NotALayer("tensors can only pass through unchanged where blocks are square")

    def _bind(self, match: Match, value: Value) -> None:
        shape = match.result.shape or ()
        self._t.bind(match.result.var, View(value.name, shape, value.scale))

    def _append(
        self, call: IntegerCall, weight: NDArray[np.int8] | None, finished: Finished, value: Value,
        residual: str | None = None, *, name: str = "", macs: int | None = None,
    ) -> None:  # fmt: skip
        product, node, unfold = call.product, call.match.anchor.node, None
        workload = product.workload.with_steps(finished.epilogue)
        if call.match.operator == "conv2d" and product.data in self._t.host and weight is not None:
            unfold = self._unfold(workload)
            if unfold is not None:
                workload, weight = unfold.workload(workload), unfold.weight(weight)
        self._accept(workload)
        add = finished.add
        if add is not None:
            add = np.repeat(add, workload.batch, axis=0)
        self.steps.append(
            Layer(
                name=name or call.layer_name,
                names=nodes_of(call.match),
                operator=self._types.get(node, call.match.operator),
                workload=workload,
                data=product.data,
                output=value.name,
                residual=residual,
                weight=weight,
                weight_from=product.weight_from,
                bias=finished.bias,
                shifts=finished.shifts,
                unfold=unfold,
                add=add,
                macs=self._macs.get(node, 0) // call.parts if macs is None else macs,
            )
        )

    def _bias(self, link: Link, channels: int) -> Real:
        array = value_of(self._t.flat, link.binding.args[1 - link.position])
        if array is None:
            raise NotALayer("its bias is computed by unsupported operators")
        return np.broadcast_to(array.astype(np.float64).ravel(), (channels,))

    def _residual(self, match: Match, link: Link, product: MatmulLayer) -> View:
        if match.operator == "add":
            return self._products.operands(match)[1]
        other = self._products.data(link.binding.args[1 - link.position])
        return self._products.reshape_residual(other, product.shape)

    def _maximum(self, match: Match) -> None:
        """Append the layers of a max-pool with the clips and the quantisation after it.

        The max-pool itself keeps the scale of its input. If the output has another scale, a second
        layer requantises it.

        Args:
            match: the matched operators.

        Raises:
            NotALayer: the result is clipped at an upper bound but not quantised.
        """
        self._check_passes()
        view, (n, c, h, w) = self._products.image(match.anchor.args[0])
        read, following = window(match.anchor), Behind(match)
        if following.output is None and following.upper is not None:
            raise NotALayer("its result is not quantised")
        rescales = following.output not in (None, view.known_scale)
        low, high = bounds_of(view.known_scale, following.relu, following.upper)
        epilogue: tuple[EpilogueOp, ...] = ()
        if high < INT8[1] and not rescales:
            epilogue += (EpilogueOp("min", high),)
        if low > INT8[0]:
            epilogue += (EpilogueOp("max", low),)
        workload = replace(
            depthwise(n, c, h, w, read.kernel, read.strides, read.padding), operator="max_pool"
        )
        shape = (n, c, workload.out_height, workload.out_width)
        name = match.result.node if not rescales else match.anchor.node
        value = self._t.add(name, shape, view.known_scale)
        product = MatmulLayer(workload, view.value, view.known_scale, shape)
        layer_name = match.anchor.node
        call = IntegerCall(
            match, product, view.known_scale, (low, high), None, None, layer_name, name
        )
        self._append(call, None, Finished(epilogue), value)
        if following.output is not None and rescales:
            product = self._products.one_by_one(View(value.name, shape, view.known_scale))
            bounds = bounds_of(following.output, following.relu, following.upper)
            layer_name, name = f"{layer_name}.scale", match.result.node
            call = IntegerCall(
                match, product, following.output, bounds, None, None, layer_name, name
            )
            value = self._append_requantised(call)
        self._bind(match, value)


def _check_behind(r: Requantisation, zeros: Real) -> None:
    """Check that the rounding offset after an activation fits into an immediate operand.

    Args:
        r: parameters with which the accumulators are requantised.
        zeros: zero point of the output in units of the accumulators, of shape (1,) or (o,).

    Raises:
        NotALayer: the offset does not fit, or the scales of the accumulators differ between
            channels.
    """
    if r.by_channel:
        raise NotALayer("its activation needs sums with the same scale in all channels")
    half = 1 << max(int(r.shifts[0]) - 1, 0)
    if abs(zeros[0]) + half >= 1 << MAX_OFFSET_SHIFT:
        raise NotALayer("the rounding after its activation does not fit into an immediate operand")
