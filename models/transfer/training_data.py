"""Holds what a transferred model learns from, rows of many tasks as plain arrays, and prepares it:
columns in a model's own order by name, NaN for missing values, labels that order programs within a
task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.models.transfer.columns import INGREDIENTS, LATE, PEAK, REFERENCE, with_derived
from tilewright.models.transfer.contract import TransferError
from tilewright.targets.features import Features


@dataclass(frozen=True)
class TrainingTable:
    """Programs on hardware. A task is one workload on one piece of hardware: only latencies of the
    same task are compared.

    `features` has a row a program, NaN where the hardware or the program has no such thing (never
    0 for "unknown"). `log_latency` (rows,) is log2 of the latency, in cycles where the hardware
    counts them and else in seconds; NaN where the program is not valid. `task`, `workload` and
    `hardware` (rows,) number what a row belongs to.
    """

    features: Features
    log_latency: NDArray[np.float64]
    task: NDArray[np.int64]
    workload: NDArray[np.int64]
    hardware: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.log_latency)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Which programs have a latency, shape (rows,)."""
        return np.asarray(np.isfinite(self.log_latency), dtype=np.bool_)

    def rows(self, which: NDArray[Any]) -> TrainingTable:
        """The rows of the given indices or mask, shape (rows,)."""
        return replace(
            self,
            features=self.features.rows(which),
            log_latency=self.log_latency[which],
            task=self.task[which],
            workload=self.workload[which],
            hardware=self.hardware[which],
        )


Matrix = NDArray[np.float32]
"""Rows of a model's columns, NaN where a value is not known, shape (rows, columns)."""

Labels = NDArray[np.float32]
"""What is learned of rows, shape (rows,)."""

_SURE = 1.645  # standard errors, a one-sided 5 %
_AT_ONCE = 1 << 16  # rows, so that a large table is not copied as a whole


def known_columns(table: TrainingTable, derived: bool = True) -> tuple[str, ...]:
    """Names of the columns of a table that say something of any row, and of those `derived` from
    them, in the order of the table."""
    found: dict[str, bool] = {}
    for part in _parts(table.features):
        given = with_derived(part) if derived else part
        known = np.atleast_1d(np.isfinite(given.matrix).any(axis=0))
        for name, any_row in zip(given.names, known, strict=True):
            found[name] = found.get(name, False) or bool(any_row)
    return tuple(name for name, known in found.items() if known)


def aligned(features: Features, names: Sequence[str]) -> Matrix:
    """The columns of these names, in their order, shape (rows, names): NaN where there is no such
    column, and where a value is no number."""
    matrix = np.full((len(features), len(names)), np.nan, np.float32)
    begin = 0
    for part in _parts(features):
        given = with_derived(part)
        to, found = _places(tuple(names), given.names)
        matrix[begin : begin + len(part), to] = given.matrix[:, found]
        begin += len(part)
    matrix[~np.isfinite(matrix)] = np.nan
    return matrix


@lru_cache(maxsize=64)
def _places(
    names: tuple[str, ...], given: tuple[str, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which of the names are given, and where, both (found,); of a name given twice, the last."""
    known = {name: k for k, name in enumerate(given)}
    found = [(k, known[name]) for k, name in enumerate(names) if name in known]
    pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def is_late(names: Sequence[str]) -> NDArray[np.bool_]:
    """Which columns are known only of what was compiled, shape (names,)."""
    return np.array([name.startswith(("program ", LATE)) for name in names], dtype=np.bool_)


def may_go(names: Sequence[str]) -> NDArray[np.bool_]:
    """Which columns may be missing alone, shape (names,): not what labels are the difference to."""
    return np.array([name != REFERENCE for name in names], dtype=np.bool_)


def masked(
    x: Matrix, names: Sequence[str], program: float, column: float, seed: int
) -> tuple[Matrix, NDArray[np.bool_]]:
    """A copy of `x` (rows, names) in which a share of rows lacks what compiling reveals, and every
    value is missing with the chance `column`; and which rows these are, (rows,)."""
    rng = np.random.default_rng(seed)
    gone = (rng.random(x.shape, np.float32) < column) & may_go(names)
    uncompiled = rng.random(len(x)) < program
    gone |= uncompiled[:, None] & is_late(names)
    return np.where(gone, np.float32(np.nan), x), uncompiled


def reference(x: Matrix, names: Sequence[str]) -> NDArray[np.float32]:
    """What is known of the latency without having learned anything, log2 up to a constant of the
    task, shape (rows,), of rows (rows, names); NaN where nothing is."""
    if REFERENCE not in names:
        return np.full(len(x), np.nan, np.float32)
    return x[:, list(names).index(REFERENCE)]


def half_known(x: Matrix, names: Sequence[str]) -> NDArray[np.bool_]:
    """Of rows (rows, names) those of programs whose `reference` lacks an ingredient, (rows,). What
    is learned of compiled programs is the difference to it, so these are taken as not compiled."""
    if REFERENCE not in names:
        return np.zeros(len(x), np.bool_)
    made_of = np.isin(list(names), INGREDIENTS)
    return np.isnan(reference(x, names)) & ~np.isnan(x[:, made_of]).all(axis=1)


def uncompiled(x: Matrix, names: Sequence[str], rows: NDArray[np.bool_]) -> Matrix:
    """`x` (rows, names) in which these rows, (rows,), look as if nobody had compiled them."""
    return np.where(rows[:, None] & is_late(names), np.float32(np.nan), x) if rows.any() else x


def of_tasks(x: Matrix, names: Sequence[str]) -> NDArray[np.int64]:
    """A number a row of `x` (rows, names), equal where workload and hardware are, (rows,)."""
    told = [name.startswith(("workload ", "hardware ")) for name in names]
    columns = np.ascontiguousarray(np.nan_to_num(x[:, told], nan=np.inf))
    keys = columns.view(f"V{columns.strides[0]}")[:, 0] if columns.shape[1] else np.zeros(len(x))
    return np.asarray(np.unique(keys, return_inverse=True)[1], dtype=np.int64)


def labels(table: TrainingTable, x: Matrix, names: Sequence[str]) -> tuple[Labels, Labels]:
    """What is learned of the rows `x` (rows, names) of a table, both (rows,): log2 latency less the
    `reference` and the time at peak, where both are known; and less the mean of its task, which is
    what is learned elsewhere and of programs that are not compiled yet. Either says no more than
    the order within a task. NaN for programs that do not run."""
    _, task = np.unique(table.task, return_inverse=True)
    valid = table.valid
    total = np.bincount(task, np.where(valid, table.log_latency, 0.0))
    mean = total / np.maximum(np.bincount(task, valid), 1)
    centred = np.asarray(table.log_latency - mean[task], dtype=np.float32)
    known = reference(x, names)
    if PEAK not in names:
        return centred, centred
    less = np.asarray(table.log_latency - x[:, list(names).index(PEAK)] - known, dtype=np.float32)
    return np.where(np.isnan(less), centred, less), centred


def less_constants(y: Labels, said: NDArray[np.float64], task: NDArray[np.int64]) -> Labels:
    """Labels (rows,) without what each task (rows,) is on average above what is `said`, (rows,)."""
    _, place = np.unique(task, return_inverse=True)
    above = np.bincount(place, y - said) / np.bincount(place)
    return np.asarray(y - above[place], dtype=np.float32)


def surely_less(new: NDArray[np.floating], old: NDArray[np.floating]) -> bool:
    """Whether squared errors (rows,) are less than others of the same rows, on average by more than
    chance makes them in one of 20 cases: of few rows the best of many models is good by chance."""
    gain = np.asarray(old - new, dtype=np.float64)
    return bool(gain.mean() > _SURE * gain.std() / np.sqrt(len(gain)))


def held_out(table: TrainingTable, share: float, seed: int) -> tuple[TrainingTable, TrainingTable]:
    """The table without some whole tasks, and these tasks; of a single task some rows. Raises
    `TransferError` if there is too little for two tables."""
    rng = np.random.default_rng(seed)
    tasks = np.unique(table.task)
    if len(tasks) > 1:
        count = min(max(1, round(share * len(tasks))), len(tasks) - 1)
        held = np.isin(table.task, rng.choice(tasks, count, replace=False))
    else:
        held = rng.random(len(table)) < share
    if not (table.valid & ~held).any() or not (table.valid & held).any():
        held = np.zeros(len(table), dtype=np.bool_)
        valid = np.flatnonzero(table.valid)
        held[valid[:: max(2, round(1 / share))]] = True
    if not (table.valid & ~held).any():
        raise TransferError(
            f"{int(table.valid.sum())} of {len(table)} rows have a latency, too few to learn from; "
            "build a larger dataset"
        )
    return table.rows(~held), table.rows(held)


def kept_back(table: TrainingTable, share: float, seed: int) -> tuple[TrainingTable, TrainingTable]:
    """As `held_out`, but so many tasks that they have a share of the rows with a latency: where
    there are few rows, some tasks have hardly any."""
    tasks, place = np.unique(table.task[table.valid], return_inverse=True)
    if len(tasks) < 2:
        return held_out(table, share, seed)
    order = np.random.default_rng(seed).permutation(len(tasks))
    reached = np.cumsum(np.bincount(place)[order]) >= share * len(place)
    count = min(int(np.argmax(reached)) + 1, len(tasks) - 1)
    held = np.isin(table.task, tasks[order[:count]])
    return table.rows(~held), table.rows(held)


def _parts(features: Features) -> list[Features]:
    starts = range(0, max(len(features), 1), _AT_ONCE)
    return [features.rows(np.arange(k, min(k + _AT_ONCE, len(features)))) for k in starts]
