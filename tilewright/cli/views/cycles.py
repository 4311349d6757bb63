"""Shows the result of `tilewright vta cycles`."""

from __future__ import annotations

from tilewright.reports.number_format import counted, milliseconds
from tilewright.targets.vta.instruction_format import MODULE_NAMES
from tilewright.targets.vta.timing import CycleReport


def cycles_text(report: CycleReport, clock_mhz: float) -> str:
    """Totals, and a line a unit: how long it was busy, and then what it spent its cycles on."""
    total = report.total
    time = f"{milliseconds(total / (clock_mhz * 1e6))} ms at {clock_mhz:g} MHz"
    lines = [f"{counted(total, 'cycle')}, {time}, {counted(len(report.insns), 'instruction')}"]
    for unit in MODULE_NAMES:
        spent = sorted(report.spent(unit).items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {cycles / total:.1%}" for name, cycles in spent)
        busy = report.busy(unit)
        lines.append(f"  {unit:8} busy {busy:>12,} ({busy / total:6.1%})  {parts}")
    lines.append(
        f"  read {report.read_beats:,} beats in {report.read_bursts:,} bursts, "
        f"wrote {report.write_beats:,} in {report.write_bursts:,}"
    )
    return "\n".join(lines)
