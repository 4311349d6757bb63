"""Defines the accelerators a co-design search may build: the knobs of the hardware and their
values.

A value is what `vta_config.json` calls it: log2 of rows, channels or bytes, the port in bits. What
is no knob (widths of numbers, bursts, latency, tags) is that of the specification one starts from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilewright.core.errors import SpecError
from tilewright.targets.base import Knob, Space
from tilewright.targets.vta.spec import VtaSpec

KNOBS = (
    Knob("log_batch", (0, 1, 2)),
    Knob("log_block_in", (3, 4, 5, 6)),
    Knob("log_block_out", (3, 4, 5, 6)),
    Knob("log_inp_buff_size", (13, 14, 15, 16, 17)),
    Knob("log_wgt_buff_size", (15, 16, 17, 18, 19)),
    Knob("log_acc_buff_size", (15, 16, 17, 18, 19)),
    Knob("log_uop_buff_size", (12, 13)),  # beyond 2^13 bytes more is not built
    Knob("bus_bits", (64, 128, 256, 512)),
)
DESIGNS = Space("vta-designs", KNOBS)
"""72,000 points, of which those are machines that `VtaSpec` does not refuse."""

MULTIPLIER_LEVELS = 3
"""What an 8-bit multiplication delays, in levels of an adder tree."""


def redesigned(spec: VtaSpec, values: Mapping[str, int], clock: str) -> VtaSpec:
    """The specification with other values of some knobs. `clock` is "fixed", or "tree": the RTL
    multiplies and adds in two stages however large the block, so that the longest path grows with
    the adder tree's levels, log2 of the input channels of a block. Raises `SpecError`."""
    unknown = sorted(set(values) - {knob.name for knob in KNOBS})
    if unknown:
        raise SpecError(
            f"no hardware knob is called {', '.join(unknown)}; there are "
            f"{', '.join(knob.name for knob in KNOBS)}"
        )
    keys = spec.model_dump(by_alias=False) | dict(values)
    made = VtaSpec.from_mapping(keys | {"name": _name(keys)})
    if clock == "fixed":
        return made
    levels = [MULTIPLIER_LEVELS + side for side in (spec.log_block_in, made.log_block_in)]
    mhz = spec.clock_mhz * levels[0] / levels[1]
    return made.model_copy(update={"clock_mhz": float(math.floor(mhz * 1000) / 1000)})


def _name(keys: Mapping[str, object]) -> str:
    """Rows x channels in x channels out, kilobytes of the scratchpads, the port."""
    sides = [1 << int(str(keys[f"log_{side}"])) for side in ("batch", "block_in", "block_out")]
    sizes = [
        _size(int(str(keys[f"log_{memory}_buff_size"]))) for memory in ("inp", "wgt", "acc", "uop")
    ]
    return f"vta-{'x'.join(map(str, sides))}-{'-'.join(sizes)}-{keys['bus_bits']}"


def _size(log_bytes: int) -> str:
    return f"{1 << (log_bytes - 10)}k" if log_bytes >= 10 else f"{1 << log_bytes}b"
