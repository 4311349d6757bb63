"""Tests what records show of a run: tables and notes, from its summary."""

from __future__ import annotations

from tests.reports.outcomes import outcome, summary
from tilewright.reports.markdown import markdown_table
from tilewright.reports.run_results import (
    network_note,
    network_summary,
    outcome_line,
    results_rows,
    with_outcome,
)
from tilewright.tuning.gains import before_all


def test_a_table_begins_with_the_layer_and_what_tuning_brought() -> None:
    first, second, last = results_rows(summary([outcome(), outcome(o=32)]))
    assert list(first)[:4] == ["layer", "baseline cycles", "tuned cycles", "gain"]
    assert first["layer"].startswith("conv1 +1 · 3×3/1 16→16 @8")
    assert (first["baseline cycles"], first["tuned cycles"]) == ("~9,000", "1,000")
    assert (first["gain"], first["baseline ms"], first["tuned ms"]) == (
        "~9.00×",
        "~0.0900",
        "0.0100",
    )
    assert second["calls"] == "2"
    assert last["layer"] == "tuned layers"
    assert last["tuned cycles"] == "4,000"
    assert last["baseline cycles"] == "~36,000"
    assert last["trials"] == "16"


def test_a_gain_is_marked_where_its_baseline_is_not_published() -> None:
    rows = results_rows(summary([outcome(source="tophub")]))
    assert [row["gain"] for row in rows] == ["2.00×", "2.00×"]
    assert rows[0]["layer"] == "conv1 +1 · 3×3/1 16→16 @8"
    mixed = summary([outcome(source="tophub"), outcome(o=32)])
    assert [row["gain"] for row in results_rows(mixed)] == ["2.00×", "~9.00×", "~7.25×"]


def test_what_a_target_cannot_tell_has_no_column() -> None:
    rows = results_rows(summary([outcome(counted=False)]))
    assert not [head for head in rows[0] if "cycles" in head]
    assert rows[0]["gain"] == "~9.00×"
    rows = results_rows(summary([outcome(source=None)]))
    assert not {"baseline cycles", "baseline ms", "gain"} & set(rows[0])


def test_markdown_tables_keep_their_columns() -> None:
    text = markdown_table([{"layer": "a|b", "gain": "2×"}])
    assert text.splitlines() == ["| layer | gain |", "| --- | ---: |", "| a\\|b | 2× |"]


def test_a_note_says_what_the_run_is_and_what_came_of_it() -> None:
    note = network_note("net on vta, default", 2, 8, "tilewright tune net", {"Prefect": "http://p"})
    assert note.startswith("**net on vta, default**: 2 workloads, up to 8 trials each.")
    assert "```sh\ntilewright tune net\n```" in note
    assert note.endswith("- [Prefect](http://p)")
    known, other = summary([outcome(source="tophub")]), summary([outcome()])
    said = outcome_line(known["total"], before_all(known["workloads"]))
    assert said == "Baseline 2,000 cycles (0.0200 ms), tuned 1,000 cycles (0.0100 ms): gain 2.00×."
    assert outcome_line(other["total"], before_all(other["workloads"])) == (
        "Fallback 9,000 cycles (0.0900 ms), tuned 1,000 cycles (0.0100 ms): gain 9.00×."
    )
    assert with_outcome(note, said).split("\n\n")[1] == said
    nothing = summary([outcome(chosen=False)])
    assert (
        outcome_line(nothing["total"], before_all(nothing["workloads"]))
        == "Nothing that was tried is valid."
    )


def test_a_summary_links_and_lists() -> None:
    page = network_summary("net", summary([outcome()]), {"MLflow": "http://m/#/r"})
    assert page.startswith("# net\n\nFallback 9,000 cycles")
    assert "- [MLflow](http://m/#/r)" in page
    assert page.count("\n| ") == 4
