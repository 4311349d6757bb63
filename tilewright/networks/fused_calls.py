"""Data types for operators that can be offloaded, with the steps that are fused into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tilewright.targets.epilogue import EpilogueOp

StepKind = Literal["bias", "add", "relu", "clip", "activation", "quantise", "dequantise"]
"""Kinds of operations that are fused into a layer; see `FusedStep`."""
CallOperator = Literal[
    "conv2d", "dense", "matmul", "max_pool", "average_pool", "add", "elementwise"
]
"""Kinds of operators that an accelerator may execute; see `FusedCall`."""
PRODUCTS: frozenset[CallOperator] = frozenset(("conv2d", "dense"))
"""Operators that multiply their data by constant weights."""


@dataclass(frozen=True)
class Quantisation:
    """Quantisation of a tensor: real = scale · (integer − zero_point).

    Attributes:
        dtype: element type of the integers.
        scale: one value, or one per channel. Empty if it is computed at run time.
        zero_point: one value, or one per channel. Empty if it is computed at run time.
    """

    dtype: str
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]


@dataclass(frozen=True)
class FusedStep:
    """One operation that is fused into a layer and applied to its accumulator.

    Attributes:
        kind: `bias` adds a constant per channel. `add` adds a tensor of the output's shape. `relu`
            clips at 0, and `clip` at 0 and `upper`. `activation` applies `step`. `quantise`
            converts to integers and `dequantise` back to real numbers.
        node: name of the operator in the source model.
        quantisation: quantisation that a `quantise` step writes, that a `dequantise` step reads, or
            that the other operand of an `add` step has.
        upper: upper bound of a `clip`.
        step: the epilogue operation of an `activation`.
        reads_integers: whether a kernel can read the other operand of an `add` as integers, before
            it is dequantised.
    """

    kind: StepKind
    node: str
    quantisation: Quantisation | None = None
    upper: float | None = None
    step: EpilogueOp | None = None
    reads_integers: bool = False


@dataclass(frozen=True)
class FusedCall:
    """An operator that can be offloaded, with the steps that are fused into it.

    Attributes:
        operator: the kind of operator. `conv2d` (data NCHW, weights OIHW) and `dense` (x·W) have
            constant weights. The second operand of `matmul` is an activation. `max_pool` and
            `average_pool` reduce windows. `add` sums two tensors of the same shape and is not fused
            into another operator. `elementwise` is a separate activation or requantisation; its
            first step is the operator itself.
        node: name of the operator in the source model.
        data_shape: shape of the data.
        weight_shape: shape of the weights, (in, out) for `dense`. For `matmul`, shape (…, in, out)
            of the second operand.
        output_shape: shape of the output.
        strides: vertical and horizontal stride in elements.
        padding: padding in elements: top, left, bottom, right.
        dilation: vertical and horizontal dilation in elements.
        groups: number of convolution groups.
        steps: fused steps in execution order.
        data_quantisation: quantisation of the data, None in a float model.
        weight_quantisation: quantisation of the weights, None in a float model.
        kernel: height and width of a pool's window; the whole image for a global pool.
        count_include_pad: whether an average pool counts padding.
        inputs: names of the activations that the call reads: the data, then the second operand of a
            `matmul` or of an `add` step. A tensor is named after the operator that writes it,
            before dequantisation, or after the network input.
        output: name of the operator that writes the output.
        reads_integers: whether a kernel can read data and weights as integers.
        further: steps after the fused ones that the CPU kernel of a quantised layer can include:
            dequantise, add or clip, and quantise again.
        dtype: element type of the data.
    """

    operator: CallOperator
    node: str
    data_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, left, bottom, right
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    steps: tuple[FusedStep, ...] = ()
    data_quantisation: Quantisation | None = None
    weight_quantisation: Quantisation | None = None
    kernel: tuple[int, int] = (1, 1)
    count_include_pad: bool = True
    inputs: tuple[str, ...] = ()
    output: str = ""
    reads_integers: bool = False
    further: tuple[FusedStep, ...] = ()
    dtype: str = "float32"

    @property
    def out_channels(self) -> int:
        """Number of output channels, summed over all groups."""
        if self.operator in PRODUCTS:
            return self.weight_shape[0 if self.operator == "conv2d" else 1]
        return self.output_shape[1 if len(self.output_shape) == 4 else -1]


@dataclass(frozen=True)
class Partitioned:
    """The operators of a model that can be offloaded, with operation counts.

    Attributes:
        calls: the operators that can be offloaded, in execution order.
        constant_nodes: names of operators that depend only on weights, so that they run once, when
            the model is loaded.
        macs: multiply-accumulates by operator name, including operators that cannot be offloaded.
    """

    calls: tuple[FusedCall, ...]
    constant_nodes: frozenset[str]
    macs: Mapping[str, int]

    @property
    def fused_calls(self) -> tuple[FusedCall, ...]:
        """The calls that multiply by constant weights: convolutions and matrix products."""
        return tuple(call for call in self.calls if call.operator in PRODUCTS)


NOTHING = Partitioned((), frozenset(), {})
"""Result for a model of which no part is compiled."""
