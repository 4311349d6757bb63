"""Checks that train/test splits keep groups together, so that no information leaks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.datasets.tables import table_of
from tilewright.evaluation.datasets.plan import DatasetError
from tilewright.evaluation.datasets.training import Kind, padded_workloads, split
from tilewright.models.transfer.training_data import TrainingTable
from tilewright.targets.features import Features


@st.composite
def tables(draw: st.DrawFn) -> TrainingTable:
    """Draw tables with at least two workloads and two machines, with different numbers of rows."""
    hardware, workloads = draw(st.integers(2, 6)), draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    rows = draw(st.integers(2, 120))
    of_hardware = np.concatenate([[0, 1], rng.integers(0, hardware, rows)])
    of_workload = np.concatenate([[0, 1], rng.integers(0, workloads, rows)])
    task = of_hardware * workloads + of_workload
    return table_of(task, rng.random(rows + 2), of_workload, of_hardware)


shares, seeds = st.floats(0.05, 0.95), st.integers(0, 5)


@given(tables(), st.sampled_from(["by_task", "by_target"]), seeds, shares)
def test_no_group_is_on_both_sides(
    table: TrainingTable, kind: Kind, seed: int, share: float
) -> None:
    train, test = split(table, kind, seed, share)
    groups = table.workload if kind == "by_task" else table.hardware
    assert not set(groups[train]) & set(groups[test])
    assert np.array_equal(train, ~test)
    assert train.any()
    assert test.any()


@given(tables(), seeds, shares)
def test_every_task_with_two_rows_is_on_both_sides_of_within_task(
    table: TrainingTable, seed: int, share: float
) -> None:
    _, counts = np.unique(table.task, return_counts=True)
    if counts.max() < 2:
        with pytest.raises(DatasetError):
            split(table, "within_task", seed, share)
        return
    train, test = split(table, "within_task", seed, share)
    assert np.array_equal(train, ~test)
    for task in np.unique(table.task):
        rows = table.task == task
        if rows.sum() >= 2:
            assert train[rows].any()
            assert test[rows].any()
        assert abs(test[rows].sum() - share * rows.sum()) <= 1


def test_seeds_draw_other_groups_and_equal_ones_the_same() -> None:
    groups = np.repeat(np.arange(20), 3)
    table = table_of(groups, np.zeros(60))
    drawn = [split(table, "by_task", seed)[1] for seed in (0, 0, 1)]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert len(np.unique(groups[drawn[0]])) == 4


@pytest.mark.parametrize("kind", ["by_task", "by_target"])
def test_one_group_cannot_be_split(kind: Kind) -> None:
    with pytest.raises(DatasetError, match="within_task"):
        split(table_of([0] * 5, range(5)), kind, 0)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(DatasetError, match="between 0 and 1"):
        split(table_of([0, 0], [0, 1]), "within_task", 0, share)


def test_workloads_that_are_padded_to_the_same_shape_are_on_one_side() -> None:
    """33 and 64 channels both fill two blocks of 32 channels; 32 channels fill one block."""
    channels = np.repeat([32.0, 33, 64, 65, 128, 256], 20)
    columns = ["hardware block_in", "workload in_channels", "workload macs"]
    matrix = np.stack([np.full(120, 5.0), np.log2(channels), np.log2(channels * 7)], axis=1)
    numbers = np.repeat(np.arange(6), 20)
    table = TrainingTable(
        Features.from_names(matrix, columns),
        np.zeros(120),
        numbers,
        numbers,
        np.zeros(120, np.int64),
    )
    for seed in range(20):
        train, test = split(table, "by_task", seed, 0.3)
        padded = np.ceil(channels / 32)
        assert not set(padded[train]) & set(padded[test])
    assert set(padded_workloads(table)[channels == 33]) == set(
        padded_workloads(table)[channels == 64]
    )
    assert len(np.unique(padded_workloads(table))) == 5
