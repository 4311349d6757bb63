"""Measures how much of each built-in network runs on the accelerator `vta-pynq`.

    python -m benchmarks.coverage.networks [--write]

For each network, the table has its multiply-accumulates, the offloaded fraction of them, the number
of workloads and of calls of workloads, a lower bound of the offloaded time including packing, an
estimate of the time if everything ran on the CPU beside the accelerator, and the operators that
stay on the CPU. `--write` writes the table to `docs/evidence/coverage.md`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.results import replace_block
from tilewright import networks
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.offloading.report import ModelReport
from tilewright.reports.number_format import milliseconds
from tilewright.targets import make_target

TARGET = "vta-pynq"
PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "coverage.md"
BLOCK = "benchmarks.coverage.networks"
HEAD = (
    "network", "MMAC", "offloaded", "workloads", "calls", "accelerator ms", "CPU ms",
    "all on the CPU ms", "operators on the CPU that take time",
)  # fmt: skip
NUMBERS = len(HEAD) - 2  # columns between the first and the last


def rows() -> list[tuple[str, ...]]:
    """Return one row of text cells per network."""
    accelerator = Accelerator.for_target(make_target(TARGET))
    return [_row(networks.load(name).report_on(accelerator)) for name in networks.zoo_names()]


def table(result: list[tuple[str, ...]]) -> str:
    """Return the rows as a Markdown table."""
    rule = ("---", *["---:"] * NUMBERS, "---")
    return "".join(f"| {' | '.join(row)} |\n" for row in (HEAD, rule, *result))


def _row(report: ModelReport) -> tuple[str, ...]:
    everything = sum(operator.cpu_seconds for operator in report.operators)
    left = Counter(o.op_type for o in report.by_status("cpu") if o.cpu_seconds)
    return (
        report.model,
        f"{report.total_macs / 1e6:,.1f}",
        f"{100 * report.offloaded_share:.2f} %",
        str(len(report.workloads)),
        str(sum(workload.calls for workload in report.workloads)),
        milliseconds(report.accelerator_seconds),
        milliseconds(report.cpu_seconds) if report.cpu_seconds else "0",
        milliseconds(everything),
        ", ".join(f"{many} {kind}" for kind, many in left.most_common()) or "none",
    )


def main(
    write: Annotated[
        bool, typer.Option("--write", help="Write the table to docs/evidence/coverage.md.")
    ] = False,
) -> None:
    """Print the table."""
    text = table(rows())
    print(text, end="")
    if write:
        replace_block(PAGE, BLOCK, text)


if __name__ == "__main__":
    typer.run(main)
