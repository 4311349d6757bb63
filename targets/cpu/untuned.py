"""The schedule a kernel has without tuning."""

from __future__ import annotations

from typing import Any

from targets.base import Space
from targets.cpu.kernels.kernel import Kernel, Values
from targets.cpu.spec import CpuSpec
from targets.workload import Workload

_NEAR = {"tile_ow": 7, "tile_oc": 4, "rows": 4, "columns": 28}


def untuned_values(kernel: Kernel, workload: Workload, spec: CpuSpec, space: Space) -> Values:
    """What the kernel's own rule says; of a kernel without one, values of a register tile that fits
    every vector unit, and else the first."""
    rule: Any = getattr(kernel, "default_values", None)
    if rule is not None:
        found: Values = rule(workload, spec)
        return found
    values = {knob.name: knob.values[0] for knob in space.knobs}
    for knob in space.knobs:
        if knob.name in _NEAR:
            near = [value for value in knob.values if value <= _NEAR[knob.name]]
            values[knob.name] = near[-1] if near else knob.values[0]
    if "columns" in values:
        tile = values["tile_ow"]
        columns = next(knob for knob in space.knobs if knob.name == "columns").values
        values["columns"] = max(each for each in columns if each % tile == 0 and each <= 4 * tile)
    return values
