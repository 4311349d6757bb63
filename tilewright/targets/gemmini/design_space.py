"""Defines the Gemminis a co-design search may build: the sizes of their memories.

The array stays at 16 × 16, since no other was compared with RTL. The memory port and its latency
are those of the machine that the search starts from.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.core.errors import SpecError
from tilewright.targets.base import Knob, Space
from tilewright.targets.gemmini.spec import GemminiSpec

KNOBS = (
    Knob("scratchpad_rows", (1024, 2048, 4096, 8192, 16384, 32768)),
    Knob("accumulator_rows", (128, 256, 512, 1024, 2048, 4096)),
)
DESIGNS = Space("gemmini-designs", KNOBS)


def redesigned(spec: GemminiSpec, values: Mapping[str, int]) -> GemminiSpec:
    """The specification with other values of some knobs. Raises `SpecError`."""
    unknown = sorted(set(values) - {knob.name for knob in KNOBS})
    if unknown:
        raise SpecError(
            f"no hardware knob is called {', '.join(unknown)}; there are "
            f"{', '.join(knob.name for knob in KNOBS)}"
        )
    keys = spec.model_dump() | dict(values)
    kib, sums = keys["scratchpad_rows"] >> 6, keys["accumulator_rows"] >> 4
    return GemminiSpec.from_mapping(keys | {"name": f"gemmini-{kib}k-{sums}k"})
