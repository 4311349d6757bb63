"""Computes what is known of a layer before and after it is tuned, as numbers: the nodes of a
labelled graph."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.fusion.evaluator import Evaluator
from tilewright.fusion.problem import FusionProblem
from tilewright.targets.artifact_types import Pick
from tilewright.targets.capabilities import Estimates, capability, roofline_of
from tilewright.targets.workload import Workload

_OPERATORS = ("conv2d", "dense", "max_pool")
LAYER = (
    "log2 macs", "log2 data bytes", "log2 weight bytes", "log2 output bytes", "log2 channels in",
    "log2 channels out", "log2 pixels", "kernel", "stride", "grouped", *_OPERATORS, "pooled",
    "averaged", "residual", "steps", "log2 roofline", "log2 estimate", "tuned",
    "log2 cycles over estimate", "log2 dram bytes over least", "scratchpad share",
)  # fmt: skip
"""Columns of a layer. The last four are 0 unless it is tuned: its own cycles over the estimate,
bytes that it moves over those of its tensors, and how full its tiles make the fullest
scratchpad."""


@dataclass(frozen=True, eq=False)
class LayerFigures:
    """A row of `LAYER`, shape (columns,), and the cycles to begin with: its own if it was tuned,
    else its estimate."""

    row: NDArray[np.float64]
    prior: float


class Figures:
    """Figures of the layers of a problem; what has been evaluated is known better."""

    def __init__(self, problem: FusionProblem, evaluator: Evaluator) -> None:
        self.problem = problem
        self.evaluator = evaluator
        table = problem.target.hardware_features()
        self.machine_columns = tuple(sorted(table))
        self.machine = np.array([table[name] for name in self.machine_columns])
        self._plain: dict[Workload, LayerFigures] = {}
        self._tuned: dict[Workload, LayerFigures] = {}

    def of(self, workload: Workload) -> LayerFigures:
        """Of one layer's workload."""
        if workload in self._tuned:
            return self._tuned[workload]
        if workload not in self._plain:
            self._plain[workload] = self._baseline(workload)
        alone = self.evaluator.alone.get(workload)
        if alone is None:
            return self._plain[workload]
        pick, cost = alone
        plain = self._plain[workload]
        row = plain.row.copy()
        row[-4:] = (
            1.0,
            math.log2(max(cost.cycles, 1) / plain.prior),
            math.log2(max(cost.dram_bytes, 1) / sum(_bytes(workload))),
            self._share(workload, pick),
        )
        self._tuned[workload] = LayerFigures(row, float(cost.cycles))
        return self._tuned[workload]

    def _baseline(self, workload: Workload) -> LayerFigures:
        roofline = roofline_of(self.problem.target, workload)
        least = 1.0 if roofline is None else max(roofline.cost, 1.0)
        estimate = self.problem.estimated(workload) or least
        w, sizes = workload, _bytes(workload)
        row = [
            math.log2(max(w.macs, 1)), *(math.log2(max(size, 1)) for size in sizes),
            math.log2(w.in_channels), math.log2(w.out_channels),
            math.log2(w.sums_height * w.sums_width * w.batch), w.kernel_h * w.kernel_w,
            w.stride_h * w.stride_w, float(w.groups > 1),
            *(float(w.operator == name) for name in _OPERATORS), float(w.pool is not None),
            float(w.average is not None), float(any(op.kind == "residual" for op in w.epilogue)),
            len(w.epilogue),
            math.log2(least), math.log2(estimate), 0.0, 0.0, 0.0, 0.0,
        ]  # fmt: skip
        return LayerFigures(np.array(row), estimate)

    def _share(self, workload: Workload, pick: Pick) -> float:
        """How full the fullest scratchpad is, 0 where nobody knows."""
        estimates, space = capability(self.problem.target, Estimates), None
        if estimates is not None:
            space = self.problem.target.space(workload)
        if estimates is None or space is None or space.name != pick.space:
            return 0.0
        table = estimates.estimate(workload, np.array([pick.config], np.int32))
        return float(table.of_meaning("share").max(initial=0.0))


def _bytes(w: Workload) -> tuple[int, int, int]:
    """Of data, weights and output, an element a byte; a shortcut's data and weights, too."""
    data = w.batch * w.in_channels * w.height * w.width
    weights = w.out_channels * (w.in_channels // w.groups) * w.kernel_h * w.kernel_w
    beside = (0, 0) if w.of_shortcut is None else _bytes(w.of_shortcut)[:2]
    return (
        data + beside[0],
        0 if w.operator == "max_pool" else weights + beside[1],
        w.batch * w.out_channels * w.out_height * w.out_width,
    )
