"""`tilewright explain` on a real run."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cli.app import app
from evaluation.explain.folder import read_folder
from evaluation.explain.run import explain_run
from evaluation.explain.workloads import Explained, rank_correlation, ranked, rmse
from targets.errors import TilewrightError
from tests.cli.conftest import Tuned

pytestmark = pytest.mark.slow(seconds=2)


@pytest.fixture(scope="module")
def explained(tuned: Tuned) -> list[Explained]:
    return explain_run(read_folder(tuned.out), samples=96, seed=0)


def test_every_workload_and_model_is_explained(explained: list[Explained], tuned: Tuned) -> None:
    assert [each.workload for each in explained] == list(read_folder(tuned.out).workloads)
    assert len(explained) == 3
    for each in explained:
        assert each.trials == 40
        assert set(each.influences) == {"P", "V", "A"}
        for influence in each.influences.values():
            assert influence.exact
            assert influence.values.shape == influence.x.shape
            assert influence.values.shape[1] == len(influence.names)


def test_influences_are_shares_of_named_features(explained: list[Explained]) -> None:
    # Everything is valid in this space: V has learned a constant.
    assert {row.share for row in ranked(explained, "V")} == {0.0}
    for role in "PA":
        rows = ranked(explained, role)
        assert sum(row.share for row in rows) == pytest.approx(1.0)
        assert [row.share for row in rows] == sorted((row.share for row in rows), reverse=True)
        assert all(-1.0 <= row.direction <= 1.0 for row in rows)
    names = {row.name for row in ranked(explained, "A")}
    assert "log2_tile_h" in names
    assert "hidden instructions" in names
    assert not any(
        name.startswith("hidden") for name in (row.name for row in ranked(explained, "P"))
    )


def test_a_workload_where_a_model_learned_a_constant_does_not_count(
    explained: list[Explained],
) -> None:
    p = explained[0].influences["P"]
    constant = replace(p, values=np.zeros_like(p.values))
    flat = replace(explained[0], influences={"P": constant})
    assert ranked([explained[0], flat], "P") == ranked([explained[0]], "P")


def test_predictions_are_of_configs_never_tried_and_agree_with_the_simulator(
    explained: list[Explained], tuned: Tuned
) -> None:
    folder = read_folder(tuned.out)
    for each in explained[:2]:
        space = folder.target.space(each.workload)
        _, measured = folder.target.enumerate(each.workload)
        simulated = set(np.log2(measured.cycles[measured.valid]).tolist())
        for judged in (each.unseen, each.before):
            for role in judged.pairs.keys() & {"P", "A"}:
                assert set(judged.pairs[role][1].tolist()) <= simulated
        assert each.unseen.pairs["V"].shape[1] == min(96, space.size - each.trials)
        # The models of the run are better than guessing one number for all.
        predicted, truth = each.unseen.pairs["P"]
        assert rmse(np.stack([predicted, truth])) < 1.2 * truth.std()
        assert rank_correlation(predicted, truth) > 0.2


def test_it_prints_tables_and_writes_a_picture_and_a_page(tuned: Tuned, tmp_path: Path) -> None:
    arguments = ["explain", str(tuned.out), "--samples", "64", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    for text in ("Model P", "Model V", "Model A", "exact tree SHAP", "influence", "if large",
                 "P rmse", "V brier", "random configs", "own trials"):  # fmt: skip
        assert text in result.output
    assert (tmp_path / "explain.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "explain.html").read_text()
    assert not re.search(r'(src|href)="(?!data:image/png|#)', page)
    assert "<script" not in page
    assert "hidden instructions" in page or "hidden " in page


def test_other_trials_give_another_explanation(tuned: Tuned, tmp_path: Path) -> None:
    """Nothing is read from elsewhere than the folder."""
    folder = tmp_path / "copy"
    shutil.copytree(tuned.out, folder)
    lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_bytes(b"".join(lines[: len(lines) // 4]))
    first = read_folder(folder).workloads[0]
    assert len(read_folder(folder).rounds(first)) < len(read_folder(tuned.out).rounds(first))
    with pytest.raises(TilewrightError, match=r"ledger\.jsonl has no trial of"):
        explain_run(read_folder(folder), samples=8, seed=0)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "summary.json").unlink(), "holds no finished run"),
        (lambda folder: (folder / "schedules.json").write_text("{"), "cannot read"),
        (lambda folder: _edit(folder, "tuner", "defualt"), "unknown tuner 'defualt'"),
        (lambda folder: _edit(folder, "batch", None), "was not written by this version"),
        (lambda folder: shutil.rmtree(folder), "holds no finished run"),
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
        ("random", {}, "learned no model"),
        ("autotvm", {"plan": 16}, "asks its models only within its own search"),
    ],
)
def test_a_tuner_with_nothing_to_look_at_is_named(
    tuned: Tuned, tmp_path: Path, tuner: str, options: dict[str, int], message: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tuned.out, folder)
    _edit(folder, "tuner", tuner)  # the same trials, by a tuner that has no use for them
    _edit(folder, "tuner_options", options)
    result = CliRunner().invoke(app, ["explain", str(folder)])
    assert isinstance(result.exception, TilewrightError), result.output
    assert f"'{tuner}' {message}" in str(result.exception)
    assert not (folder / "explain.html").exists()


def _edit(folder: Path, key: str, value: object) -> None:
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
