"""What a tuning run came to: a line a layer, and where everything is."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from cli.views.latency import as_latency, cost, latency_text
from cli.views.terminal import ruled_table, say
from reports.figures import percent, speedup, whole
from targets.capabilities import is_published
from targets.titles import shape
from targets.workload import parse_workload
from tuning.outcome import WorkloadRow
from tuning.outputs import Summary
from tuning.totals import Total, share_of


def show_results(summary: Summary, folder: Path, reused_stages: int, console: Console) -> None:
    """The table of `summary.json`, what it covers, what was reused, and where the results lie."""
    console.print(results_table(summary))
    say(
        console,
        headline(summary)
        + "\n"
        + _reused(summary, reused_stages)
        + f"every schedule verified bit for bit; {summary['wall_seconds']:.0f} s\n"
        f"results in {folder}: summary.json, schedules.json, trials.parquet, convergence.png"
        + ("\n'tilewright ui' shows this run in MLflow and Prefect" * ("mlflow_run_id" in summary)),
    )


def results_table(summary: Summary) -> Table:
    """What each layer costs by default and tuned, how far from the roofline, and at what price."""
    table = ruled_table(padding=0)
    for name in ("layer", "×", "untuned", "tuned", "gain", "roofline", "above", "trials", "valid"):
        table.add_column(name, justify="left" if name == "layer" else "right", no_wrap=True)
    rows = summary["workloads"]
    for row in rows:
        name = shape(parse_workload(row["workload"]))
        guess = not is_published(row["default_source"])
        table.add_row(name, str(row["count"]), *_figures(row, guess), *_trials([row]))
    table.add_section()
    total = summary["total"]
    guess = total["published"]["workloads"] < len(rows)
    table.add_row("offloaded layers", "", *_figures(total, guess), *_trials(rows), style="bold")
    return table


def headline(summary: Summary) -> str:
    """What tuning gained, against which schedules, and of how much of the network."""
    total, published = summary["total"], summary["total"]["published"]
    layers, known = len(summary["workloads"]), published["workloads"]
    compared = published if known else total
    before = cost(as_latency(compared["default_seconds"], compared["default_cycles"]))
    after = cost(as_latency(compared["tuned_seconds"], compared["tuned_cycles"]))
    gain = speedup(before, after)
    if gain and known == layers:
        said = f"offloaded layers {gain} against the stock compiler's schedules"
    elif gain and known:
        said = (
            f"{known} of {layers} offloaded layers {gain} against the stock compiler's schedules; "
            f"the other {layers - known} have none, an estimate stands in (~)"
        )
    elif gain:
        said = (
            f"offloaded layers ~{gain} against estimated schedules, for no stock ones are published"
        )
    else:
        said = "offloaded layers: no untuned schedule to compare with"
    every = f"all {layers}: " if 0 < known < layers else ""
    rest = "; the rest stays on the CPU" if share_of(summary["macs"]) < 1 else ""
    return f"{said} ({every}{percent(share_of(summary['macs']))} of the network's MACs{rest})"


def _figures(row: WorkloadRow | Total, guess: bool) -> list[str]:
    """`guess` marks what rests on a schedule that nobody published."""
    default = as_latency(row["default_seconds"], row["default_cycles"])
    tuned = as_latency(row["tuned_seconds"], row["tuned_cycles"])
    bound = as_latency(row["roofline_seconds"], row["roofline_cycles"])
    taken, least = cost(tuned), cost(bound)
    above = f"{taken / least - 1:.1%}" if taken and least else ""
    gain = speedup(cost(default), taken)
    mark = "~" if guess and default else ""
    return [
        mark + latency_text(default), latency_text(tuned), mark + gain, latency_text(bound), above,
    ]  # fmt: skip


def _trials(rows: list[WorkloadRow]) -> list[str]:
    trials = sum(row["trials"] for row in rows)
    valid = trials - sum(row["invalid_trials"] for row in rows)
    return [whole(trials), f"{valid / max(trials, 1):.0%}"]


def _reused(summary: Summary, stages: int) -> str:
    """What was not done again, in a line; nothing if all was."""
    rows = summary["workloads"]
    held = sum(row["reused_trials"] for row in rows)
    if not held and not stages:
        return ""
    trials = sum(row["trials"] for row in rows)
    return f"reused {held} of {trials} trials and {stages} finished stages; --fresh starts over\n"
