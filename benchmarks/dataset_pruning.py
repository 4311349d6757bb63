"""Selects the rows worth learning from, after Verma et al. (ExHET 2023).

Published: programs that are invalid or perform badly are dropped, and kernels are drawn by the
joint probability of operation, shape and FLOPs. 43 % (GPU) and 47 % (CPU) of the data go. What
performs badly, how many kernels are drawn, and what counts as one shape is not published: these are
options here, and their defaults ours, chosen so that about as much goes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.evaluation.datasets.errors import DatasetError
from tilewright.models.transfer.training_table import TrainingTable

_OPERATION = "workload is "
_FLOPS = "workload macs"
_SHAPE = tuple(
    f"workload {size}" for size in ("kernel_h", "kernel_w", "stride_h", "out_height", "in_channels")
)


@dataclass(frozen=True)
class Pruning:
    """`slow_share` is how many of a task's valid rows are dropped, the slowest; `kernel_share` how
    many of the workloads are drawn. Sizes and FLOPs are alike within a factor of 2**`octaves`."""

    slow_share: float = 0.3
    kernel_share: float = 0.8
    octaves: float = 1.0

    def check(self) -> None:
        """Raises `DatasetError` for shares that leave nothing."""
        if not (0 <= self.slow_share < 1 and 0 < self.kernel_share <= 1 and self.octaves > 0):
            raise DatasetError(
                f"{self} leaves nothing to learn from: slow_share is at least 0 and below 1, "
                "kernel_share above 0 and at most 1, octaves above 0"
            )


def pruned(
    table: TrainingTable, pruning: Pruning | None = None, seed: int = 0
) -> NDArray[np.bool_]:
    """The rows that stay, a mask of shape (rows,): valid ones, not among the slowest of their task,
    of the workloads that were drawn. Raises `DatasetError` for options that leave nothing."""
    pruning = pruning or Pruning()
    pruning.check()
    kept = table.valid.copy()
    kept[kept] = _fast(table.task[kept], table.log_latency[kept], pruning.slow_share)
    drawn = _kernels(table, pruning, np.random.default_rng(seed))
    return np.asarray(kept & np.isin(table.workload, drawn), np.bool_)


def _fast(
    task: NDArray[np.int64], log_latency: NDArray[np.float64], slow_share: float
) -> NDArray[np.bool_]:
    """By each row's rank in its task, at least one of which stays."""
    order = np.lexsort((log_latency, task))
    _, first, counts = np.unique(task[order], return_index=True, return_counts=True)
    rank = np.arange(len(task)) - np.repeat(first, counts)
    stay = np.maximum(np.ceil(counts * (1 - slow_share)), 1)
    fast = np.empty(len(task), np.bool_)
    fast[order] = rank < np.repeat(stay, counts)
    return fast


def _kernels(table: TrainingTable, pruning: Pruning, rng: np.random.Generator) -> NDArray[np.int64]:
    """Workloads, drawn without putting back by how probable their like is: the share of rows of
    the same operation, like shape and like FLOPs."""
    workloads, first, place = np.unique(table.workload, return_index=True, return_inverse=True)
    classes = _classes(table.rows(first), pruning.octaves)
    rows = np.bincount(place)
    probable = np.bincount(classes, weights=rows)[classes] / rows.sum()
    count = max(1, round(pruning.kernel_share * len(workloads)))
    drawn = rng.choice(len(workloads), count, replace=False, p=probable / probable.sum())
    return np.asarray(workloads[drawn], np.int64)


def _classes(table: TrainingTable, octaves: float) -> NDArray[np.int64]:
    """Numbers, shape (rows,), equal where operation, shape and FLOPs are alike. Raises
    `DatasetError` for rows without such columns."""
    names = table.features.names
    operations = [name for name in names if name.startswith(_OPERATION)]
    missing = [name for name in (*_SHAPE, _FLOPS) if name not in names]
    if missing or not operations:
        raise DatasetError(
            f"rows without the columns {', '.join(missing) or _OPERATION + '…'} have no kernels to "
            "draw; build the dataset by 'tilewright dataset build'"
        )
    chosen = [names.index(name) for name in (*operations, *_SHAPE, _FLOPS)]
    matrix = table.features.matrix[:, chosen].copy()
    matrix[:, len(operations) :] = np.rint(matrix[:, len(operations) :] / octaves)
    _, classes = np.unique(matrix, axis=0, return_inverse=True, equal_nan=True)
    return np.asarray(classes.ravel(), np.int64)
