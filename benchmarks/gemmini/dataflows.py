"""Compares Gemmini's two dataflows on matrix products, with three memory settings.

    python -m benchmarks.gemmini.dataflows [--trials N] [--out FILE]
    python -m benchmarks.gemmini.dataflows --redraw benchmarks/rows/gemmini-dataflows.json

For each product and memory setting, the table has the fewest cycles of N trials of three kinds of
loop nests: nests that keep weights in the array; nests that keep sums in the array, as long as the
result is exact for all data; and nests that keep the sums of all input channels in the array. In
the last kind, a trial whose output saturates at 20 bits counts as a wrong result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from benchmarks.gemmini.vendor_rule import EPILOGUE, PRODUCTS, SETTINGS, Row, fill, tuning_arguments
from benchmarks.results import markdown_table
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.targets.base import Knob, Space
from tilewright.targets.gemmini.isa import OUTPUT_STATIONARY, WEIGHT_STATIONARY
from tilewright.targets.gemmini.lowering.batch import WorkloadLowering
from tilewright.targets.gemmini.lowering.epilogue import ALL_CHAINED, MOST_CHAINED
from tilewright.targets.gemmini.lowering.schedule_space import FIRST, SPREAD, space_of
from tilewright.targets.gemmini.spec import GemminiSpec
from tilewright.targets.gemmini.target import GemminiTarget
from tilewright.targets.workload import Workload, parse_workload

FLOWS = {
    "weights": (WEIGHT_STATIONARY, MOST_CHAINED),
    "sums": (OUTPUT_STATIONARY, MOST_CHAINED),
    "long sums": (OUTPUT_STATIONARY, ALL_CHAINED),
}
"""Dataflow, and maximum number of products that are summed in the array, by name of the kind of
nest."""


@dataclass(frozen=True)
class _Nests(WorkloadLowering):
    """Lowering of loop nests with one dataflow."""

    dataflow: int = WEIGHT_STATIONARY

    @cached_property
    def space(self) -> Space:
        """The workload's space without schedules of the other form and of the other dataflow."""
        only = {"form": (SPREAD, FIRST), "dataflow": (self.dataflow,)}
        whole = space_of(self.geometry, self.vendor[1])
        return Space(
            whole.name, tuple(Knob(k.name, only.get(k.name, k.values)) for k in whole.knobs)
        )


class _NestTarget(GemminiTarget):
    """A Gemmini target whose schedules are loop nests of one dataflow."""

    def __init__(self, spec: GemminiSpec, flow: str) -> None:
        self.flow = FLOWS[flow]
        super().__init__(spec)

    def _bind(self, workload: Workload) -> WorkloadLowering:
        dataflow, most = self.flow
        own = WorkloadLowering.for_workload(workload, self.spec)
        return _Nests(workload, self.spec, replace(own.geometry, most_chained=most), dataflow)


def measure(name: str, text: str, setting: tuple[int, int], trials: int) -> Row:
    """Return one row: the fewest cycles per dataflow, 0 where no trial is correct."""
    latency, beat = setting
    spec = GemminiSpec.from_mapping({"memory_latency_cycles": latency, "cycles_per_beat": beat})
    row: Row = {"layer": name, "latency": latency, "cycles_per_beat": beat}
    for flow in FLOWS:
        target, workload = _NestTarget(spec, flow), parse_workload(text, EPILOGUE)
        rounds = list(tune(target, workload, make_explorer("default"), trials=trials, batch=16))
        best = rounds[-1].best
        row[flow] = 0 if best is None else best.cycles
    return row


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table with one line per product: the cycles of each dataflow by setting."""
    titles = [f"latency {latency}, {beat} per beat" for latency, beat in SETTINGS]
    lines: list[list[str]] = []
    for layer in dict.fromkeys(str(row["layer"]) for row in rows):
        matching = [row for row in rows if row["layer"] == layer]
        cells = [" / ".join(f"{row[flow]:,}" for flow in FLOWS) for row in matching]
        lines.append([layer, *cells])
    return markdown_table(["product", *titles], "lr", lines)


def main() -> None:
    """Measure the products, print the table and write the rows."""
    parser = tuning_arguments(__doc__, "built/gemmini-dataflows.json")
    fill(table, measure, PRODUCTS, parser.parse_args())


if __name__ == "__main__":
    main()
