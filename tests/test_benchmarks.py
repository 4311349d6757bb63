"""Tests shared code of the benchmarks: the split of layers, intervals, and published tables."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmarks.cpu import headroom
from benchmarks.cpu.schedules import table_of as schedules_table
from benchmarks.intervals import crossed_mean, hierarchical, ratio_of_medians
from benchmarks.layers import CPU_DEVELOPMENT, CPU_JUDGED, DEVELOPMENT, JUDGED, cpu_workload
from benchmarks.transfer.accuracy import formula_figures
from benchmarks.transfer.controls import controls
from benchmarks.transfer.families import folds_of, shared_columns
from benchmarks.transfer.single_layers import COMPARED, FORMULA, WARM
from benchmarks.transfer.single_layers import summary as layers_summary
from benchmarks.transfer.whole_networks import _goals, summary
from benchmarks.tuners.model_errors import error_ratios as model_error_figures
from benchmarks.tuners.sample_efficiency import _test_bed, costs, relative_figures, rows_of
from benchmarks.tuners.shared_models import network_trials
from tests.documents import ROOT
from tilewright.evaluation.compare.leaderboard import Results
from tilewright.evaluation.datasets.folder import read_table
from tilewright.evaluation.datasets.metrics import score
from tilewright.models.transfer.columns import REFERENCE
from tilewright.models.transfer.registry import load_model
from tilewright.models.transfer.training_data import TrainingTable, select_columns
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

BLOCK = 16


def padded(workload: Workload) -> Workload:
    """Return the workload that a VTA with 16 channels per block runs after padding."""
    up = {
        name: -(-getattr(workload, name) // BLOCK) * BLOCK
        for name in ("in_channels", "out_channels")
    }
    return replace(workload, **up)


def test_no_judged_layer_is_a_development_layer() -> None:
    development = {padded(item).id for item in DEVELOPMENT.values()}
    judged = {padded(workload).id for workload in JUDGED.values()}
    assert len(judged) == len(JUDGED)
    assert not development & judged


def test_no_layer_that_judges_estimates_of_a_cpu_chose_their_constants() -> None:
    development = {cpu_workload(name).with_steps(()).id for name in CPU_DEVELOPMENT}
    judged = {cpu_workload(name).with_steps(()).id for name in CPU_JUDGED}
    assert len(judged) == len(CPU_JUDGED)
    assert not development & judged


def test_turns_that_choose_a_schedule_do_not_judge_it() -> None:
    def trials(search: str, seconds: dict[int, float]) -> list[dict[str, object]]:
        return [
            {"layer": "one", "search": search, "turn": -1, "config": config, "seconds": took}
            for config, took in seconds.items()
        ]

    def turn(number: int, seconds: dict[int, float]) -> list[dict[str, object]]:
        return [
            {
                "layer": "one", "search": headroom.AGAIN, "turn": number, "config": config,
                "seconds": took, "rule": config == 0,
            }
            for config, took in seconds.items()
        ]  # fmt: skip

    rows = pd.DataFrame(
        trials("random", {1: 1.0, 2: 2.0})
        + trials("estimate", {3: 3.0})
        + turn(0, {0: 10.0, 1: 12.0, 2: 9.0, 3: 11.0})
        + turn(1, {0: 20.0, 1: 5.0, 2: 30.0, 3: 5.0})
    )
    of = headroom.choices(rows)
    assert of["random 16"].tolist() == [[30.0]]  # config 2, which was the fastest in turn 0
    assert of["estimate 32"].tolist() == [[20.0]]  # the rule schedule
    assert of[""].tolist() == [[30.0]]
    assert of["rule"].tolist() == [[20.0]]


def test_estimates_are_judged_by_scipys_correlation_of_schedules_that_run() -> None:
    rng = np.random.default_rng(3)
    layer = np.repeat(["a", "b"], 30)
    rows = pd.DataFrame({"layer": layer, "estimated": rng.random(60), "status": "valid"})
    rows["seconds"] = rows["estimated"].round(1) + (layer == "b") * rng.random(60)
    rows.loc[[3, 40, 41], ["status", "seconds"]] = "compile_error", np.nan
    ran = rows[rows["status"] == "valid"]
    known = [
        stats.spearmanr(group["estimated"], group["seconds"]).statistic
        for _, group in ran.groupby("layer")
    ]
    lines = schedules_table(rows).splitlines()
    assert [float(line.split("|")[-2]) for line in lines[2:4]] == pytest.approx(known, abs=0.005)
    assert lines[2].split("|")[2].strip() == "29 of 30"
    assert float(lines[4].split("|")[-2].split()[0]) == pytest.approx(np.mean(known), abs=0.005)


@pytest.mark.parametrize("where", ["unchecked", "extended"])
def test_tuners_are_judged_on_judged_layers(where: str, tmp_path: Path) -> None:
    bed = _test_bed(where, tmp_path, [], live=False)  # type: ignore[arg-type]
    assert dict(bed.workloads) == JUDGED


def test_no_test_of_a_default_uses_a_judged_layer() -> None:
    """Held-out layers appear only once in the benchmarks, so nothing else is chosen on them."""
    texts = [path.read_text() for path in (ROOT / "benchmarks").rglob("*.py")]
    for workload in JUDGED.values():
        shape = f"c={workload.in_channels},h={workload.height},w={workload.width},"
        shape += f"o={workload.out_channels},k={workload.kernel_h},"
        assert sum(text.count(shape) for text in texts) == 1


def test_an_interval_over_one_group_is_that_over_its_runs() -> None:
    runs = np.random.default_rng(1).exponential(size=40)
    result = hierarchical(lambda a: a.mean(axis=(-2, -1)), runs[None])
    known = stats.bootstrap((runs,), np.mean, method="percentile", rng=np.random.default_rng(2))
    assert result.value == pytest.approx(runs.mean())
    assert result[1:] == pytest.approx(known.confidence_interval, rel=0.03)


def test_an_interval_widens_with_what_groups_differ_by() -> None:
    rng = np.random.default_rng(3)
    groups = rng.normal(scale=1.0, size=(30, 1))
    runs = groups + rng.normal(scale=0.1, size=(30, 20))
    result = hierarchical(lambda a: a.mean(axis=(-2, -1)), runs)
    # The standard error is 1/√30 over groups, and would be 1/√600 over 600 independent runs.
    assert (result.high - result.low) / 2 == pytest.approx(1.96 / np.sqrt(30), rel=0.3)


def test_what_all_groups_share_a_run_does_not_average_out() -> None:
    of_runs = np.array([0.4, 0.6, 0.5, 0.7])
    everywhere = np.tile(of_runs, (50, 1))
    value, low, high = crossed_mean(everywhere)
    assert value == pytest.approx(of_runs.mean())
    alone = crossed_mean(of_runs[None])
    assert (low, high) == pytest.approx(alone[1:], abs=0.02)
    apart = hierarchical(lambda item: item.mean(axis=(-2, -1)), everywhere)
    assert high - low > 4 * (apart.high - apart.low)


def test_paired_runs_are_drawn_together() -> None:
    shared = np.random.default_rng(4).exponential(size=(6, 10))
    apart = hierarchical(ratio_of_medians, 2 * shared, shared)
    together = hierarchical(ratio_of_medians, 2 * shared, shared, paired=True)
    assert together == pytest.approx((2, 2, 2))
    assert apart.low < 2 < apart.high


def results() -> Results:
    """Return results of two tuners, one layer, two seeds, and four trials in batches of two."""
    regret = np.array([[[[9, 9, 9, 0], [9, 0, 0, 0]]], [[[9, 0, 0, 0], [0, 0, 0, 0]]]], float)
    steps = np.broadcast_to(np.array([2.0, 2, 4, 4]), regret.shape)
    ones = np.ones(regret.shape[:-1])
    return Results(
        tuners=("autotvm", "new"), workloads=("unet",), seeds=(0, 1), trials=4, regret=regret,
        invalid=np.broadcast_to(np.array([0.0, 1, 1, 2]), regret.shape), spent=ones.astype(int) * 4,
        lowered=ones.astype(int), failed=ones.astype(int), seconds=ones,
        measured=steps.astype(int), compiled=steps, elapsed=steps, stack=0 * steps,
    )  # fmt: skip


def test_rows_say_what_a_run_needed(tmp_path: Path) -> None:
    rows_of(results(), {"unet": 0.6}).to_parquet(tmp_path / "rows.parquet")
    rows = pd.read_parquet(tmp_path / "rows.parquet")
    assert rows["trials"].tolist() == [4, 2, 2, 2]  # to the end of the batch
    assert not rows["development"].any()
    result = relative_figures(rows)["new"]
    assert result["trials"][0] == pytest.approx(2 / 3)  # medians 2 and 3
    assert result["invalid"][0] == pytest.approx((1 + 1) / (2 + 1))
    assert result["a trial"][0] == pytest.approx(1)


SLICE = ROOT / "tests" / "data" / "transfer" / "slice"


@pytest.mark.nightly(seconds=20)
def test_controls_know_the_formula_or_nothing(tmp_path: Path) -> None:
    result = controls(argparse.Namespace(folder=tmp_path, dataset=SLICE))
    table = read_table(SLICE)
    known = ~np.isnan(select_columns(table.features, (REFERENCE,))[:, 0]) & table.valid
    table = table.rows(known)  # only machines to which the formula applies
    accuracy = {
        name: score(table, load_model(path).predict(table.features).log_latency).pairwise_accuracy
        for name, path in result.items()
    }
    assert accuracy["formula"] == pytest.approx(
        formula_figures(table)["pairwise_accuracy"], abs=0.01
    )
    assert 0.4 < accuracy["shuffled"] < 0.6


def test_programs_of_a_processor_and_of_accelerators_are_told_in_the_same_columns() -> None:
    macs, moved, done = 20.0, 14.0, 22.0  # log2
    names = ["workload macs", "workload pooled"]
    accelerator = ["program hidden bytes", "program hidden iterations", "program gemms"]
    processor = ["program operations", "program stride", "program bytes_touched"]
    left = np.array([[macs, 0.0, moved / 2, done / 2, 3.0]])
    right = np.array([[macs, 0.0, done, 7.0, moved]])
    seen = [
        shared_columns(Features.from_names(left, names + accelerator), processor=False),
        shared_columns(Features.from_names(right, names + processor), processor=True),
    ]
    assert seen[0].names == seen[1].names
    assert seen[0].matrix.tolist() == seen[1].matrix.tolist() == [[macs, 0.0, -6.0, 2.0]]


def test_a_family_is_held_out_by_machines_and_one_machine_by_layers() -> None:
    workload = np.repeat(np.arange(6), 4)
    blank = np.zeros(len(workload))
    features = Features.from_names(blank[:, None], ["workload macs"])
    for hardware, whole in ((np.tile([7, 8, 9, 10], 6), "hardware"), (workload * 0, "workload")):
        table = TrainingTable(features, blank, workload, workload, hardware)
        folds = folds_of(table)
        assert sum(fold.astype(int) for fold in folds).tolist() == [1] * len(workload)
        for fold in folds:
            number = getattr(table, whole)
            assert not set(number[fold]) & set(number[~fold])


def run(target: str, seed: int, tuner: str, trials: int, cycles: float) -> dict[str, object]:
    return {
        "target": target, "network": "n", "seed": seed, "tuner": tuner, "trials": trials,
        "cycles": cycles, "seconds": 1.0, "processor_seconds": 1.0,
    }  # fmt: skip


def test_a_goal_is_one_of_all_seeds_and_intervals_are_over_pairs_too() -> None:
    boards = [run("a", k, "board", 100, c) for k, c in enumerate((10.0, 12, 20))]
    boards += [run("b", k, "board", 100, 5.0) for k in range(3)]
    assert _goals(boards) == {("a", "n"): 12.0, ("b", "n"): 5.0}
    warm = [run("a", k, "warm", 10, 12.0) for k in range(3)]
    warm += [run("b", k, "warm", 30, 6.0) for k in range(3)]
    text = summary([*boards, *warm])
    # The runs of a pair are equal, so the only variation is which pairs are drawn.
    assert "warm                   20.0% (10.0%-30.0%) of the trials" in text
    assert "3 of 6 came there" in text


def test_controls_of_layers_have_the_warm_starts_goal_and_count_all_trials_short_of_it() -> None:
    def row(layer: str, tuner: str, trials: int, cycles: float) -> dict[str, object]:
        key = {"target": "a", "layer": layer, "seed": 0, "tuner": tuner, "goal": 10.0}
        return key | {"trials": trials, "cycles": cycles, "compiled": 0}

    rows = [row(layer, "board", 64, 10.0) for layer in ("x", "y")]
    rows += [row(layer, tuner, 8, 9.0) for layer in ("x", "y") for tuner in COMPARED[2:]]
    rows += [row("x", WARM, 4, 10.0), row("y", WARM, 8, 9.0)]
    rows += [row("x", FORMULA, 40, 11.0), row("y", FORMULA, 8, 9.0)]  # never reached the goal on x
    rows.append(row("x", WARM, 64, 11.0) | {"seed": 1})  # a seed that was stopped
    sampled, warm, formula = layers_summary(rows).splitlines()[:3]
    assert sampled == "2 pairs of layer and machine, 1 seeds"
    assert "9.4% (6.2%-12.5%) of the trials" in warm
    assert "4.00 (1.00-16.00) times the warm start's, at least twice on 1 of 2 pairs" in formula
    assert "1 of 2 came there" in formula


def test_a_over_p_is_a_mean_over_layers_of_ratios_over_runs() -> None:
    rows = pd.DataFrame(
        {
            "layer": ["x", "x", "y"], "seed": [0, 0, 0], "tuner": "xgboost",
            "trials": [16, 64, 16], "measured valid": 1.0, "compiled valid": 1.0,
            "measured P": [1.0, 3.0, 1.0], "measured A": [0.5, 0.5, 4.0],
            "compiled P": 1.0, "compiled A": 1.0,
        }
    )  # fmt: skip
    figures = model_error_figures(rows)
    assert figures["xgboost", "all", "measured"].value == pytest.approx(1.0)  # of 1/2 and 2
    assert figures["xgboost", "after 64 trials", "measured"].value == pytest.approx(
        (0.5 / 3) ** 0.5
    )
    assert figures["xgboost", "all", "compiled"].value == 1.0


def test_the_cost_of_the_goal_adds_compiles_at_their_price() -> None:
    found = costs(rows_of(results(), {"unet": 0.6}).assign(compiles=[10.0, 10, 1, 1]))
    assert found["new", "autotvm", 0.0].value == pytest.approx(2 / 3)  # medians 2 and 3
    assert found["new", "autotvm", 1.0].value == pytest.approx((2 + 1) / (3 + 10))


def test_a_network_reaches_its_goal_with_equal_trials_of_all_layers() -> None:
    cycles, rounds = [[10, 5, -1, 3], [7, 7, 2, 2]], [[0, 0, 1, 1], [0, 0, 1, 2]]
    assert network_trials(cycles, rounds, [3, 2], [1, 1]) == 8
    # If the first layer hardly matters, its two trials suffice. A partial round does not count.
    assert network_trials(cycles, rounds, [3, 2], [1, 1000]) == 2 + 3
    assert network_trials(cycles, rounds, [1, 1], [1, 1]) is None


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks/rows").glob("tuners-*.parquet")))
def test_a_table_is_what_its_rows_give(path: Path) -> None:
    """The rows of the page have the tuner's name and, in the next cell, its number of trials."""
    page = (ROOT / "docs/evidence/tuners.md").read_text()
    section = next(part for part in page.split("\n## ") if path.name in part)
    result = relative_figures(pd.read_parquet(path))
    for tuner, cells in result.items():
        value, low, high = cells["trials"]
        cell = f"{100 * value:.1f} % ({100 * low:.1f}-{100 * high:.1f})"  # type: ignore[str-format]
        assert re.search(rf"\| `{re.escape(tuner)}` \| {re.escape(cell)} \|", section), (
            tuner,
            cell,
        )
