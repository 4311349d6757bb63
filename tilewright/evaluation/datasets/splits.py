"""Splits a dataset into what a model learns from and what it is asked about, without a leak between
the two."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tilewright.evaluation.datasets.errors import DatasetError
from tilewright.models.transfer.training_table import TrainingTable

Kind = Literal["within_task", "by_task", "by_target"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Mask = NDArray[np.bool_]

_BLOCKS = {
    "workload batch": "hardware batch",
    "workload in_channels": "hardware block_in",
    "workload out_channels": "hardware block_out",
}
"""Columns, in log2, that hardware pads to whole blocks, and the columns that say how large these
are."""
_WORK = "workload macs"


def split(table: TrainingTable, kind: Kind, seed: int, held_out: float = 0.2) -> tuple[Mask, Mask]:
    """The rows to train on and the rows to test on, two masks of shape (rows,): no row in both,
    each in one.

    `within_task` holds out that share of every task's rows, at least one of each task with two;
    `by_task` that share of the workloads, whichever hardware they ran on, where workloads that one
    piece of hardware pads to the same shape count as one; `by_target` that share of
    the hardware, whatever ran there: at least one group is held out and one is left. Raises
    `DatasetError` where there are too few groups, and for a share outside (0, 1).
    """
    if not 0.0 < held_out < 1.0:
        raise DatasetError(f"a share of {held_out:g} cannot be held out; give one between 0 and 1")
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    if kind == "within_task":
        test = _within(table.task, rng, held_out)
    else:
        test = _whole_groups(table, kind, rng, held_out)
    if not test.any() or test.all():
        raise DatasetError(
            f"{len(table)} rows are too few to split {kind}; read more rows of the dataset"
        )
    return ~test, test


def _within(task: NDArray[np.int64], rng: np.random.Generator, held_out: float) -> Mask:
    """By each row's place in its task, shuffled."""
    order = np.lexsort((rng.random(len(task)), task))
    _, first, counts = np.unique(task[order], return_index=True, return_counts=True)
    place = np.arange(len(task)) - np.repeat(first, counts)
    test = np.empty(len(task), np.bool_)
    test[order] = place < np.repeat(_share(counts, held_out), counts)
    return test


def _whole_groups(
    table: TrainingTable, kind: Kind, rng: np.random.Generator, held_out: float
) -> Mask:
    groups, what = (
        (padded_workloads(table), "workload")
        if kind == "by_task"
        else (table.hardware, "piece of hardware")
    )
    known = np.unique(groups)
    if len(known) < 2:
        raise DatasetError(
            f"the rows are of {len(known)} {what}: to hold one out takes two; read more of the "
            "dataset, or split within_task"
        )
    count = int(_share(np.array(len(known)), held_out))
    return np.asarray(np.isin(groups, rng.permutation(known)[:count]), np.bool_)


def padded_workloads(table: TrainingTable) -> NDArray[np.int64]:
    """A number a row, shape (rows,), equal for workloads that are one and the same once the
    hardware with the largest blocks has padded them: what is learned of one is known of both."""
    names = table.features.names
    told = [k for k, name in enumerate(names) if name.startswith("workload ")]
    if not told:
        return table.workload
    shapes = np.nan_to_num(table.features.matrix[:, told], nan=-1.0)
    for k, column in enumerate(told):
        if (block := _BLOCKS.get(names[column])) in names:
            known = table.features.matrix[:, names.index(str(block))]
            # Both are logarithms; a shape is padded to whole blocks.
            largest = np.exp2(np.nanmax(known)) if np.isfinite(known).any() else 1.0
            blocks = np.ceil(np.exp2(shapes[:, k]) / largest - 1e-6)
            shapes[:, k] = np.where(shapes[:, k] < 0, -1.0, blocks)
        elif names[column] == _WORK:
            shapes[:, k] = 0.0  # follows from the others, but for the padding
    return np.asarray(np.unique(shapes, axis=0, return_inverse=True)[1].ravel(), np.int64)


def _share(counts: NDArray[np.int64], held_out: float) -> NDArray[np.int64]:
    """So many of each count, at least one and not all; of one, none."""
    shares = np.minimum(np.maximum(np.rint(counts * held_out), 1), counts - 1)
    return np.asarray(shares, np.int64)
