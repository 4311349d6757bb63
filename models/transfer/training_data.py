"""Training data of transfer models: a table with rows of many tasks, and functions that prepare it.

The functions arrange columns by name in the order of a model, mark missing values as NaN, and
compute labels that order the programs of a task.
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
    """Programs on hardware, with their latencies.

    A task is one workload on one piece of hardware. Only latencies of the same task are compared.

    Attributes:
        features: columns with one row per program. NaN means that the hardware or the program does
            not have the property. 0 never means "unknown".
        log_latency: log2 latency, shape (rows,), in cycles if the hardware counts them, otherwise
            in seconds. NaN if the program is not valid.
        task: ID of each row's task, shape (rows,).
        workload: ID of each row's workload, shape (rows,).
        hardware: ID of each row's hardware, shape (rows,).
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
        """Bool array of shape (rows,), True for programs that have a latency."""
        return np.asarray(np.isfinite(self.log_latency), dtype=np.bool_)

    def rows(self, which: NDArray[Any]) -> TrainingTable:
        """Return a table with some of the rows.

        Args:
            which: row indices, or a bool mask of shape (rows,).
        """
        return replace(
            self,
            features=self.features.rows(which),
            log_latency=self.log_latency[which],
            task=self.task[which],
            workload=self.workload[which],
            hardware=self.hardware[which],
        )


Matrix = NDArray[np.float32]
"""Rows with the columns of a model, shape (rows, columns); unknown values are NaN."""

Labels = NDArray[np.float32]
"""Label of each row, which a model learns to predict, shape (rows,)."""

_SURE = 1.645  # standard errors, for a one-sided test at the 5 % level
_AT_ONCE = 1 << 16  # rows per chunk, so that a large table is not copied as a whole


def known_columns(table: TrainingTable, derived: bool = True) -> tuple[str, ...]:
    """Return the names of the columns that have a known (finite) value in at least one row.

    Args:
        table: the table.
        derived: whether to include derived columns (`columns.with_derived`).

    Returns:
        Names in the order of the table, followed by the derived columns.
    """
    columns: dict[str, bool] = {}
    for part in _parts(table.features):
        given = with_derived(part) if derived else part
        known = np.atleast_1d(np.isfinite(given.matrix).any(axis=0))
        for name, any_row in zip(given.names, known, strict=True):
            columns[name] = columns.get(name, False) or bool(any_row)
    return tuple(name for name, known in columns.items() if known)


def select_columns(features: Features, names: Sequence[str]) -> Matrix:
    """Return the columns with the given names as a matrix.

    Args:
        features: columns with one row per program. Derived columns are computed from them.
        names: names of the columns to return.

    Returns:
        float32 matrix of shape (rows, names). Missing columns and values that are not finite are
        NaN.
    """
    matrix = np.full((len(features), len(names)), np.nan, np.float32)
    begin = 0
    for part in _parts(features):
        given = with_derived(part)
        to, result = _match_columns(tuple(names), given.names)
        matrix[begin : begin + len(part), to] = given.matrix[:, result]
        begin += len(part)
    matrix[~np.isfinite(matrix)] = np.nan
    return matrix


@lru_cache(maxsize=64)
def _match_columns(
    names: tuple[str, ...], given: tuple[str, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the names that occur both in `names` and in `given`.

    If a name occurs twice in `given`, the last occurrence is used.

    Args:
        names: names of the requested columns.
        given: names of the available columns.

    Returns:
        Positions in `names` and positions in `given`, both of shape (matches,).
    """
    known = {name: k for k, name in enumerate(given)}
    results = [(k, known[name]) for k, name in enumerate(names) if name in known]
    pairs = np.array(results, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def is_late(names: Sequence[str]) -> NDArray[np.bool_]:
    """Return for each column whether it is known only after compilation ("late").

    Args:
        names: names of the columns.

    Returns:
        Bool array of shape (names,).
    """
    return np.array([name.startswith(("program ", LATE)) for name in names], dtype=np.bool_)


def may_go(names: Sequence[str]) -> NDArray[np.bool_]:
    """Return for each column whether its values may be masked individually during training.

    This is the case for all columns except `REFERENCE`, because labels are relative to it.

    Args:
        names: names of the columns.

    Returns:
        Bool array of shape (names,).
    """
    return np.array([name != REFERENCE for name in names], dtype=np.bool_)


def mask_values(
    x: Matrix, names: Sequence[str], program: float, column: float, seed: int
) -> tuple[Matrix, NDArray[np.bool_]]:
    """Replace random values of a copy of the rows by NaN.

    Args:
        x: rows of shape (rows, names).
        names: names of the columns.
        program: probability that a row loses all columns that are known only after compilation.
        column: probability that any single value is lost.
        seed: seed of the random generator.

    Returns:
        The masked copy of `x`, and a bool array of shape (rows,), which is True for rows that lost
        the columns that are known only after compilation.
    """
    rng = np.random.default_rng(seed)
    gone = (rng.random(x.shape, np.float32) < column) & may_go(names)
    uncompiled = rng.random(len(x)) < program
    gone |= uncompiled[:, None] & is_late(names)
    return np.where(gone, np.float32(np.nan), x), uncompiled


def reference(x: Matrix, names: Sequence[str]) -> NDArray[np.float32]:
    """Return the column with the analytic estimate of log2 latency, `REFERENCE`.

    The estimate is accurate up to a constant per task.

    Args:
        x: rows of shape (rows, names).
        names: names of the columns.

    Returns:
        Array of shape (rows,); NaN where the estimate is unknown.
    """
    if REFERENCE not in names:
        return np.full(len(x), np.nan, np.float32)
    return x[:, list(names).index(REFERENCE)]


def half_known(x: Matrix, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return for each row whether it has compilation results, but too few for the estimate.

    Labels of compiled programs are relative to the analytic latency estimate (`reference`). Rows
    without this estimate are therefore treated as not compiled.

    Args:
        x: rows of shape (rows, names).
        names: names of the columns.

    Returns:
        Bool array of shape (rows,).
    """
    if REFERENCE not in names:
        return np.zeros(len(x), np.bool_)
    made_of = np.isin(list(names), INGREDIENTS)
    return np.isnan(reference(x, names)) & ~np.isnan(x[:, made_of]).all(axis=1)


def uncompiled(x: Matrix, names: Sequence[str], rows: NDArray[np.bool_]) -> Matrix:
    """Remove the compilation results of selected rows, as if the programs had not been compiled.

    Args:
        x: rows of shape (rows, names).
        names: names of the columns.
        rows: bool array of shape (rows,), True for rows whose late columns (known only after
            compilation) are set to NaN.

    Returns:
        A copy of `x`, or `x` itself if no row is selected.
    """
    return np.where(rows[:, None] & is_late(names), np.float32(np.nan), x) if rows.any() else x


def of_tasks(x: Matrix, names: Sequence[str]) -> NDArray[np.int64]:
    """Return a task ID per row. Rows with equal workload and hardware share an ID.

    Args:
        x: rows of shape (rows, names).
        names: names of the columns.

    Returns:
        Task IDs of shape (rows,).
    """
    told = [name.startswith(("workload ", "hardware ")) for name in names]
    columns = np.ascontiguousarray(np.nan_to_num(x[:, told], nan=np.inf))
    keys = columns.view(f"V{columns.strides[0]}")[:, 0] if columns.shape[1] else np.zeros(len(x))
    return np.asarray(np.unique(keys, return_inverse=True)[1], dtype=np.int64)


def labels(table: TrainingTable, x: Matrix, names: Sequence[str]) -> tuple[Labels, Labels]:
    """Compute the labels of the rows of a table, with and without compilation results.

    The labels with compilation results are log2 latency minus the analytic estimate (`reference`)
    and minus the log2 time at peak speed. The labels without compilation results are log2 latency
    minus the mean of the row's task. They are also used with compilation results if the estimate is
    unknown. Both labels only define an order within a task.

    Args:
        table: the table.
        x: its rows, shape (rows, names).
        names: names of the columns.

    Returns:
        Labels with and without compilation results, both of shape (rows,); NaN for invalid
        programs.
    """
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
    """Subtract from each label the mean residual of its task.

    A residual is the difference between a label and its prediction. The labels then contain only
    differences between programs of a task, which is all that a tuner needs.

    Args:
        y: labels of shape (rows,).
        said: predictions of a model for the rows, shape (rows,).
        task: task IDs of shape (rows,).

    Returns:
        Labels of shape (rows,).
    """
    _, place = np.unique(task, return_inverse=True)
    above = np.bincount(place, y - said) / np.bincount(place)
    return np.asarray(y - above[place], dtype=np.float32)


def surely_less(new: NDArray[np.floating], old: NDArray[np.floating]) -> bool:
    """Return whether new squared errors are significantly lower than old squared errors.

    Both belong to the same rows, and the test is a one-sided paired test at the 5 % level. Without
    a test, the best of many models would often be chosen by chance if there are few rows.

    Args:
        new: squared errors of shape (rows,).
        old: squared errors of shape (rows,).
    """
    gain = np.asarray(old - new, dtype=np.float64)
    return bool(gain.mean() > _SURE * gain.std() / np.sqrt(len(gain)))


def held_out(table: TrainingTable, share: float, seed: int) -> tuple[TrainingTable, TrainingTable]:
    """Split a table into training rows and held-out rows, by whole tasks.

    If the table has only one task, single rows are held out. If the training rows or the held-out
    rows would have no latency, every k-th row with a latency is held out instead.

    Args:
        table: the table.
        share: fraction of the tasks to hold out.
        seed: seed of the random generator.

    Returns:
        The training rows and the held-out rows.

    Raises:
        TransferError: there are too few rows with a latency.
    """
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
            f"only {int(table.valid.sum())} of {len(table)} rows have a latency, which is "
            "too few for training; build a larger dataset"
        )
    return table.rows(~held), table.rows(held)


def kept_back(table: TrainingTable, share: float, seed: int) -> tuple[TrainingTable, TrainingTable]:
    """Split a table by whole tasks, such that at least a given fraction of valid rows is held out.

    This function is for small tables, in which some tasks have hardly any valid rows. At least one
    task with valid rows stays in the training rows. If only one task has valid rows, the table is
    split like in `held_out`.

    Args:
        table: the table.
        share: fraction of the rows with a latency to hold out, at least.
        seed: seed of the random generator.

    Returns:
        The training rows and the held-out rows.

    Raises:
        TransferError: there are too few rows with a latency.
    """
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
