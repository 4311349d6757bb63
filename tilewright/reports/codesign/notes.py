"""Describes a co-design run in Markdown and as a table, for records."""

from __future__ import annotations

from tilewright.hardware_search.options import CodesignOptions
from tilewright.hardware_search.outputs import CodesignOutcome
from tilewright.reports.markdown import block, paragraphs, plain
from tilewright.reports.number_format import counted, milliseconds, percent
from tilewright.reports.run_description import Links, listed
from tilewright.reports.run_table import Row, markdown_table


def run_note(options: CodesignOptions, flow_page: str) -> str:
    """Of a run, from its beginning; `flow_page` is the address of its flow run."""
    what = (
        f"**{plain(options.subject)}** on one accelerator of at most {options.budget:g} of the "
        f"default machine's area: {counted(options.trials, 'measurement')} by {options.method}."
    )
    links = {"the flow run in Prefect": flow_page}
    return paragraphs(what, block(options.command_line("codesign"), "sh"), listed(links))


def front_rows(outcome: CodesignOutcome) -> list[Row]:
    """A row a machine of the front, by ascending area."""
    networks = outcome.summary["networks"]
    return [
        {
            "machine": row["name"],
            "area": f"{row['area']:.3f}",
            **{f"{name}, ms": milliseconds(row["milliseconds"][name] / 1e3) for name in networks},
            "bottleneck": row["bottleneck"],
            **{part: percent(share) for part, share in row["shares"].items()},
        }
        for row in outcome.front
    ]


def front_note(outcome: CodesignOutcome, links: Links) -> str:
    """The results of a run as a page of its own."""
    summary, best = outcome.summary, outcome.summary["best"]
    said = "No machine has a valid schedule of every layer yet."
    if best is not None:
        said = (
            f"The fastest within {summary['budget']:g}: **{best['name']}**, area "
            f"{best['area']:.3f}, {milliseconds(best['milliseconds'] / 1e3)} ms."
        )
    count = summary["measurements"]
    facts = (
        f"{counted(count, 'measurement')} of "
        f"{counted(summary['hardware']['seen'], 'machine')} by {summary['method']}, clock "
        f"{summary['clock']}. Area is {summary['area_model']}."
    )
    table = markdown_table(front_rows(outcome)) if outcome.front else ""
    names = plain(", ".join(summary["networks"]))
    return paragraphs(f"# Accelerators for {names}", said, table, facts, listed(links))
