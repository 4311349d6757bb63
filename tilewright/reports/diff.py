"""Description of the differences between two runs, as text and tables.

The terminal and the pages show the same text and tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.evaluation.diff import Change, DifferentSetting, DiffVerdict, Pair
from tilewright.reports.markdown import (
    Links,
    Row,
    escape_text,
    list_links,
    markdown_table,
    paragraphs,
)
from tilewright.reports.number_format import UNKNOWN, integer_text, milliseconds, percent

MARK = "worse"
"""Mark in the tables for a value that is worse in the second run."""
_MODELS = {
    "P_rmse": "error of P, log2",
    "A_rmse": "error of A, log2",
    "V_brier": "error of V, Brier",
}


def headline(verdict: DiffVerdict) -> str:
    """Return the verdict and the change of the total latency in one line.

    An example is `no worse: 7,136,630 cycles became 7,100,020 (-0.5 %)`.
    """
    return f"{verdict.word}: {change_text(verdict.total)}"


def change_text(change: Change) -> str:
    """Return the change of a latency as text: `7,136,630 cycles became 7,100,020 (-0.5 %)`.

    On targets that do not count cycles, latencies are in ms.
    """
    unit = "cycles" if change.unit == "cycles" else "ms"
    return (
        f"{_latency(change, change.a)} {unit} became {_latency(change, change.b)} ({_more(change)})"
    )


def latency_rows(verdict: DiffVerdict) -> list[Row]:
    """Return a table of the latencies in both runs: one row per layer and one for their total.

    The columns are the layer, the latencies of the runs A and B, the relative change, and a mark if
    B is worse.

    Args:
        verdict: result of comparing the two runs.
    """
    unit = "cycles" if verdict.total.unit == "cycles" else "ms"
    rows = []
    for workload in (*verdict.workloads, verdict.total):
        rows.append(
            {
                "layer": "tuned layers" if workload is verdict.total else workload.what,
                f"{unit} of A": _latency(workload, workload.a),
                f"{unit} of B": _latency(workload, workload.b),
                "change": _more(workload),
                "": MARK if workload.worse else "",
            }
        )
    return rows


def figure_rows(verdict: DiffVerdict) -> list[Row]:
    """Return a table of the share of valid trials and of each cost model's error in both runs.

    The columns are the name of the quantity, its values in the runs A and B, and a mark if B is
    worse.

    Args:
        verdict: result of comparing the two runs.
    """
    return [
        {
            "figure": _MODELS.get(model.what, model.what),
            "A": _figure(model, model.a),
            "B": _figure(model, model.b),
            "": MARK if model.worse else "",
        }
        for model in (verdict.validity, *verdict.models)
    ]


def setting_rows(settings: Sequence[DifferentSetting]) -> list[Row]:
    """Return a table of the settings that differ, with the value in each run."""
    return [
        {"what": setting.what, "A": setting.a or UNKNOWN, "B": setting.b or UNKNOWN}
        for setting in settings
    ]


def diff_page(title: str, verdict: DiffVerdict, links: Links) -> str:
    """Return the comparison of two runs as a Markdown page.

    Args:
        title: title of the page.
        verdict: result of the comparison.
        links: addresses of related pages, by title.

    Returns:
        The text.
    """
    reasons = "\n".join(f"- {escape_text(reason)}" for reason in verdict.reasons)
    changed = verdict.changed
    return paragraphs(
        f"# {escape_text(title)}: {verdict.word}",
        escape_text(change_text(verdict.total)) + ".",
        reasons,
        list_links(links),
        markdown_table(latency_rows(verdict)),
        markdown_table(figure_rows(verdict)),
        "Changed between the two runs:\n\n" + markdown_table(setting_rows(changed))
        if changed
        else "",
        "Different settings:\n\n" + markdown_table(setting_rows(verdict.settings))
        if verdict.settings
        else "",
    )


def _latency(change: Change, value: float | None) -> str:
    if value is None:
        return "none valid"
    return integer_text(int(value)) if change.unit == "cycles" else milliseconds(value)


def _more(change: Change) -> str:
    if change.more is None:
        return UNKNOWN
    return "0" if change.more == 0 else f"{100 * change.more:+.2g} %"


def _figure(pair: Pair, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return percent(value) if pair.what == "valid trials" else f"{value:.3g}"
