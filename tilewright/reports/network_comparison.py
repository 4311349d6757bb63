"""Shows a sweep as tables and in Markdown, for the terminal and for pages alike."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.evaluation.compare.leaderboard import Leaderboard, TunerMedians
from tilewright.evaluation.compare.network_runs import SweptRun
from tilewright.evaluation.compare.network_steps import Sweep
from tilewright.evaluation.compare.options import CompareOptions as SweepOptions
from tilewright.reports.markdown import (
    Links,
    Row,
    block,
    listed,
    markdown_table,
    marked,
    paragraphs,
    plain,
    with_known,
)
from tilewright.reports.number_format import counted, milliseconds, percent, speedup, whole
from tilewright.reports.run_results import share_above
from tilewright.tuning.gains import PUBLISHED


def run_rows(runs: Sequence[SweptRun]) -> list[Row]:
    """A row a run; `~` marks what rests on the stock compiler's fallback, or on a rule."""
    rows = [
        {
            "network": run.network,
            "target": run.target,
            "tuner": run.tuner,
            "seed": str(run.seed),
            "trials": whole(run.trials),
            "baseline cycles": marked(_mark(run.baseline), whole(run.baseline_cycles)),
            "baseline ms": marked(_mark(run.baseline), milliseconds(run.baseline_seconds)),
            "tuned cycles": whole(run.tuned_cycles),
            "tuned ms": milliseconds(run.tuned_seconds),
            "gain": marked(_mark(run.baseline), speedup(run.gain, 1.0)),
            "bound cycles": whole(run.bound_cycles),
            "bound ms": milliseconds(run.bound_seconds),
            "above bound": _above(run),
        }
        for run in runs
    ]
    return with_known(rows)


def leaderboard_rows(leaderboards: Sequence[Leaderboard]) -> list[Row]:
    """A row a tuner on each network and target, the fastest first."""
    rows = [_leaderboard_row(each, tuner) for each in leaderboards for tuner in each.tuners]
    return with_known(rows)


def verdict(leaderboard: Leaderboard) -> str:
    """Who won on a network and target, in a sentence."""
    where, first = f"{leaderboard.network} on {leaderboard.target}", leaderboard.tuners[0]
    if not leaderboard.winners:
        return f"{where}: no tuner found valid schedules of all layers"
    said = f"{where}: {' and '.join(leaderboard.winners)}"
    if len(leaderboard.tuners) > 1:
        said += " wins" if _winner(leaderboard) else " are equal"
    if gain := speedup(first.gain, 1.0):
        said += f", median gain {marked(_mark(leaderboard.baseline), gain)}"
    if _winner(leaderboard):
        said += f", fastest on {first.fastest_on} of {counted(first.seeds, 'seed')}"
    return said


def _winner(leaderboard: Leaderboard) -> str | None:
    """The tuner that was faster than all others, if there are others; else None."""
    alone = len(leaderboard.winners) == 1 and len(leaderboard.tuners) > 1
    return leaderboard.winners[0] if alone else None


def sweep_note(options: SweepOptions, runs: int, links: Links, swept: Sweep | None = None) -> str:
    """Of a sweep in Markdown, from its beginning; once it is `swept`, with what came out."""
    count = f"{counted(runs, 'run')}, {counted(options.trials, 'trial')} a workload"
    found: list[str] = []
    if swept is not None:
        found = [
            "\n".join(f"- {plain(verdict(each))}" for each in swept.leaderboards),
            markdown_table(leaderboard_rows(swept.leaderboards)),
            markdown_table(run_rows(swept.runs)),
        ]
    what = f"**{plain(options.subject)}**: tuners {plain(options.rivals)}, seeds {options.seeds}"
    return paragraphs(
        f"{what}; {count}.", *found, block(options.command_line("compare"), "sh"), listed(links)
    )


def _leaderboard_row(leaderboard: Leaderboard, tuner: TunerMedians) -> Row:
    cycles = tuner.tuned_cycles
    return {
        "network": leaderboard.network,
        "target": leaderboard.target,
        "tuner": tuner.tuner,
        "median gain": marked(_mark(leaderboard.baseline), speedup(tuner.gain, 1.0)),
        "median cycles": whole(None if cycles is None else round(cycles)),
        "median ms": milliseconds(tuner.tuned_seconds),
        "fastest on": f"{tuner.fastest_on} of {tuner.seeds}",
        "": "wins" if tuner.tuner == _winner(leaderboard) else "",
    }


def _mark(baseline: str) -> str:
    return "" if baseline == PUBLISHED else "~"


def _above(run: SweptRun) -> str:
    tuned, bound = (run.tuned_cycles, run.tuned_seconds), (run.bound_cycles, run.bound_seconds)
    above = share_above(tuned, bound)
    return "" if above is None else percent(above)
