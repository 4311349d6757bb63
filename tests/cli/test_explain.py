"""Tests `tilewright explain` on a real run."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from tests.cli.conftest import LAYERS, TRIALS, Tuned
from tests.trial_tables import rows
from tilewright.cli.app import app
from tilewright.core.errors import TilewrightError
from tilewright.evaluation.explain.figures import rank_correlation, rank_features, rmse
from tilewright.evaluation.explain.finished_run import Trajectory, read_folder
from tilewright.evaluation.explain.recommendations import advice_of
from tilewright.evaluation.explain.refitted_models import Explained, JudgedWorkload, explain_run
from tilewright.reports import explanation as plots

pytestmark = pytest.mark.slow(seconds=2)


@pytest.fixture(scope="module")
def explained(tuned: Tuned) -> list[Explained]:
    return explain_run(read_folder(tuned.out), samples=96, seed=0)


def test_every_workload_and_model_is_explained(explained: list[Explained], tuned: Tuned) -> None:
    assert [item.workload for item in explained] == list(read_folder(tuned.out).workloads)
    assert len(explained) == len(LAYERS)
    for explanation in explained:
        assert explanation.trials == TRIALS
        assert set(explanation.influences) == {"P", "V", "A"}
        for influence in explanation.influences.values():
            assert influence.exact
            assert influence.values.shape == influence.x.shape
            assert influence.values.shape[1] == len(influence.names)


def test_influences_are_shares_of_named_features(explained: list[Explained]) -> None:
    # Every config is valid in this space, so Model V is a constant.
    assert {row.share for row in rank_features(explained, "V")} == {0.0}
    for role in "PA":
        rows = rank_features(explained, role)
        assert sum(row.share for row in rows) == pytest.approx(1.0)
        assert [row.share for row in rows] == sorted((row.share for row in rows), reverse=True)
        assert all(-1.0 <= row.direction <= 1.0 for row in rows)
    names = {row.name for row in rank_features(explained, "A")}
    assert "log2_tile_h" in names
    assert "hidden instructions" in names
    assert not any(
        name.startswith("hidden") for name in (row.name for row in rank_features(explained, "P"))
    )


def test_every_feature_is_said_in_words(explained: list[Explained]) -> None:
    for role in "PVA":
        for row in rank_features(explained, role):
            assert len(row.text.split()) > 1, row
    words = {row.name: row.text for row in rank_features(explained, "A")}
    assert words["log2_tile_h"] == "output rows per tile (log2)"
    assert words["hidden instructions"] == "instructions, FINISH included"


def _with(each: Explained, best: list[float], limit: float, **failures: int) -> Explained:
    trajectory = Trajectory(
        best=np.array(best), limit=limit, failures=Counter(failures),
        reasons=Counter({f"why {name}": count for name, count in failures.items()}), calls=1,
    )  # fmt: skip
    return replace(each, trajectory=trajectory)


@pytest.mark.parametrize(
    ("best", "limit", "failures", "finding", "action"),
    [
        ([9.0] * 6 + [8.0] * 2, 7.9, {}, "improving in the last quarter", "--trials 16"),
        ([9.0] + [8.0] * 7, 4.0, {}, "takes 2.00× its bound", "More trials will help little"),
        ([np.nan] * 8, 4.0, {"timeout": 8}, "no valid trial", "tilewright trials"),
        ([8.0] * 8, 7.9, {"compile_error": 4}, "4 do not compile, most often: why compile_error",
         "--tuner default"),
        ([9.0] + [8.0] * 63, 7.9, {}, "after trial 2 of 64", "--trials 16 is enough"),
    ],
)  # fmt: skip
def test_advice_follows_from_the_figures(
    tuned: Tuned, explained: list[Explained], best: list[float], limit: float,
    failures: dict[str, int], finding: str, action: str,
) -> None:  # fmt: skip
    advice = advice_of(read_folder(tuned.out), [_with(explained[0], best, limit, **failures)])
    assert any(finding in item.finding and action in item.action for item in advice), advice


def test_where_all_is_well_there_is_no_advice(tuned: Tuned, explained: list[Explained]) -> None:
    assert advice_of(read_folder(tuned.out), [_with(explained[0], [9, 9, 8, 8, 8, 8], 7.9)]) == []


@pytest.mark.parametrize(("chance", "finding"), [(0.99, "too much"), (0.02, "of the fastest")])
def test_a_veto_that_is_off_is_named(
    tuned: Tuned, explained: list[Explained], chance: float, finding: str
) -> None:
    each = _with(explained[0], [9, 9, 8, 8, 8, 8], 7.9)
    valid = np.tile([1.0, 0.0], 20)
    said = np.stack([np.full(40, chance), valid, np.where(valid == 1, np.arange(40), np.nan)])
    judged = replace(each, unseen=JudgedWorkload({**each.unseen.pairs, "V": said}), threshold=0.1)
    (only,) = advice_of(read_folder(tuned.out), [judged])
    assert finding in only.finding
    assert "--trials 12" in only.action


def test_the_trajectory_of_a_search_is_that_of_its_trials(
    tuned: Tuned, explained: list[Explained]
) -> None:
    trials = pd.read_parquet(tuned.out / "trials.parquet")
    target = read_folder(tuned.out).target
    for explanation in explained:
        mine = trials[trials["workload"] == explanation.workload.id]
        cycles = np.where(mine["status"] == "valid", mine["cycles"], np.nan)
        np.testing.assert_array_equal(explanation.trajectory.best, np.fmin.accumulate(cycles))
        assert explanation.trajectory.last_improvement == int(np.nanargmin(cycles)) + 1
        assert explanation.trajectory.limit == target.bound(explanation.workload).cycles


def test_a_workload_where_a_model_learned_a_constant_does_not_count(
    explained: list[Explained],
) -> None:
    p = explained[0].influences["P"]
    constant = replace(p, values=np.zeros_like(p.values))
    flat = replace(explained[0], influences={"P": constant})
    assert rank_features([explained[0], flat], "P") == rank_features([explained[0]], "P")


def test_predictions_are_of_configs_never_tried_and_agree_with_the_simulator(
    explained: list[Explained], tuned: Tuned
) -> None:
    folder = read_folder(tuned.out)
    for explanation in explained[:2]:
        space = folder.target.space(explanation.workload)
        _, measured = folder.target.enumerate(explanation.workload)
        simulated = set(np.log2(measured.cycles[measured.valid]).tolist())
        for judged in (explanation.unseen, explanation.before):
            for role in judged.pairs.keys() & {"P", "A"}:
                assert set(judged.pairs[role][1].tolist()) <= simulated
        assert explanation.unseen.pairs["V"].shape[1] == min(96, space.size - explanation.trials)
        # The models of the run are better than a constant prediction.
        predicted, truth = explanation.unseen.pairs["P"]
        assert rmse(np.stack([predicted, truth])) < 1.2 * truth.std()
        assert rank_correlation(predicted, truth) > 0.2


def test_it_prints_tables_and_writes_a_picture_and_a_page(tuned: Tuned, tmp_path: Path) -> None:
    arguments = ["explain", str(tuned.out), "--samples", "64", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    for text in ("Model P", "Model V", "Model A", "exact tree SHAP", "influence", "if large",
                 "rmse", "brier", "random configs", "own trials",
                 "per tile"):  # fmt: skip
        assert text in result.output
    last = result.output[result.output.index("What to do next") :]
    assert "1. More trials will help little" in last
    assert "than 25% above the bound" in " ".join(last.split())
    assert (tmp_path / "explain.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "explain.html").read_text()
    assert not re.search(r'(src|href)="(?!data:image/png|#)', page)
    assert "<script" not in page
    assert page.index("What to do next") > page.index("How to read this")
    assert "output rows per tile (log2)" in page
    assert "hidden instructions" in page or "hidden " in page


def test_labels_of_axes_are_numbers_and_leave_room_for_each_other(
    explained: list[Explained],
) -> None:
    """Axis labels are plain numbers and do not overlap.

    By default a logarithmic axis would label its ticks with formulas, because the cycles of this
    network span only one power of ten.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 3.5))
    axes = figure.subplots()
    plots._predictions(axes, explained, "P")
    FigureCanvasAgg(figure).draw()
    for axis in (axes.xaxis, axes.yaxis):
        labels = [label.get_text() for label in axis.get_ticklabels(which="both")]
        assert 2 <= len(labels) <= 5, labels
        assert all(re.fullmatch(r"[\d.]+[kM]?", label) for label in labels), labels
    assert axes.get_legend() is None, "a legend would lie on the data"


def test_other_trials_give_another_explanation(tuned: Tuned, tmp_path: Path) -> None:
    """The explanation is computed from the folder's trials alone."""
    folder = tmp_path / "copy"
    shutil.copytree(tuned.out, folder)
    first = read_folder(folder).workloads[0]
    rows(
        folder, "delete from trials where round > 0 or run_id not in (select id from trial_runs "
        "where workload = ?)", first.id,
    )  # fmt: skip
    assert len(read_folder(folder).rounds(first)) < len(read_folder(tuned.out).rounds(first))
    with pytest.raises(TilewrightError, match=r"trials\.sqlite has no trial of"):
        explain_run(read_folder(folder), samples=8, seed=0)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "summary.json").unlink(), "contains no finished run"),
        (lambda folder: (folder / "schedules.json").write_text("{"), "cannot read"),
        (lambda folder: _edit(folder, "tuner", "defualt"), "unknown tuner 'defualt'"),
        (lambda folder: _edit(folder, "batch", None), "was not written by this version"),
        (lambda folder: shutil.rmtree(folder), "contains no finished run"),
    ],
)
def test_a_folder_that_is_no_finished_run_is_refused(  # type: ignore[no-untyped-def]
    tuned: Tuned, tmp_path: Path, spoil, message: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tuned.out, folder)
    spoil(folder)
    result = CliRunner().invoke(app, ["explain", str(folder)])
    assert isinstance(result.exception, TilewrightError), result.output
    assert message in str(result.exception)


def test_no_samples_are_refused(tuned: Tuned) -> None:
    result = CliRunner().invoke(app, ["explain", str(tuned.out), "--samples", "0"])
    assert isinstance(result.exception, TilewrightError)
    assert "at least 1 config" in str(result.exception)


@pytest.mark.parametrize(
    ("tuner", "options", "message"),
    [
        ("random", {}, "has no model of"),
        ("autotvm", {"plan": 16}, "cannot predict given configs"),
    ],
)
def test_a_tuner_with_nothing_to_look_at_is_named(
    tuned: Tuned, tmp_path: Path, tuner: str, options: dict[str, int], message: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tuned.out, folder)
    _edit(folder, "tuner", tuner)  # a tuner that learns nothing from its trials
    _edit(folder, "tuner_options", options)
    result = CliRunner().invoke(app, ["explain", str(folder)])
    assert isinstance(result.exception, TilewrightError), result.output
    assert f"'{tuner}' {message}" in str(result.exception)
    assert not (folder / "explain.html").exists()


def _edit(folder: Path, key: str, value: object) -> None:
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
