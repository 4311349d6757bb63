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


def split(table: TrainingTable, kind: Kind, seed: int, held_out: float = 0.2) -> tuple[Mask, Mask]:
    """The rows to train on and the rows to test on, two masks of shape (rows,): no row in both,
    each in one.

    `within_task` holds out that share of every task's rows, at least one of each task with two;
    `by_task` that share of the workloads, whichever hardware they ran on; `by_target` that share of
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
        (table.workload, "workload") if kind == "by_task" else (table.hardware, "piece of hardware")
    )
    known = np.unique(groups)
    if len(known) < 2:
        raise DatasetError(
            f"the rows are of {len(known)} {what}: to hold one out takes two; read more of the "
            "dataset, or split within_task"
        )
    count = int(_share(np.array(len(known)), held_out))
    return np.asarray(np.isin(groups, rng.permutation(known)[:count]), np.bool_)


def _share(counts: NDArray[np.int64], held_out: float) -> NDArray[np.int64]:
    """So many of each count, at least one and not all; of one, none."""
    shares = np.minimum(np.maximum(np.rint(counts * held_out), 1), counts - 1)
    return np.asarray(shares, np.int64)
