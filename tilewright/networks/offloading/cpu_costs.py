"""Estimates of the time that operators take on the CPU, for offloading decisions and reports.

The table `SECONDS` was measured by `python -m benchmarks.cpu.operator_costs` on one core of a Xeon
with 2.3 GHz. Operators ran as in the CPU part of a network: compiled by TVM without tuning, in
float32.

The CPU beside an accelerator is slower by a factor, which is `SLOWDOWN` unless the target defines
another one (`targets.capabilities.MachineTraits`). The default stands for one of the two Cortex-A9
cores of the Pynq: a factor of 3.5 for the clock (650 MHz), and of 2 or more for the work per cycle,
because its vectors are half as wide, it issues two instructions at once, and its caches are much
smaller. The factor was not measured on a board.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal[
    "conv2d", "depthwise", "vector", "matrix", "window", "elementwise", "transcendental",
    "softmax", "norm", "resize", "move", "pack", "unfold",
]  # fmt: skip

SLOWDOWN = 8.0  # 3.5 for the clock times 2 or more for the work per cycle, see above

SECONDS: Mapping[Kind, float] = {
    "conv2d": 0.82e-9,
    "depthwise": 0.33e-9,
    "vector": 3.9e-9,
    "matrix": 1.5e-9,
    "window": 0.76e-9,
    "elementwise": 1.1e-9,
    "transcendental": 7.2e-9,
    "softmax": 7.2e-9,
    "norm": 3.3e-9,
    "resize": 7.1e-9,
    "move": 1.4e-9,
    "pack": 0.61e-9,
    "unfold": 1.3e-9,
}
"""Time in seconds per unit of work, by the kind of operator, on one core of the measured machine.

- `conv2d`, `depthwise`, `vector`, `matrix`: the unit is one multiply-accumulate. `vector` is a
  matrix product with one row, `matrix` one with several rows.
- `window`: the unit is one element that a pooling window reads.
- `pack`, `unfold`: the unit is one byte that is packed into channel blocks, or unfolded (im2col)
  and packed.
- all other kinds: the unit is one element.
"""

_OPERATORS: Mapping[Kind, tuple[str, ...]] = {
    "window": (
        "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool", "ReduceMean",
        "ReduceSum", "ReduceMax", "max_pool2d", "max_pool2d_with_indices", "avg_pool2d",
        "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "mean",
    ),
    "transcendental": (
        "Sigmoid", "Tanh", "Erf", "Gelu", "Exp", "Log", "Pow", "Sqrt", "Elu", "Celu", "Selu",
        "Mish", "Softplus", "sigmoid", "tanh", "gelu", "exp", "silu",
    ),
    "softmax": ("Softmax", "LogSoftmax", "softmax", "_softmax"),
    "norm": (
        "LayerNormalization", "InstanceNormalization", "GroupNormalization", "LRN",
        "LpNormalization", "native_layer_norm", "layer_norm",
    ),
    "resize": ("Resize", "Upsample", "GridSample", "RoiAlign"),
    "move": (
        "Transpose", "Concat", "Slice", "Split", "Pad", "Gather", "Expand", "Tile",
        "DepthToSpace", "SpaceToDepth", "permute", "cat", "transpose", "clone",
    ),
}  # fmt: skip

KINDS = {operator: kind for kind, operators in _OPERATORS.items() for operator in operators}
"""Kind of each operator type. Operators that are neither listed nor products are `elementwise`."""

FREE = frozenset({
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Shape", "Constant",
    "view", "reshape", "flatten", "dropout", "unsqueeze", "squeeze",
})  # fmt: skip
"""Operators that take no time, because their result is the input tensor with another shape, or is
known in advance."""


def operator_seconds(op_type: str, macs: int, elements: int, rows: int = 2) -> float:
    """Return the estimated time of an operator on the measured Xeon, in seconds.

    Args:
        op_type: type of the operator.
        macs: multiply-accumulates; 0 for an operator that is not a convolution or matrix product.
        elements: number of elements of the largest tensor, used if `macs` is 0.
        rows: number of rows of a matrix product.
    """
    if op_type in FREE:
        return 0.0
    if macs:
        convolution = op_type.lower().startswith(("conv", "qlinearconv"))
        product: Kind = "vector" if rows == 1 else "matrix"
        return SECONDS["conv2d" if convolution else product] * macs
    return SECONDS[KINDS.get(op_type, "elementwise")] * elements
