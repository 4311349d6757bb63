"""Shows the results of a tuning run: a line a layer, and where everything is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tilewright.cli.views.latency import as_latency, cost, cycles_text, latency_text, time_text
from tilewright.cli.views.terminal import fitting, ruled_table, say
from tilewright.reports.number_format import duration, percent, plural, speedup, whole
from tilewright.reports.run_table import sure_gain, sure_time
from tilewright.targets.capabilities import is_published
from tilewright.targets.display_names import shape
from tilewright.targets.workload import parse_workload
from tilewright.tuning.network_totals import Total, share_of
from tilewright.tuning.output_dir import CONVERGENCE, FUSION_PAGE, SCHEDULES, SUMMARY, TRIALS
from tilewright.tuning.outputs import Summary
from tilewright.tuning.results import WorkloadRow

DROPPABLE = (
    "roofline\ncycles", "gain\n95 %", "baseline\nms", "bound\ncycles", "trials", "valid",
    "baseline\ncycles", "tuned\n95 %", "above\nbound", "above\nroof", "×", "gain", "tuned\nms",
)  # fmt: skip
"""Columns that a narrow terminal does without, the first first."""


def show_results(
    summary: Summary,
    folder: Path,
    reused_stages: int,
    links: Mapping[str, str],
    console: Console,
) -> None:
    """The table of `summary.json`, what was reused, where the results lie, and links to the run's
    pages by whose they are."""
    console.print(results_table(summary, console.width))
    say(
        console,
        _part(summary)
        + headline(summary)
        + "\n"
        + _without_a_log(summary)
        + _sharing(summary)
        + _reused(summary, reused_stages)
        + _validation(summary)
        + _proof(summary)
        + _fused(summary)
        + f"; {summary['wall_seconds']:.0f} s\n"
        f"results in {folder}: {SUMMARY}, {SCHEDULES}, {TRIALS}, {CONVERGENCE}"
        + f", {FUSION_PAGE}" * ("fusion" in summary)
        + ("\n'tilewright ui' shows this run:" * bool(links)),
    )
    for name, address in links.items():
        console.print(f"{name:8} {address}", soft_wrap=True, highlight=False)


def results_table(summary: Summary, width: int = 80) -> Table:
    """Lists each layer's baseline and tuned latency, bounds, gain and trials, as far as there is
    room: cycles where the target counts them, and milliseconds. What a target cannot tell has no
    column. `~` marks what rests on a baseline that the stock compiler does not publish."""
    rows = summary["workloads"]
    names = [shape(parse_workload(row["workload"])) for row in rows] + [_total_name(summary)]
    counts = [str(row["count"]) for row in rows] + [""]
    figures = [*(_figures(row, [row]) for row in rows), _figures(summary["total"], rows)]
    columns = {"layer": names, "×": counts}
    columns |= {head: [of[head] for of in figures] for head in figures[0]}
    counted = any(columns["baseline\ncycles"])
    droppable = [head for head in DROPPABLE if counted or head != "baseline\nms"]
    shown = fitting(columns, droppable, width)
    table = ruled_table(padding=(0, 1, 0, 0))
    for head in shown:
        left = head == "layer"
        table.add_column(head, justify="left" if left else "right", no_wrap=True)
    *lines, last = zip(*shown.values(), strict=True)
    for line in lines:
        table.add_row(*line)
    table.add_section()
    table.add_row(*last, style="bold")
    return table


def headline(summary: Summary) -> str:
    """What tuning gained on published baselines, and of how much of the network. A guess
    does not count: where nothing is published, no gain is stated."""
    published = summary["total"]["published"]
    layers, known = len(summary["workloads"]), published["workloads"]
    before = cost(as_latency(published["baseline_seconds"], published["baseline_cycles"]))
    after = cost(as_latency(published["tuned_seconds"], published["tuned_cycles"]))
    gain = speedup(before, after)
    share = f"{percent(share_of(summary['macs']))} of the network's MACs"
    rest = "; the rest is not tuned" if share_of(summary["macs"]) < 1 else ""
    if not gain:
        return f"tuned layers: the stock compiler publishes no baseline ({share}{rest})"
    if known == layers:
        return f"tuned layers {gain} against the published baseline ({share}{rest})"
    return (
        f"{known} of {layers} tuned layers {gain} against the published baseline; "
        f"the other baselines are estimates (~) (all {layers}: {share}{rest})"
    )


def _figures(row: WorkloadRow | Total, rows: list[WorkloadRow]) -> dict[str, str]:
    """The cells of a line by the head of their column: latencies of `row`, trials of `rows`."""
    baseline = as_latency(row["baseline_seconds"], row["baseline_cycles"])
    tuned = as_latency(row["tuned_seconds"], row["tuned_cycles"])
    bound = as_latency(row["bound_seconds"], row["bound_cycles"])
    roofline = as_latency(row["roofline_seconds"], row["roofline_cycles"])
    guess = "" if all(is_published(each["baseline_source"]) for each in rows) else "~"
    cells: dict[str, str] = {}
    for name, latency, mark in (("baseline", baseline, guess), ("tuned", tuned, "")):
        counted = _marked(mark, cycles_text(latency))
        cells |= {f"{name}\ncycles": counted, f"{name}\nms": time_text(latency)}
    cells |= {
        "tuned\n95 %": sure_time(row),
        "bound\ncycles": cycles_text(bound), "roofline\ncycles": cycles_text(roofline),
    }  # fmt: skip
    taken, least, of_what = cost(tuned), cost(bound), "bound"
    if least is None:
        least, of_what = cost(roofline), "roof"
    trials = sum(each["trials"] for each in rows)
    valid = trials - sum(each["invalid_trials"] for each in rows)
    return cells | {
        "gain": _marked(guess, speedup(cost(baseline), taken)),
        "gain\n95 %": sure_gain(row),
        f"above\n{of_what}": f"{taken / least - 1:.1%}" if taken and least else "",
        "trials": whole(trials),
        "valid": f"{valid / max(trials, 1):.0%}",
    }


def _marked(mark: str, text: str) -> str:
    return mark + text if text else ""


def _total_name(summary: Summary) -> str:
    part = summary.get("part", {})
    if "workload" in part:
        return "this workload"
    return "these layers" if part else "tuned layers"


def _part(summary: Summary) -> str:
    """What was tuned, where that is not all that can be; empty otherwise."""
    part = summary.get("part", {})
    if "layers" not in part:
        return ""
    return (
        f"a part: {len(summary['workloads'])} of the network's {part['workloads_of_network']} "
        "workloads, counted as often as an inference runs them\n"
    )


def _without_a_log(summary: Summary) -> str:
    """What the stock compiler's rule for layers without a log makes of these, in a line; nothing
    where no rule of it is known. That compiler itself has no pools and unfolds no image."""
    total = summary["total"]
    fallback = as_latency(total["fallback_seconds"], total["fallback_cycles"])
    if fallback is None:
        return ""
    ratio = speedup(cost(fallback), cost(as_latency(total["tuned_seconds"], total["tuned_cycles"])))
    tuned = f", {ratio} the tuned time" if ratio else ""
    return (
        "by the stock compiler's rule for layers without a log, the smallest tiles: "
        f"{latency_text(fallback)}{tuned}\n"
    )


def _validation(summary: Summary) -> str:
    """What latencies rest on where measuring does not repeat; nothing elsewhere."""
    rows = [row["validation"] for row in summary["workloads"] if "validation" in row]
    if not rows:
        return ""
    count, seconds = (sum(row[name] for row in rows) for name in ("measurements", "seconds"))
    gain = sure_gain(summary["total"])
    return (
        f"{count:,.0f} validation measurements ({duration(seconds)}) gave winners and "
        "latencies" + (f"\nthe gain in all is {gain} with 95 % confidence" if gain else "") + "\n"
    )


def _proof(summary: Summary) -> str:
    timed = "every schedule timed again"
    if not summary.get("verified", True):
        return f"{timed}, none verified: the target runs nothing on data"
    rows = summary["workloads"]
    exact = all(parse_workload(row["workload"]).dtype == "int8" for row in rows)
    return f"{timed} and verified {'bit for bit' if exact else 'against numpy'}"


def _fused(summary: Summary) -> str:
    """What runs together, where that was decided, and what the whole network takes then."""
    if "fusion" not in summary:
        return ""
    said = summary["fusion"]
    mode, cycles = said["mode"], said["cycles"]
    rows = said["decisions"]
    fused = sum(row["fused"] for row in rows)
    beside = [
        f"{name} {whole(cycles[name])}" for name in cycles if name != mode
    ]  # fmt: skip
    rest = f" ({', '.join(beside)})" if beside else ""
    return (
        f"\n{fused} of {len(rows)} {plural(len(rows), 'decision')} fused, {mode}: the whole "
        f"network takes {whole(cycles[mode])} cycles{rest}, "
        f"{whole(said['dram_bytes'][mode])} bytes moved; "
        f"{said['evaluations']} labelled graphs simulated, {said['tuned']} more "
        f"{plural(said['tuned'], 'workload')} tuned"
    )


def _sharing(summary: Summary) -> str:
    """What became of shared trials, in a line; nothing where they were not."""
    if "stop_gain" not in summary:
        return ""
    sharing = summary["stop_gain"]
    expected = sharing["expected_gain"]
    why = {
        "gain": "no next round is expected to save more than "
        f"{sharing['share']:.3g} of the latency",
        "trials": "they are spent",
        "exhausted": "nothing is left to try",
    }
    best = "" if expected is None else f" (the best one: {expected:.2g})"
    reason = f"{why[sharing['why']]}{best}"
    return f"{sharing['trials']} of at most {sharing['most_trials']} trials: {reason}\n"


def _reused(summary: Summary, stages: int) -> str:
    """What was not done again, in a line; nothing if all was."""
    rows = summary["workloads"]
    held = sum(row["reused_trials"] for row in rows)
    if not held and not stages:
        return ""
    trials = sum(row["trials"] for row in rows)
    whose = " of the network's own workloads" if "fusion" in summary else ""
    return (
        f"reused {held} of {trials} trials{whose} and {stages} finished stages; "
        "--fresh starts over\n"
    )
