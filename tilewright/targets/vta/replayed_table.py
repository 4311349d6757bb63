"""Makes a target of the tables that the real TVM+VTA stack recorded of its template space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.targets.base import Configs, Space
from tilewright.targets.features import Features
from tilewright.targets.measurement_table import TableError
from tilewright.targets.replay import ReplayTarget
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.vta.tvm_table import read_stack_table
from tilewright.targets.workload import Workload

HARDWARE = "vta-pynq"
"""What the tables were made on: their cycles are those of the column `cycles_pynq`."""


def recorded_target(files: Sequence[Path], name: str = "replay") -> ReplayTarget:
    """Replays these tables, with the closed-form estimates of the hardware they were made on.
    Raises `TableError`."""
    spec = VtaSpec.load(HARDWARE)
    tables = [read_stack_table(path, clock_mhz=spec.clock_mhz) for path in files]
    seen: dict[str, Path] = {}
    for path, table in zip(files, tables, strict=True):
        if table.workload.id in seen:
            other = seen[table.workload.id]
            raise TableError(f"{path} and {other} are tables of the same layer; give one of them")
        seen[table.workload.id] = path
    template = VtaTarget(spec, "template")
    spaces = {table.workload.id: table.space for table in tables}
    return ReplayTarget(
        tables, name=name, hardware=template.hardware_features(),
        estimates=_CarriedEstimates(template, spaces),
    )  # fmt: skip


@dataclass(frozen=True)
class _CarriedEstimates:
    """The template's estimates, of configs in the spaces of tables, by the workload's id."""

    template: VtaTarget
    spaces: Mapping[str, Space]

    def estimate(self, workload: Workload, configs: Configs) -> Features:
        here, there = self.spaces[workload.id], self.template.space(workload)
        return self.template.estimate(workload, _carried(configs, here, there))


def _carried(configs: Configs, here: Space, there: Space) -> Configs:
    """The same schedules as configs of another space with these knobs. A table that lists a part of
    a space need not know every value of a knob. Raises `TableError`."""
    values = here.values(configs)
    columns = []
    for k, knob in enumerate(there.knobs):
        known = np.asarray(knob.values)
        index = np.minimum(np.searchsorted(known, values[:, k]), len(known) - 1)
        if not np.array_equal(known[index], values[:, k]):
            raise TableError(
                f"a table lists values of {knob.name} that the template does not have "
                f"({', '.join(map(str, knob.values))}); is reference.json that of another layer?"
            )
        columns.append(index)
    return np.stack(columns, axis=1).astype(np.int32)
