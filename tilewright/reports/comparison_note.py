"""Description of a comparison of tuners in Markdown, for Prefect and MLflow."""

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
    escape_text,
    list_links,
    markdown_table,
    paragraphs,
    with_known,
)
from tilewright.reports.number_format import (
    count_text,
    integer_text,
    milliseconds,
    percent,
    speedup,
)
from tilewright.tuning.run_figures import share_above


def run_rows(runs: Sequence[NetworkRun]) -> list[Row]:
    """Return a table of tuning runs with their latencies and gains.

    The latencies are those of the stock compiler's fallback, the rule schedules, the tuned
    schedules and the lower bound. The gain is relative to the rule schedules. Columns that are
    empty in every row are left out.

    Args:
        runs: results of the runs.

    Returns:
        One row per run.
    """
    rows = [
        {
            "network": run.network,
            "target": run.target,
            "tuner": run.tuner,
            "seed": str(run.seed),
            "trials": integer_text(run.trials),
            "fallback cycles": integer_text(run.fallback_cycles),
            "fallback ms": milliseconds(run.fallback_seconds),
            "rule cycles": integer_text(run.rule_cycles),
            "rule ms": milliseconds(run.rule_seconds),
            "tuned cycles": integer_text(run.tuned_cycles),
            "tuned ms": milliseconds(run.tuned_seconds),
            "gain": speedup(run.gain, 1.0),
            "bound cycles": integer_text(run.bound_cycles),
            "bound ms": milliseconds(run.bound_seconds),
            "above bound": _ratio_text(run),
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

    Returns:
        The text.
    """
    count = f"{count_text(runs, 'run')}, {count_text(options.trials, 'trial')} per workload"
    subject, rivals = escape_text(options.subject), escape_text(options.rivals)
    what = f"**{subject}**: tuners {rivals}, seeds {options.seeds}"
    return paragraphs(
        f"{what}; {count}.",
        "\n".join(f"- {escape_text(verdict(board))}" for board in boards),
        markdown_table(leaderboard_rows(boards)) if boards else "",
        markdown_table(run_rows(network_runs)) if network_runs else "",
        block(options.command_line("compare"), "sh"),
        list_links(links),
    )


def _ratio_text(run: NetworkRun) -> str:
    tuned, bound = (run.tuned_cycles, run.tuned_seconds), (run.bound_cycles, run.bound_seconds)
    above = share_above(tuned, bound)
    return "" if above is None else percent(above)
