"""Estimates what the operators that stay on the CPU take there, for deciding and for reporting.

`python -m benchmarks.cpu.operator_costs` measured the table on one core of a Xeon of 2.3 GHz.
Operators ran as the CPU side of a network runs them: compiled by TVM without tuning, in float. The
processor beside an accelerator takes longer by a factor, `SLOWDOWN` unless the target says
otherwise (`targets.capabilities.MachineTraits`). It is that of one Cortex-A9 of the Pynq's two:
3.5 for the clock (650 MHz), and 2 or more for the work a cycle. Its vectors are half as wide, it
issues two instructions at once, and its caches are much smaller. No such board was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal[
    "conv2d", "depthwise", "vector", "matrix", "window", "elementwise", "transcendental",
    "softmax", "norm", "resize", "move", "pack", "unfold",
]  # fmt: skip

SLOWDOWN = 8.0

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
"""Of one unit on the machine that was measured. A unit is a multiply-accumulate of convolutions and
products (`vector` of one row, `matrix` of several), an element that a window takes in (pooling), an
element of what is computed, a byte of what is packed into blocks or unfolded and packed."""

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
"""What is none of these is elementwise, products aside."""

FREE = frozenset({
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Shape", "Constant",
    "view", "reshape", "flatten", "dropout", "unsqueeze", "squeeze",
})  # fmt: skip
"""Operators that only see a tensor in another shape."""


def operator_seconds(op_type: str, macs: int, elements: int, rows: int = 2) -> float:
    """One operator on the machine that was measured: `macs` where it multiplies and adds, else
    `elements`, those of its largest tensor; `rows` of a product."""
    if op_type in FREE:
        return 0.0
    if macs:
        convolution = op_type.lower().startswith(("conv", "qlinearconv"))
        product: Kind = "vector" if rows == 1 else "matrix"
        return SECONDS["conv2d" if convolution else product] * macs
    return SECONDS[KINDS.get(op_type, "elementwise")] * elements
