"""Tests the tables and notes that records show of a run, made from its summary."""

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


def test_a_table_begins_with_the_layer_and_the_four_figures() -> None:
    first, second, last = results_rows(summary([outcome(), outcome(o=32)]))
    assert list(first)[:5] == [
        "layer", "fallback cycles", "rule cycles", "tuned cycles", "bound cycles",
    ]  # fmt: skip
    assert first["layer"].startswith("conv1 +1 · 3×3/1 16→16 @8")
    cycles = [first[f"{name} cycles"] for name in ("fallback", "rule", "tuned", "bound")]
    assert cycles == ["9,000", "2,000", "1,000", "500"]
    assert (first["over rule"], first["over fallback"]) == ("2.00×", "9.00×")
    assert (first["rule ms"], first["tuned ms"]) == ("0.0200", "0.0100")
    assert second["calls"] == "2"
    assert last["layer"] == "tuned layers"
    assert last["tuned cycles"] == "4,000"
    assert last["fallback cycles"] == "36,000"
    assert last["trials"] == "16"


def test_what_a_target_cannot_tell_has_no_column() -> None:
    rows = results_rows(summary([outcome(counted=False)]))
    assert not [head for head in rows[0] if "cycles" in head]
    assert rows[0]["over rule"] == "2.00×"
    rows = results_rows(summary([outcome(source=None)]))
    assert not [head for head in rows[0] if "rule" in head or "fallback" in head]


def test_markdown_tables_keep_their_columns() -> None:
    text = markdown_table([{"layer": "a|b", "gain": "2×"}])
    assert text.splitlines() == ["| layer | gain |", "| --- | ---: |", "| a\\|b | 2× |"]


def test_a_note_says_what_the_run_is_and_what_came_of_it() -> None:
    note = network_note("net on vta, default", 2, 8, "tilewright tune net", {"Prefect": "http://p"})
    assert note.startswith("**net on vta, default**: 2 workloads, up to 8 trials each.")
    assert "```sh\ntilewright tune net\n```" in note
    assert note.endswith("- [Prefect](http://p)")
    said = outcome_line(summary([outcome()])["total"])
    assert said == (
        "Tuned 1,000 cycles (0.0100 ms): 2.00× as fast as the rule, 2,000 cycles (0.0200 ms); "
        "9.00× as fast as the stock compiler's fallback, 9,000 cycles (0.0900 ms); "
        "100\xa0% above the bound, 500 cycles (0.00500 ms)."
    )
    assert with_outcome(note, said).split("\n\n")[1] == said
    nothing = summary([outcome(chosen=False)])
    assert outcome_line(nothing["total"]) == "No trial is valid."


def test_a_summary_links_and_lists() -> None:
    page = network_summary("net", summary([outcome()]), {"MLflow": "http://m/#/r"})
    assert page.startswith("# net\n\nTuned 1,000 cycles")
    assert "- [MLflow](http://m/#/r)" in page
    assert page.count("\n| ") == 4
