"""Describes what the importer found worth offloading: one `FusedCall` a call of a fused
subgraph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tilewright.targets.epilogue import EpilogueOp

StepKind = Literal["bias", "add", "relu", "clip", "activation", "quantise", "dequantise"]
CallOperator = Literal[
    "conv2d", "dense", "matmul", "max_pool", "average_pool", "add", "elementwise"
]
PRODUCTS: frozenset[CallOperator] = frozenset(("conv2d", "dense"))
"""The operators that multiply data by constant weights."""


@dataclass(frozen=True)
class Quantisation:
    """real = scale · (integer − zero_point), one value or one a channel; `dtype` of the integer.
    What is computed while the network runs is empty."""

    dtype: str
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]


@dataclass(frozen=True)
class FusedStep:
    """One operation fused behind the convolution or product, in order of execution.

    `bias` adds a constant a channel, `add` a tensor of the output's shape; `clip` cuts at 0 below
    and at `upper` above. An `activation` is a `step` of an epilogue. `quantisation` is what a
    `quantise` writes, a `dequantise` reads, and the tensor of an `add` comes in;
    it `reads_integers` where a kernel can read that tensor before it is dequantised.
    """

    kind: StepKind
    node: str
    quantisation: Quantisation | None = None
    upper: float | None = None
    step: EpilogueOp | None = None
    reads_integers: bool = False


@dataclass(frozen=True)
class FusedCall:
    """An operator that an accelerator could be given, and the steps fused behind it.

    `conv2d` (NCHW, weights OIHW) and `dense` (x·W with W of shape (in, out)) have constant weights;
    the second operand of a `matmul`, (…, in, out), is an activation and its shape `weight_shape`.
    `max_pool` and `average_pool` read windows of `kernel` pixels, the whole image where the pool is
    global. An `add` is a sum of two tensors of one shape that follows nothing, an `elementwise` an
    activation or requantisation alone: `steps` says which, and begins with the anchor itself.

    `node` names the operator in the source model. The quantisations are None in a float model.
    `inputs` are the activations it reads: data, then a matmul's other operand or the tensor that is
    added. Each is named by the operator that writes it or the network's input, before it is
    dequantised; `output` in the same way. A product `reads_integers` where a kernel can read data
    and weights before they are dequantised. Then `further` steps follow those fused: integers are
    dequantised, added to or clipped, and quantised again. `dtype` is the type of the data's
    numbers.
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
        """Channels of the output, all groups together."""
        if self.operator in PRODUCTS:
            return self.weight_shape[0 if self.operator == "conv2d" else 1]
        return self.output_shape[1 if len(self.output_shape) == 4 else -1]


@dataclass(frozen=True)
class Partitioned:
    """What the importer says about a model: its calls in execution order, the operators that
    depend on weights alone and so run once, when the model is loaded, and the multiply-accumulates
    of every operator that does any, also of those no accelerator could be given."""

    calls: tuple[FusedCall, ...]
    constant_nodes: frozenset[str]
    macs: Mapping[str, int]

    @property
    def fused_calls(self) -> tuple[FusedCall, ...]:
        """The calls that multiply by constant weights: convolutions and products."""
        return tuple(call for call in self.calls if call.operator in PRODUCTS)


NOTHING = Partitioned((), frozenset(), {})
"""What is said of a model that cannot be imported."""
