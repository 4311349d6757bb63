"""Checks that pruning removes slow and invalid rows, and kernels in proportion to similar ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.dataset_pruning import Pruning, pruned
from tests.evaluation.datasets.tables import table_of
from tilewright.evaluation.datasets.errors import DatasetError
from tilewright.evaluation.datasets.folder import read_table
from tilewright.models.transfer.training_table import TrainingTable
from tilewright.targets.features import Features

COLUMNS = (
    "workload is conv2d", "workload is dense", "workload kernel_h", "workload kernel_w",
    "workload stride_h", "workload out_height", "workload in_channels", "workload macs",
)  # fmt: skip


def kernels(macs: list[float], rows: int) -> TrainingTable:
    """Convolutions that differ in nothing but FLOPs, a task each."""
    task = np.repeat(np.arange(len(macs)), rows)
    table = table_of(task.tolist(), np.tile(np.arange(rows), len(macs)).tolist())
    matrix = np.zeros((len(task), len(COLUMNS)))
    matrix[:, 0], matrix[:, -1] = 1, np.asarray(macs)[task]
    return replace(table, features=Features.of(matrix, COLUMNS))


def test_the_slowest_rows_of_every_task_go(dataset: Path) -> None:
    table = read_table(dataset)
    kept = pruned(table, Pruning(slow_share=0.5, kernel_share=1.0))
    assert not kept[~table.valid].any()
    for task in np.unique(table.task):
        rows = (table.task == task) & table.valid
        if rows.any():
            assert kept[rows].sum() == np.ceil(rows.sum() / 2)
            worst = table.log_latency[rows & kept].max()
            assert worst <= table.log_latency[rows & ~kept].min(initial=np.inf)


def test_about_as_much_goes_as_was_published() -> None:
    table = kernels([float(k % 7) for k in range(50)], 40)
    gone = 1 - pruned(table).mean()
    assert 0.40 <= gone <= 0.50


def test_whole_workloads_are_drawn() -> None:
    table = kernels([float(k) for k in range(20)], 10)
    kept = pruned(table, Pruning(slow_share=0, kernel_share=0.4))
    assert len(np.unique(table.workload[kept])) == 8
    assert kept.sum() == 80


def test_common_kernels_are_drawn_more_often_than_rare_ones() -> None:
    """Of 30 kernels, 27 are alike and three like nothing: by joint probability one of the many is
    27 times as probable as a lone one."""
    table = kernels([10.0] * 27 + [20.0, 30.0, 40.0], 4)
    counts = np.zeros(30)
    for seed in range(60):
        kept = pruned(table, Pruning(slow_share=0, kernel_share=0.5), seed)
        counts[np.unique(table.workload[kept])] += 1
    assert counts[:27].mean() > 4 * counts[27:].mean()


@pytest.mark.parametrize(
    "pruning", [Pruning(slow_share=1.0), Pruning(kernel_share=0.0), Pruning(octaves=0.0)]
)
def test_what_would_leave_nothing_is_refused(pruning: Pruning) -> None:
    with pytest.raises(DatasetError, match="leaves nothing"):
        pruned(kernels([1.0], 2), pruning)


def test_rows_without_kernels_are_refused() -> None:
    with pytest.raises(DatasetError, match="workload"):
        pruned(table_of([0, 0], [0, 1]))
