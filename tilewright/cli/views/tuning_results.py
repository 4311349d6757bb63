"""Display of the results of a tuning run: a table with one line per layer, and the files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tilewright.cli.views.convergence import convergence_lines
from tilewright.cli.views.terminal import (
    BREAK,
    cycles_text,
    fitted_table,
    print_line,
    time_text,
)
from tilewright.core.errors import TilewrightError
from tilewright.core.user_text import printable
from tilewright.reports.number_format import (
    count_text,
    duration,
    integer_text,
    percent,
    pluralise,
    speedup,
)
from tilewright.reports.run_results import figures_text, sure_gain, sure_time
from tilewright.targets.display_names import layer
from tilewright.targets.workload import parse_workload
from tilewright.tuning.gains import FALLBACK, RULE, Total, as_latency, four_figures, share_of
from tilewright.tuning.output_dir import CONVERGENCE, FUSION_PAGE, SCHEDULES, SUMMARY, TRIALS
from tilewright.tuning.outputs import Summary
from tilewright.tuning.results import WorkloadRow
from tilewright.tuning.run_figures import above_limit, valid_share
from tilewright.tuning.run_trials import finished_trials

_SHORT = {"bound": "bound", "roofline": "roof"}
DROPPABLE = (
    "roofline\ncycles", "gain\n95 %", "fallback\nms", "bound\nms", "rule\nms", "over\nfallback",
    "bound\ncycles", "fallback\ncycles", "trials", BREAK, "valid", "rule\ncycles",
    "tuned\n95 %", "above\nbound", "above\nroof", "×", "over\nrule", "tuned\nms",
)  # fmt: skip
"""Columns that are left out, in this order, until the table fits a narrow terminal."""


def show_results(
    summary: Summary,
    folder: Path,
    reused_stages: int,
    links: Mapping[str, str],
    console: Console,
) -> None:
    """Show the table of results, what was reused, the files, and links to the run's pages.

    Args:
        summary: content of `summary.json`.
        folder: output directory of the run.
        reused_stages: number of steps whose results came from the cache.
        links: addresses of the run's pages, by name.
        console: the terminal.
    """
    console.print(results_table(summary, console.width))
    if console.is_terminal:
        with suppress(TilewrightError, OSError):
            for line in convergence_lines(finished_trials(folder)):
                print_line(console, line)
    print_line(
        console,
        f"{headline(summary)}\n{coverage(summary)}\n"
        + _sharing(summary)
        + _reuse_text(summary, reused_stages)
        + _validation(summary)
        + _proof(summary)
        + _fusion_text(summary)
        + f"; {summary['wall_seconds']:.0f} s\n"
        f"results in {folder}: {SUMMARY}, {SCHEDULES}, {TRIALS}, {CONVERGENCE}"
        + f", {FUSION_PAGE}" * ("fusion" in summary)
        + ("\n'tilewright ui' shows this run:" * bool(links)),
    )
    for name, address in links.items():
        console.print(f"{name:8} {address}", soft_wrap=True, highlight=False)


def results_table(summary: Summary, width: int = 80) -> Table:
    """Return the table of a run's latencies, one line per layer, with as many columns as fit.

    The columns are the four latencies of each layer, the speed-ups of the tuned schedule, and the
    trials. Speed-ups are given over the rule schedule (chosen without a trial) and over the
    fallback (the stock compiler's schedule). Latencies are in milliseconds and, if the target
    counts cycles, also in cycles. A column without any known value is left out.

    Args:
        summary: content of `summary.json`.
        width: width of the terminal in characters.
    """
    rows = summary["workloads"]
    names = [layer(row["names"], parse_workload(row["workload"], row["epilogue"])) for row in rows]
    counts = [str(row["count"]) for row in rows] + [""]
    figures = [*(_figures(row, [row]) for row in rows), _figures(summary["total"], rows)]
    columns = {"layer": [*names, _total_name(summary)], "×": counts}
    columns |= {head: [of[head] for of in figures] for head in figures[0]}
    counted = any(columns["tuned\ncycles"])
    droppable = [head for head in DROPPABLE if counted or head not in ("rule\nms", "bound\nms")]
    return fitted_table(columns, droppable, width, total=True)


def headline(summary: Summary) -> str:
    """Return a sentence about the latency of the tuned layers per inference.

    It contains the speed-ups over the rule schedule (chosen without a trial) and over the fallback
    (the stock compiler's schedule), and the distance from the lower bound.

    Args:
        summary: content of `summary.json`.
    """
    total = summary["total"]
    subject = f"{printable(summary['network'])} on {printable(summary['target'])}"
    if four_figures(total).tuned is None:
        return f"{subject}: at least one layer has no valid schedule among its trials"
    return f"{subject}: {figures_text(total)}"


def _figures(row: WorkloadRow | Total, rows: list[WorkloadRow]) -> dict[str, str]:
    """Return the cells of a line of the results table, by heading.

    Args:
        row: latencies of a layer or of all layers.
        rows: the workloads whose trials are counted in this line.
    """
    figures, (limit, above) = four_figures(row), above_limit(row)
    roofline = as_latency(row["roofline_seconds"], row["roofline_cycles"])
    trials = sum(row["trials"] for row in rows)
    invalid = sum(row["invalid_trials"] for row in rows)
    return {
        "fallback\ncycles": cycles_text(figures.fallback),
        "fallback\nms": time_text(figures.fallback),
        "rule\ncycles": cycles_text(figures.rule),
        "rule\nms": time_text(figures.rule),
        "tuned\ncycles": cycles_text(figures.tuned),
        "tuned\nms": time_text(figures.tuned),
        "tuned\n95 %": sure_time(row),
        "bound\ncycles": cycles_text(figures.bound),
        "bound\nms": time_text(figures.bound),
        "roofline\ncycles": cycles_text(roofline),
        "over\nrule": speedup(figures.gain_over(RULE), 1.0),
        "gain\n95 %": sure_gain(row),
        "over\nfallback": speedup(figures.gain_over(FALLBACK), 1.0),
        f"above\n{_SHORT[limit]}": "" if above is None else f"{above:.1%}",
        "trials": integer_text(trials),
        "valid": f"{valid_share(invalid, trials):.0%}",
    }


def _total_name(summary: Summary) -> str:
    part = summary.get("part", {})
    if "workload" in part:
        return "this workload"
    return "these layers" if part else "tuned layers"


def coverage(summary: Summary) -> str:
    """Return a sentence about the fraction of the network that was tuned.

    It also states for how many workloads the rule schedule (chosen without a trial) is a schedule
    that the stock compiler publishes.

    Args:
        summary: content of `summary.json`.
    """
    rows, part = summary["workloads"], summary.get("part", {})
    share = share_of(summary["macs"])
    message = f"{percent(share)} of the network's MACs"
    if "layers" in part:
        message = (
            f"only part of the network: {len(rows)} of its "
            f"{part['workloads_of_network']} workloads, weighted by how often an "
            f"inference runs them, {message}"
        )
    elif share < 1:
        message += "; the rest is not tuned"
    return "; ".join(filter(None, (message, _published_text(summary))))


def _published_text(summary: Summary) -> str:
    """Return for how many workloads the rule schedule is published by the stock compiler.

    The text is empty if there is no such workload.
    """
    known, rows = summary["total"]["published"]["workloads"], summary["workloads"]
    if not known:
        return ""
    return (
        f"the rule schedule is the stock compiler's published schedule for {known} of "
        f"{len(rows)} workloads"
    )


def _validation(summary: Summary) -> str:
    """Return sentences about the final validation: its measurements, and the speed-up's interval.

    In the final validation, the best schedules are measured again. The text is "" if the target is
    deterministic and needs no validation.
    """
    rows = [row["validation"] for row in summary["workloads"] if "validation" in row]
    if not rows:
        return ""
    count, seconds = (sum(row[name] for row in rows) for name in ("measurements", "seconds"))
    gain = sure_gain(summary["total"])
    speedup = f"the speedup of the whole network is {gain} with 95 % confidence\n" if gain else ""
    return (
        f"{count_text(int(count), 'validation measurement')} ({duration(seconds)}) determined the "
        f"schedules and latencies\n{speedup}"
    )


def _proof(summary: Summary) -> str:
    timed = "every schedule timed again"
    if not summary.get("verified", True):
        return f"{timed}, none verified: the target cannot run data"
    rows = summary["workloads"]
    exact = all(parse_workload(row["workload"]).dtype == "int8" for row in rows)
    return f"{timed} and verified {'bit for bit' if exact else 'against numpy'}"


def _fusion_text(summary: Summary) -> str:
    """Return how many operators were fused and the new latency; "" if fusion was not decided."""
    if "fusion" not in summary:
        return ""
    said = summary["fusion"]
    mode, cycles = said["mode"], said["cycles"]
    rows = said["decisions"]
    fused = sum(row["fused"] for row in rows)
    beside = [
        f"{name} {integer_text(cycles[name])}" for name in cycles if name != mode
    ]  # fmt: skip
    rest = f" ({', '.join(beside)})" if beside else ""
    return (
        f"\n{fused} of {len(rows)} fusion {pluralise(len(rows), 'decision')} taken, "
        f"{mode}: the whole network takes {integer_text(cycles[mode])} cycles{rest} and "
        f"moves {integer_text(said['dram_bytes'][mode])} bytes; {said['evaluations']} fusion "
        f"plans simulated, {said['tuned']} additional "
        f"{pluralise(said['tuned'], 'workload')} tuned"
    )


def _sharing(summary: Summary) -> str:
    """Return a sentence about the number of shared trials and the reason why tuning ended.

    The text is "" if the workloads did not share their trials.
    """
    if "stop_gain" not in summary:
        return ""
    sharing = summary["stop_gain"]
    expected = sharing["expected_gain"]
    why = {
        "gain": (
            "no further round is expected to reduce the latency by more than "
            f"{sharing['share']:.3g} of its value"
        ),
        "trials": "all trials are used",
        "exhausted": "no candidate is left",
        "time": "the time limit is reached",
    }
    best = "" if expected is None else f" (largest expected reduction: {expected:.2g})"
    reason = f"{why[sharing['why']]}{best}"
    most = count_text(sharing["most_trials"], "trial")
    return f"{sharing['trials']:,} of at most {most}: {reason}\n"


def _reuse_text(summary: Summary, stages: int) -> str:
    """Return a sentence about reused trials and stages; "" if nothing was reused.

    Args:
        summary: content of `summary.json`.
        stages: number of steps whose results came from the cache.
    """
    rows = summary["workloads"]
    held = sum(row["reused_trials"] for row in rows)
    if not held and not stages:
        return ""
    trials = sum(row["trials"] for row in rows)
    whose = " of this network's own workloads" if "fusion" in summary else ""
    also = f" and {count_text(stages, 'finished stage')}" if stages else ""
    return f"reused {held} of {count_text(trials, 'trial')}{whose}{also}; --fresh starts over\n"
