"""Checks that comparison records of this and earlier versions are read as leaderboards."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tilewright.dashboard.answers import list_comparisons
from tilewright.dashboard.listing import KnownRuns
from tilewright.evaluation.compare.leaderboard import OPTIMUM, Leaderboard, LeaderboardRow
from tilewright.evaluation.compare.record import RecordError, read_leaderboards
from tilewright.services.workspace import Workspace

BOARD = Leaderboard(
    "net", "vta-pynq", "fallback",
    (
        LeaderboardRow("good", 3, 2.5, 400.0, 4e-6, 2),
        LeaderboardRow("poor", 3, 2.0, 500.0, 5e-6, 1),
    ),
    ("good",),
)  # fmt: skip


def write(folder: Path, name: str, document: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / name).write_text(json.dumps(document))
    return folder


def earlier_run(tuner: str, seed: int, best: list[int | None]) -> dict[str, Any]:
    return {
        "tuner": tuner, "workload": "C4", "seed": seed, "wall_seconds": 1.0, "best_cycles": best,
        "statuses": ["valid" if item else "run_error" for item in best],
        "best_seconds": [item and item * 1e-8 for item in best], "lowered": 0,
        "failed_compiles": 0,
    }  # fmt: skip


def test_a_sweep_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    keys = ("tuner", "seeds", "gain", "tuned_cycles", "tuned_seconds", "fastest_on")
    earlier = asdict(BOARD) | {
        "tuners": [{key: getattr(tuner, key) for key in keys} for tuner in BOARD.tuners]
    }
    del earlier["relative"]
    document = {"version": 1, "trials": 8, "runs": [], "leaderboards": [earlier]}
    assert read_leaderboards(write(tmp_path / "out", "sweep.json", document)) == (BOARD,)


def test_a_comparison_of_an_earlier_version_is_ranked_by_its_runs(tmp_path: Path) -> None:
    runs = [earlier_run("late", seed, [None, 150, 120, 100]) for seed in (0, 1)]
    runs += [earlier_run("soon", seed, [None, 100, 100, 100]) for seed in (0, 1)]
    document = {"target": "replay", "space": "template", "trials": 4, "optimum": {"C4": 100},
                "optimum_seconds": {"C4": 1e-6}, "runs": runs}  # fmt: skip
    (board,) = read_leaderboards(write(tmp_path / "out", "comparison.json", document))
    assert (board.network, board.target, board.baseline) == ("C4", "replay", OPTIMUM)
    assert [row.tuner for row in board.tuners] == ["soon", "late"]
    assert [row.trials_to_goal for row in board.tuners] == pytest.approx([2, 4])
    assert [row.regret for row in board.tuners] == [0, 0]
    assert board.tuners[0].invalid_share == 0.25
    assert board.winners == ("soon",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sweep.json", "{"), ("sweep.json", "[]"), ("comparison.json", '{"runs": []}'),
        ("sweep.json", '{"version": 1, "leaderboards": [{"network": 1}]}'),
        ("sweep.json", '{"leaderboards": []}'),
        ("comparison.json", '{"version": 1, "leaderboards": [{"network": "a", "target": "b", '
         '"baseline": "fallback", "tuners": [], "winners": ["default"]}]}'),
        ("comparison.json", '{"version": 1, "leaderboards": [{"network": "a", "target": "b", '
         '"baseline": "fallback", "tuners": [{"tuner": "c", "seeds": 1, "gain": NaN, '
         '"tuned_cycles": 1, "tuned_seconds": 1, "fastest_on": 1}], "winners": ["c"]}]}'),
    ],
)  # fmt: skip
def test_what_is_no_comparison_is_refused_with_a_sentence(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RecordError, match=name):
        read_leaderboards(tmp_path)
    with pytest.raises(RecordError, match="contains no comparison"):
        read_leaderboards(tmp_path / "elsewhere")


def test_the_start_page_lists_comparisons_and_leaves_out_what_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    document = {"version": 1, "leaderboards": [asdict(BOARD)]}
    write(tmp_path / "a" / "swept", "sweep.json", document)
    write(tmp_path / "b", "comparison.json", {"version": 999})
    known = KnownRuns(Workspace(tmp_path / "home"), tmp_path)
    (row,) = list_comparisons(known)["comparisons"]  # type: ignore[misc, union-attr]
    assert (row["name"], row["network"], row["winners"]) == ("swept", "net", ["good"])
    assert [tuner["tuner"] for tuner in row["tuners"]] == ["good", "poor"]
    assert [(item["tuner"], item["gain"]) for item in row["rows"]] == [
        ("good", "~2.50×"), ("poor", "~2.00×"),
    ]  # fmt: skip
    assert row["verdict"] == (
        f"net on vta-pynq: good wins, median gain ~2.50× over the {BOARD.baseline}, "
        "fastest on 2 of 3 seeds"
    )
