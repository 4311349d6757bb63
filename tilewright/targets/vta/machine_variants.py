"""Machine specifications other than the presets: designs of a hardware search, and random machines.

A design is a point of the space `DESIGNS`. The value of each knob has the meaning of the knob's key
in `vta_config.json`: log2 of rows, channels or bytes, or the width of the memory port in bits.
Properties without a knob (widths of numbers, bursts, latency, tags) are copied from the
specification with which the search starts.

For a random machine, the block shape, the scratchpad sizes and the memory port are drawn
independently and uniformly. Everything that is drawn is part of `VtaTarget.hardware_features`, so
that a model can distinguish the machines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.core.errors import SpecError
from tilewright.targets.base import Knob, Space
from tilewright.targets.vta.spec import VtaSpec, preset_files

KNOBS = (
    Knob("log_batch", (0, 1, 2)),
    Knob("log_block_in", (3, 4, 5, 6)),
    Knob("log_block_out", (3, 4, 5, 6)),
    Knob("log_inp_buff_size", (13, 14, 15, 16, 17)),
    Knob("log_wgt_buff_size", (15, 16, 17, 18, 19)),
    Knob("log_acc_buff_size", (15, 16, 17, 18, 19)),
    Knob("log_uop_buff_size", (12, 13)),  # the hardware builds at most 2^13 bytes
    Knob("bus_bits", (64, 128, 256, 512)),
)
DESIGNS = Space("vta-designs", KNOBS)
"""Space of hardware designs, with 48,000 points. Only points that `VtaSpec` accepts are valid
machines."""

MULTIPLIER_LEVELS = 3
"""Delay of an 8-bit multiplier, expressed as a number of levels of an adder tree."""


def redesign_spec(spec: VtaSpec, values: Mapping[str, int], clock: str) -> VtaSpec:
    """Change hardware knobs of a specification.

    Args:
        spec: the original specification.
        values: new values, by knob name.
        clock: "fixed" keeps the clock frequency. "tree" scales it with the length of the longest
            path. The RTL multiplies and adds in two stages regardless of the block size, so the
            longest path grows with the levels of the adder tree, log2 of the input channels per
            block.

    Returns:
        The new specification.

    Raises:
        SpecError: a knob is unknown, or the machine cannot be built.
    """
    unknown = sorted(set(values) - {knob.name for knob in KNOBS})
    if unknown:
        raise SpecError(
            f"there is no hardware knob {', '.join(unknown)}; the knobs are "
            f"{', '.join(knob.name for knob in KNOBS)}"
        )
    keys = spec.model_dump(by_alias=False) | dict(values)
    new_spec = VtaSpec.from_mapping(keys | {"name": _design_name(keys)})
    if clock == "fixed":
        return new_spec
    levels = [MULTIPLIER_LEVELS + side for side in (spec.log_block_in, new_spec.log_block_in)]
    mhz = spec.clock_mhz * levels[0] / levels[1]
    return new_spec.model_copy(update={"clock_mhz": float(math.floor(mhz * 1000) / 1000)})


def _design_name(keys: Mapping[str, object]) -> str:
    """Compose a name from the block shape, the scratchpad sizes, and the port width."""
    sides = [1 << int(str(keys[f"log_{side}"])) for side in ("batch", "block_in", "block_out")]
    sizes = [
        _size(int(str(keys[f"log_{memory}_buff_size"]))) for memory in ("inp", "wgt", "acc", "uop")
    ]
    return f"vta-{'x'.join(map(str, sides))}-{'-'.join(sizes)}-{keys['bus_bits']}"


def _size(log_bytes: int) -> str:
    return f"{1 << (log_bytes - 10)}k" if log_bytes >= 10 else f"{1 << log_bytes}b"


_BATCH = (0, 0, 0, 1, 2)
"""Base-2 logarithms of the number of rows that the GEMM core multiplies at once. A single row is
the most frequent choice."""
_SQUARE = (3, 4, 5, 6)
"""Base-2 logarithms of the number of input channels of a block with equally many output
channels."""
_OBLONG = ((3, 4), (4, 3), (4, 5), (5, 4), (5, 6), (6, 5))
"""Base-2 logarithms of the numbers of input and output channels of a block that is not square."""
_SQUARE_SHARE = 0.75
_DEPTHS = {"inp": range(8, 14), "wgt": range(6, 12), "acc": range(8, 13), "uop": range(10, 14)}
"""Base-2 logarithms of the number of elements of a scratchpad, by name of the scratchpad."""
_PORTS: Mapping[str, Sequence[int]] = {
    "bus_bits": (64, 128, 256, 512),
    "max_burst_beats": (16, 64, 256),
    "memory_latency_cycles": (8, 16, 32, 64, 128, 256),
}


def variants(count: int, seed: int) -> list[VtaSpec]:
    """Draw random machine specifications, for tests on more machines than the presets.

    All specifications are different, and none equals a preset. With the same seed, a larger count
    yields the same specifications first.

    Args:
        count: number of specifications.
        seed: seed of the random generator.
    """
    rng = np.random.default_rng(seed)
    taken = {VtaSpec.load(name).fingerprint for name in preset_files()}
    specs: list[VtaSpec] = []
    while len(specs) < count:
        try:
            spec = VtaSpec.from_mapping(_drawn(rng))
        # the machine cannot be built, for example because a field does not fit into an instruction
        except SpecError:
            continue
        if spec.fingerprint not in taken:
            taken.add(spec.fingerprint)
            specs.append(spec.model_copy(update={"name": _random_name(spec)}))
    return specs


def _drawn(rng: np.random.Generator) -> dict[str, object]:
    batch = int(rng.choice(_BATCH))
    if rng.random() < _SQUARE_SHARE:
        block_in = block_out = int(rng.choice(_SQUARE))
    else:
        block_in, block_out = (int(side) for side in _OBLONG[int(rng.integers(len(_OBLONG)))])
    depth = {name: int(rng.choice(list(choices))) for name, choices in _DEPTHS.items()}
    port = {name: int(rng.choice(list(choices))) for name, choices in _PORTS.items()}
    return {
        "log_batch": batch,
        "log_block_in": block_in,
        "log_block_out": block_out,
        "log_uop_buff_size": depth["uop"] + 2,  # micro-ops of 4 bytes
        "log_inp_buff_size": depth["inp"] + batch + block_in,
        "log_wgt_buff_size": depth["wgt"] + block_in + block_out,
        "log_acc_buff_size": depth["acc"] + batch + block_out + 2,  # accumulators of 4 bytes
        **port,
    }


def _random_name(spec: VtaSpec) -> str:
    shape = f"{spec.batch}x{spec.block_in}x{spec.block_out}"
    return f"vta-{shape}-{spec.fingerprint[:8]}"
