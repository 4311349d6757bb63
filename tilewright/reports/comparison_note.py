"""Description of a comparison in Markdown, for Prefect and MLflow, and the table of runs of
networks."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.evaluation.compare.leaderboard import Leaderboard
from tilewright.evaluation.compare.network_runs import NetworkRun
from tilewright.evaluation.compare.options import CompareOptions
from tilewright.reports.leaderboard import leaderboard_rows, verdict
from tilewright.reports.markdown import (
    Links,
    Row,
    block,
    listed,
    markdown_table,
    paragraphs,
    plain,
    with_known,
)
from tilewright.reports.number_format import counted, milliseconds, percent, speedup, whole
from tilewright.tuning.run_figures import share_above


def run_rows(runs: Sequence[NetworkRun]) -> list[Row]:
    """Return one row per tuning run, with its latencies and the gain over the rule schedule.

    The latencies are those of the fallback, the rule schedule, the tuned schedule and the bound.
    """
    rows = [
        {
            "network": run.network,
            "target": run.target,
            "tuner": run.tuner,
            "seed": str(run.seed),
            "trials": whole(run.trials),
            "fallback cycles": whole(run.fallback_cycles),
            "fallback ms": milliseconds(run.fallback_seconds),
            "rule cycles": whole(run.rule_cycles),
            "rule ms": milliseconds(run.rule_seconds),
            "tuned cycles": whole(run.tuned_cycles),
            "tuned ms": milliseconds(run.tuned_seconds),
            "gain": speedup(run.gain, 1.0),
            "bound cycles": whole(run.bound_cycles),
            "bound ms": milliseconds(run.bound_seconds),
            "above bound": _above(run),
        }
        for run in runs
    ]
    return with_known(rows)


def comparison_note(
    options: CompareOptions,
    runs: int,
    links: Links,
    boards: Sequence[Leaderboard] = (),
    network_runs: Sequence[NetworkRun] = (),
) -> str:
    """Return the description of a comparison in Markdown.

    Args:
        options: options of the comparison.
        runs: number of runs.
        links: addresses of related pages, by title.
        boards: the leaderboards; empty until the comparison is finished.
        network_runs: the finished runs; empty for a comparison on workloads.
    """
    count = f"{counted(runs, 'run')}, {counted(options.trials, 'trial')} per workload"
    what = f"**{plain(options.subject)}**: tuners {plain(options.rivals)}, seeds {options.seeds}"
    return paragraphs(
        f"{what}; {count}.",
        "\n".join(f"- {plain(verdict(each))}" for each in boards),
        markdown_table(leaderboard_rows(boards)) if boards else "",
        markdown_table(run_rows(network_runs)) if network_runs else "",
        block(options.command_line("compare"), "sh"),
        listed(links),
    )


def _above(run: NetworkRun) -> str:
    tuned, bound = (run.tuned_cycles, run.tuned_seconds), (run.bound_cycles, run.bound_seconds)
    above = share_above(tuned, bound)
    return "" if above is None else percent(above)
