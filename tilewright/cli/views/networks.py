"""Display of networks: the built-in networks, and the placement of a network's operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.cli.views.terminal import columns_of, fitted_table
from tilewright.networks.imported_model import JOINED
from tilewright.networks.offloading.report import ModelReport, OperatorReport
from tilewright.networks.zoo.model_stats import NetworkFacts
from tilewright.reports.number_format import mega, milliseconds, percent, pluralise
from tilewright.targets.display_names import shape
from tilewright.targets.workload import parse_workload

_DROPPABLE = ("operators", "input")
"""Columns that are left out, in this order, until the table fits a narrow terminal."""


def show_zoo(networks: Sequence[NetworkFacts], console: Console) -> None:
    """Show one line per built-in network."""
    rows = [
        {
            "network": network.name,
            "input": "×".join(map(str, network.input_shape)),
            "operators": f"{network.operators:,}",
            "MMAC": f"{network.macs / 1e6:,.1f}",
            "parameters": f"{network.parameters:,}",
        }
        for network in networks
    ]
    console.print(fitted_table(columns_of(rows), _DROPPABLE, console.width, left=("input",)))


STYLES = {
    "offloaded": "green", "cpu": "yellow", "onnxruntime": "cyan", "unsupported": "bold red",
}  # fmt: skip
OFFLOADED = {"offloaded": "accel.", "cpu": "CPU", "onnxruntime": "ORT", "unsupported": "none"}
WHY = "workload or reason"
KERNELS = {"offloaded": "kernel", "cpu": "TVM", "onnxruntime": "ORT", "unsupported": "none"}


def show_report(
    report: ModelReport,
    target: str,
    console: Console,
    *,
    brief: bool = False,
    has_host: bool = True,
) -> None:
    """Show where each operator of a network runs.

    Args:
        report: the placement of the operators.
        target: name of the target.
        console: the terminal.
        brief: whether to leave out operators that do no work of their own.
        has_host: whether the target is an accelerator beside a CPU. If the target is a CPU, nothing
            is offloaded, and no times are shown.
    """
    shown = [o for o in report.operators if not brief or _matters(o)]
    places = OFFLOADED if has_host else KERNELS
    console.print(_operators(report, shown, places, console.width))
    console.print()
    console.print(_workloads(report, console.width))
    console.print()
    console.print(
        f"{report.model} on {target}: {report.offloaded_macs:,} of {report.total_macs:,} MACs "
        f"{'offloaded' if has_host else 'by kernels'} ({percent(report.offloaded_share)}); "
        f"{_rest_text(report) if has_host else _rest_of_library(report)}",
        highlight=False,
    )
    if has_host:
        console.print(_times(report), highlight=False)
    for note in report.notes:
        console.print(f"note: {note}", highlight=False)
    for line in region_lines(report):
        console.print(line, highlight=False)
    for operator in report.by_status("unsupported"):
        console.print(f"{operator.name}: {operator.reason}; {operator.next_step}", style="red")


def region_lines(report: ModelReport) -> list[str]:
    """Return one line per region of a network, a part that onnxruntime runs.

    The line names the operator because of which onnxruntime runs the region.

    Args:
        report: the placement of the network's operators.
    """
    lines = []
    for region in report.regions:
        count = len(region.operators)
        operators = f"{count} {pluralise(count, 'operator')} ({mega(region.macs)} MMAC)"
        cause = f"'{region.cause}' ({region.cause_type}): {region.reason}"
        because = f", because of {cause}" if region.cause else ""
        lines.append(f"onnxruntime (ORT) runs {operators}{because}")
    return lines


def _rest_of_library(report: ModelReport) -> str:
    """Return a sentence about the operators that the CPU target's own kernels do not compute."""
    if not report.by_status("onnxruntime"):
        return "TVM compiles the rest"
    return "TVM compiles the rest, except for the operators of onnxruntime"


def _rest_text(report: ModelReport) -> str:
    """Return a sentence about the operators that are not offloaded."""
    if report.by_status("unsupported"):
        return "some operators cannot be converted"
    if report.by_status("onnxruntime"):
        return "the rest stays on the CPU, part of it in onnxruntime"
    return "the rest stays on the CPU" if report.offloaded_macs else "nothing here can be tuned"


def _times(report: ModelReport) -> str:
    """Return a sentence about the estimated times on the accelerator and on the CPU."""
    there, here = report.accelerator_seconds, milliseconds(report.cpu_seconds) or "0"
    if there is None:
        return f"estimated {here} ms on the CPU for its share"
    return (
        f"at least {milliseconds(there)} ms for the offloaded layers, including "
        f"packing at their borders, and an estimated {here} ms on the CPU"
    )


def _matters(operator: OperatorReport) -> bool:
    alone = operator.status == "cpu" and operator.cpu_seconds > 0
    if operator.status == "onnxruntime":
        return not operator.reason.startswith(JOINED)
    done = operator.macs > 0 or operator.workload is not None or alone
    return done or operator.status == "unsupported" or bool(operator.next_step)


def _operators(
    report: ModelReport, operators: list[OperatorReport], places: Mapping[str, str], width: int
) -> Table:
    figures = ("MMAC", "accel.\nms", "CPU\nms") if places is OFFLOADED else ("MMAC",)
    epilogues = {workload.id: workload.epilogue for workload in report.workloads}
    columns: dict[str, list[str | Text]] = {
        name: [] for name in ("operator", "type", "on", *figures, WHY)
    }
    for operator in operators:
        why = operator.reason
        if operator.workload:
            why = shape(
                parse_workload(operator.workload, epilogues.get(operator.workload_id or ""))
            )
            if operator.waste >= 0.005:
                why += f" ({operator.waste:.0%} padding)"
        elif operator.next_step:
            why += f"; {operator.next_step}"
        cells = (
            operator.name, operator.op_type,
            Text(places[operator.status], STYLES[operator.status]), mega(operator.macs),
            milliseconds(operator.accelerator_seconds), _seconds_text(operator.cpu_seconds),
        )  # fmt: skip
        for name, cell in zip(columns, (*cells[: 3 + len(figures)], why), strict=True):
            columns[name].append(cell)
    return fitted_table(
        columns, ("type", "CPU\nms", "accel.\nms", "MMAC"), width,
        left=("type", "on"), folded=(WHY,),
    )  # fmt: skip


def _seconds_text(seconds: float) -> str:
    return milliseconds(seconds) if seconds else ""


def _workloads(report: ModelReport, width: int) -> Table:
    rows = [
        {
            "workload": workload.workload,
            "calls": str(workload.calls),
            "MMAC per call": mega(workload.macs),
            "epilogue": workload.epilogue,
        }
        for workload in report.workloads
    ]
    epilogues = {row["epilogue"] for row in rows}
    columns = columns_of(rows)
    if len(epilogues) == 1:
        del columns["epilogue"]
    table = fitted_table(columns, (), width, folded=("epilogue",))
    if len(epilogues) == 1:
        table.caption = f"epilogue of every workload: {epilogues.pop()}"
        table.caption_justify = "left"
    return table
