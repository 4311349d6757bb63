"""Names the columns of a program on hardware, the same for dataset rows and a tuner's candidates.

Four groups, by the first word of a column's name: `hardware`, `workload`, `schedule`, and `program`
(what compiling reveals). A target has its own columns; a join of rows of several targets has NaN
where a target lacks one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tilewright.models.features import every_tree_column
from tilewright.models.hidden_features import hidden_features
from tilewright.targets.base import Configs, Space
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

_SIZES = (
    "batch", "groups", "in_channels", "out_channels", "height", "width", "out_height", "out_width",
    "kernel_h", "kernel_w", "stride_h", "stride_w", "dilation_h", "dilation_w", "macs",
)  # fmt: skip
_OPERATORS = ("conv2d", "dense", "max_pool", "batch_matmul")
_STEPS = ("bias", "residual", "shr")


def columns_of(
    workload: Workload,
    space: Space,
    configs: Configs,
    hardware: Mapping[str, float],
    hidden: Features | None = None,
) -> Features:
    """Everything known of configs (n, knobs) on `hardware`, `Target.hardware_features`: a row a
    config. Of `hidden`, a row a config, rows that did not compile give NaN; without it there are no
    columns of the group `program`."""
    fixed = _of_hardware(hardware) | _of_workload(workload)
    wide = np.tile(np.array([*fixed.values()]), (len(configs), 1))
    parts = [
        Features.of(wide, [*fixed]),
        every_tree_column(workload, space, configs).named("schedule"),
    ]
    if hidden is not None:
        parts += [_logs(hidden), _sums(hidden)]
    return parts[0].beside(*parts[1:])


def _of_hardware(hardware: Mapping[str, float]) -> dict[str, float]:
    """Logarithms, but of what is one already; what is 0 the hardware lacks."""
    return {
        f"hardware {name}": value if name.startswith("log2_") else float(np.log2(value))
        for name, value in hardware.items()
        if value > 0 or name.startswith("log2_")
    }


def _of_workload(workload: Workload) -> dict[str, float]:
    sizes = {name: float(getattr(workload, name)) for name in _SIZES}
    kinds = {name: float(workload.operator == name) for name in _OPERATORS}
    steps = {name: float(any(op.kind == name for op in workload.epilogue)) for name in _STEPS}
    return (
        {f"workload {name}": float(np.log2(max(value, 1.0))) for name, value in sizes.items()}
        | {f"workload is {name}": value for name, value in kinds.items()}
        | {f"workload has {name}": value for name, value in steps.items()}
        | {"workload pooled": float(workload.pool is not None)}
        | {"workload float32": float(workload.dtype == "float32")}
    )


def _logs(hidden: Features) -> Features:
    matrix: NDArray[np.float64] = np.log2(1.0 + np.maximum(hidden.matrix, 0.0))
    return Features(matrix, hidden.columns).named("program")


def _sums(hidden: Features) -> Features:
    """What targets that count other things have in common, NaN where nothing was compiled."""
    found = hidden_features(hidden)
    unknown: NDArray[np.bool_] = np.asarray(np.isnan(hidden.matrix).all(axis=1))
    matrix = np.where(unknown[:, None], np.nan, found.matrix)
    return Features(matrix, found.columns).named("program")
