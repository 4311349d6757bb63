"""What the importer found worth offloading: one `FusedCall` a call of a fused subgraph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

StepKind = Literal["bias", "add", "relu", "clip", "quantise", "dequantise"]


@dataclass(frozen=True)
class Quantisation:
    """real = scale · (integer − zero_point), one value or one a channel; `dtype` of the integer."""

    dtype: str
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One operation fused behind the convolution or product, in order of execution.

    `bias` adds a constant a channel, `add` a tensor of the output's shape; `clip` cuts at 0 below.
    """

    kind: StepKind
    node: str
    quantisation: Quantisation | None = None


@dataclass(frozen=True)
class FusedCall:
    """A convolution (NCHW, weights OIHW) or product (x·W with W of shape (in, out)) and its steps.

    `node` names the operator in the source model. The quantisations are None in a float model.
    """

    operator: Literal["conv2d", "dense"]
    node: str
    data_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, left, bottom, right
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    steps: tuple[Step, ...] = ()
    data_quantisation: Quantisation | None = None
    weight_quantisation: Quantisation | None = None

    @property
    def out_channels(self) -> int:
        """Channels of the output, all groups together."""
        return self.weight_shape[0] if self.operator == "conv2d" else self.weight_shape[1]


@dataclass(frozen=True)
class Partitioned:
    """What the importer says about a model: its fused calls in execution order, the operators that
    depend on weights alone and so run once, when the model is loaded, and the multiply-accumulates
    of every operator that does any, also of those no accelerator could be given."""

    fused_calls: tuple[FusedCall, ...]
    constant_nodes: frozenset[str]
    macs: Mapping[str, int]


NOTHING = Partitioned((), frozenset(), {})
"""What is said of a model that cannot be imported."""
