"""What a tuning run came to: a line a layer, and where everything is."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from cli.views.terminal import ruled_table, say
from reports.figures import speedup, whole
from targets.files import Json, as_int, as_list, as_number, as_object, as_text
from targets.titles import shape
from targets.workload import parse_workload


def show_results(
    summary: dict[str, Json], folder: Path, reused_stages: int, console: Console
) -> None:
    """The table of `summary.json`, what was reused, and where the results lie."""
    console.print(results_table(summary))
    seconds = as_number(summary["wall_seconds"])
    say(
        console,
        _reused(summary, reused_stages) + f"every schedule verified bit for bit; {seconds:.0f} s\n"
        f"results in {folder}: summary.json, schedules.json, trials.parquet, convergence.png\n"
        "'tilewright ui' shows this run in MLflow and Prefect",
    )


def results_table(summary: dict[str, Json]) -> Table:
    """What each layer costs by default and tuned, how far from the roofline, and at what price."""
    table = ruled_table(padding=0)
    for name in ("layer", "×", "stock", "tuned", "gain", "roofline", "above", "trials", "valid"):
        table.add_column(name, justify="left" if name == "layer" else "right", no_wrap=True)
    rows = _workloads(summary)
    for row in rows:
        name = shape(parse_workload(as_text(row["workload"])))
        table.add_row(name, str(row["count"]), *_figures(row), *_trials([row]))
    table.add_section()
    table.add_row(
        "one inference", "", *_figures(as_object(summary["total"])), *_trials(rows), style="bold"
    )
    return table


def _workloads(summary: dict[str, Json]) -> list[dict[str, Json]]:
    return [as_object(row) for row in as_list(summary["workloads"])]


def _figures(row: dict[str, Json]) -> list[str]:
    default, tuned, bound = (as_int(row[f"{k}_cycles"]) for k in ("default", "tuned", "roofline"))
    above = f"{tuned / bound - 1:.1%}"
    return [whole(default), whole(tuned), speedup(default, tuned), whole(bound), above]


def _trials(rows: list[dict[str, Json]]) -> list[str]:
    trials = sum(as_int(row["trials"]) for row in rows)
    valid = trials - sum(as_int(row["invalid_trials"]) for row in rows)
    return [whole(trials), f"{valid / max(trials, 1):.0%}"]


def _reused(summary: dict[str, Json], stages: int) -> str:
    """What was not done again, in a line; nothing if all was."""
    rows = _workloads(summary)
    held = sum(as_int(row["reused_trials"]) for row in rows)
    if not held and not stages:
        return ""
    trials = sum(as_int(row["trials"]) for row in rows)
    return f"reused {held} of {trials} trials and {stages} finished stages; --fresh starts over\n"
