"""Shows the result of `tilewright inspect`: the operators that matter, the workloads, and the
sums."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.cli.views.terminal import ruled_table
from tilewright.networks.report import ModelReport, OperatorReport
from tilewright.reports.number_format import mega, milliseconds, percent
from tilewright.targets.display_names import shape
from tilewright.targets.workload import parse_workload

STYLES = {"offloaded": "green", "cpu": "yellow", "unsupported": "bold red"}
OFFLOADED = {"offloaded": "accel.", "cpu": "CPU", "unsupported": "none"}
KERNELS = {"offloaded": "kernel", "cpu": "TVM", "unsupported": "none"}


def show_report(
    report: ModelReport,
    target: str,
    console: Console,
    *,
    brief: bool = False,
    has_host: bool = True,
) -> None:
    """Print the report. `brief` leaves out operators that only follow another or do no work. A
    target that is the processor itself `has_host` not: nothing is offloaded, and compared."""
    shown = [o for o in report.operators if not brief or _matters(o)]
    console.print(_operators(shown, OFFLOADED if has_host else KERNELS))
    console.print()
    console.print(_workloads(report))
    console.print()
    console.print(
        f"{report.model} on {target}: {report.offloaded_macs:,} of {report.total_macs:,} MACs "
        f"{'offloaded' if has_host else 'by kernels'} ({percent(report.offloaded_share)}); "
        f"{_rest(report) if has_host else 'TVM compiles the rest'}",
        highlight=False,
    )
    if has_host:
        console.print(_times(report), highlight=False)
    for note in report.notes:
        console.print(f"note: {note}", highlight=False)
    for operator in report.by_status("unsupported"):
        console.print(f"{operator.name}: {operator.reason}; {operator.next_step}", style="red")


def _rest(report: ModelReport) -> str:
    """What the figures before it leave out."""
    if report.by_status("unsupported"):
        return "some operators cannot be imported"
    return "the rest stays on the CPU" if report.offloaded_macs else "nothing here can be tuned"


def _times(report: ModelReport) -> str:
    """What both sides take, in a sentence."""
    there, here = report.accelerator_seconds, milliseconds(report.cpu_seconds) or "0"
    if there is None:
        return f"the CPU takes some {here} ms for its share, by an estimate"
    return (
        f"at least {milliseconds(there)} ms for what is offloaded, packing at its borders "
        f"included, and some {here} ms on the CPU, by an estimate"
    )


def _matters(operator: OperatorReport) -> bool:
    alone = operator.status == "cpu" and operator.cpu_seconds > 0
    done = operator.macs > 0 or operator.workload is not None or alone
    return done or operator.status == "unsupported" or bool(operator.next_step)


def _operators(operators: list[OperatorReport], places: Mapping[str, str]) -> Table:
    table = ruled_table()
    figures = ("MMAC", "accel.\nms", "CPU\nms") if places is OFFLOADED else ("MMAC",)
    for name in ("operator", "type", "on", *figures, "workload or reason"):
        numbers = name in figures
        table.add_column(
            name, justify="right" if numbers else "left", overflow="fold",
            no_wrap=numbers or name == "on",
        )  # fmt: skip
    for operator in operators:
        why = operator.reason
        if operator.workload:
            why = shape(parse_workload(operator.workload))
            if operator.waste >= 0.005:
                why += f" ({operator.waste:.0%} padding)"
        elif operator.next_step:
            why += f"; {operator.next_step}"
        times = milliseconds(operator.accelerator_seconds), _some(operator.cpu_seconds)
        table.add_row(
            operator.name, operator.op_type,
            Text(places[operator.status], STYLES[operator.status]), mega(operator.macs),
            *times[: len(figures) - 1], Text(why),
        )  # fmt: skip
    return table


def _some(seconds: float) -> str:
    return milliseconds(seconds) if seconds else ""


def _workloads(report: ModelReport) -> Table:
    table = ruled_table()
    table.add_column("workload", overflow="fold")
    table.add_column("calls", justify="right")
    table.add_column("MMAC a call", justify="right")
    epilogues = {workload.epilogue for workload in report.workloads}
    if len(epilogues) > 1:
        table.add_column("epilogue", overflow="fold")
    elif epilogues:
        table.caption = f"epilogue of each: {epilogues.pop()}"
        table.caption_justify = "left"
    for workload in report.workloads:
        row = [workload.workload, str(workload.calls), mega(workload.macs)]
        table.add_row(*row, *[workload.epilogue] * (len(table.columns) - 3))
    return table
