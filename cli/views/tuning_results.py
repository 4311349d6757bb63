"""What a tuning run came to: a line a layer, and where everything is."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from cli.views.latency import as_latency, cost, cycles_text, time_text
from cli.views.terminal import ruled_table, say
from reports.figures import speedup, whole
from targets.titles import shape
from targets.workload import parse_workload
from tuning.folders import CONVERGENCE, SCHEDULES, SUMMARY, TRIALS
from tuning.outcome import PUBLISHED, WorkloadRow, untuned_word
from tuning.outputs import Summary, Total

WIDE = 100  # columns of a terminal that has room for the roofline and the trials


def show_results(summary: Summary, folder: Path, reused_stages: int, console: Console) -> None:
    """The table of `summary.json`, what was reused, and where the results lie."""
    console.print(results_table(summary, console.width))
    say(
        console,
        _legend(summary)
        + _reused(summary, reused_stages)
        + f"every schedule verified bit for bit; {summary['wall_seconds']:.0f} s\n"
        f"results in {folder}: {SUMMARY}, {SCHEDULES}, {TRIALS}, {CONVERGENCE}"
        + ("\n'tilewright ui' shows this run in MLflow and Prefect" * ("mlflow_run_id" in summary)),
    )


def results_table(summary: Summary, width: int = 80) -> Table:
    """What each layer costs untuned and tuned, how far from the roofline, and at what price; cycles
    where the target counts them, and milliseconds. What a target cannot tell has no column."""
    rows, wide = summary["workloads"], width >= WIDE
    names = [shape(parse_workload(row["workload"])) for row in rows] + [_total_name(summary)]
    counts = [str(row["count"]) for row in rows] + [""]
    each = [_figures(row, [row], wide) for row in rows]
    figures = [*each, _figures(summary["total"], rows, wide)]
    columns = {"layer": names, "×": counts}
    columns |= {head: [of[head] for of in figures] for head in figures[0]}
    untuned = untuned_word(row["default_source"] for row in rows)
    table, shown = ruled_table(padding=(0, 1, 0, 0)), []
    for head, cells in columns.items():
        if any(cells):
            shown.append(cells)
            left = head == "layer"
            name = head.replace("untuned", untuned)
            table.add_column(name, justify="left" if left else "right", no_wrap=True)
    *lines, last = zip(*shown, strict=True)
    for line in lines:
        table.add_row(*line)
    table.add_section()
    table.add_row(*last, style="bold")
    return table


def _figures(row: WorkloadRow | Total, rows: list[WorkloadRow], wide: bool) -> dict[str, str]:
    """The cells of a line by the head of their column: latencies of `row`, trials of `rows`."""
    untuned = as_latency(row["default_seconds"], row["default_cycles"])
    tuned = as_latency(row["tuned_seconds"], row["tuned_cycles"])
    bound = as_latency(row["roofline_seconds"], row["roofline_cycles"])
    cells = {}
    for name, latency in (("untuned", untuned), ("tuned", tuned), ("roofline", bound)):
        if wide or name != "roofline":
            cells |= {f"{name}\ncycles": cycles_text(latency), f"{name}\nms": time_text(latency)}
    taken, least = cost(tuned), cost(bound)
    trials = sum(each["trials"] for each in rows)
    valid = trials - sum(each["invalid_trials"] for each in rows)
    cells["gain"] = speedup(cost(untuned), taken)
    cells["above\nroof"] = f"{taken / least - 1:.1%}" if taken and least else ""
    if wide:
        cells["trials"] = whole(trials)
    return cells | {"valid": f"{valid / max(trials, 1):.0%}"}


def _total_name(summary: Summary) -> str:
    part = summary.get("part", {})
    if "workload" in part:
        return "this workload"
    return "these layers" if part else "one inference"


def _legend(summary: Summary) -> str:
    """What the columns are of, where the words in the head do not say it."""
    rows, part = summary["workloads"], summary.get("part", {})
    lines = []
    if "layers" in part:
        lines.append(
            f"a part: {len(rows)} of the network's {part['workloads_of_network']} workloads, "
            "counted as often as an inference runs them"
        )
    published = sum(row["default_source"] == PUBLISHED for row in rows)
    if 0 < published < len(rows):
        lines.append(
            f"untuned: the stock compiler's published schedule for {published} of {len(rows)} "
            "layers, for the others the best by estimate"
        )
    return "".join(line + "\n" for line in lines)


def _reused(summary: Summary, stages: int) -> str:
    """What was not done again, in a line; nothing if all was."""
    rows = summary["workloads"]
    held = sum(row["reused_trials"] for row in rows)
    if not held and not stages:
        return ""
    trials = sum(row["trials"] for row in rows)
    return f"reused {held} of {trials} trials and {stages} finished stages; --fresh starts over\n"
