"""Design space of Gemmini: hardware knobs, random specifications and an area model.

A co-design search changes the sizes of the local memories. The array stays at 16 × 16, because the
simulators were compared with RTL only for this size. The memory port and its latency stay as in the
machine that the search starts from. Random specifications, which serve to train models for several
machines, also vary the latency and the bandwidth of the memory port. Only quantities in
`GemminiTarget.hardware_features` are varied, so that a model can tell the machines apart.

The area model is

    gates = 0.5·(SRAM bits) + 6·(flip-flops) + 6·(full adders)

An n×m multiplier counts as n·m full adders, an n-bit adder as n. The weights are those of VTA's
area model. A cell of the array multiplies 8 by 8 bits and adds 32 bits. It stores two weights or
32-bit sums, and its operands (PE.scala). The accumulator adds a row of 16 values, and its scaler
multiplies 16 values by a float32 number. Control logic, queues, scaling of loads and wiring are
ignored. The relative area is in units of the default machine, and serves only to compare Gemmini
machines with each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.core.errors import SpecError
from tilewright.targets.base import Knob, Space
from tilewright.targets.gemmini.spec import DIM, GemminiSpec, preset_files

KNOBS = (
    Knob("scratchpad_rows", (1024, 2048, 4096, 8192, 16384, 32768)),
    Knob("accumulator_rows", (128, 256, 512, 1024, 2048, 4096)),
)
DESIGNS = Space("gemmini-designs", KNOBS)
_CHOICES: Mapping[str, Sequence[int]] = {
    "scratchpad_rows": (2048, 4096, 8192, 16384, 32768),
    "accumulator_rows": (256, 512, 1024, 2048),
    "memory_latency_cycles": (10, 20, 40, 60, 100, 200),
    "cycles_per_beat": (1, 2, 4),
}
DIFFERENT = int(np.prod([len(values) for values in _CHOICES.values()]))
SRAM_BIT_GATES, FLIP_FLOP_GATES, FULL_ADDER_GATES = 0.5, 6.0, 6.0
# A cell of the array has an 8-bit multiplier and a 32-bit adder, two 32-bit registers, an 8-bit and
# a 20-bit one. The weights in gates are those of `targets.vta.area`.
_CELL_ADDERS = 8 * 8 + 32
_CELL_FLIP_FLOPS = 2 * 32 + 8 + 20
_FLOAT_ADDERS = 24 * 24
"""Number of full adders of a float32 multiplier, which multiplies two 24-bit mantissas."""


def redesign(spec: GemminiSpec, values: Mapping[str, int]) -> GemminiSpec:
    """Return a specification with changed hardware knobs.

    Args:
        spec: the original specification.
        values: new values, by knob name.

    Raises:
        SpecError: a knob is unknown, or the machine cannot be built.
    """
    unknown = sorted(set(values) - {knob.name for knob in KNOBS})
    if unknown:
        raise SpecError(
            f"there is no hardware knob {', '.join(unknown)}; the knobs are "
            f"{', '.join(knob.name for knob in KNOBS)}"
        )
    keys = spec.model_dump() | dict(values)
    kib, sums = keys["scratchpad_rows"] >> 6, keys["accumulator_rows"] >> 4
    return GemminiSpec.from_mapping(keys | {"name": f"gemmini-{kib}k-{sums}k"})


def draw_specifications(count: int, seed: int) -> list[GemminiSpec]:
    """Draw distinct random specifications that differ from all presets.

    Args:
        count: maximum number of specifications.
        seed: seed of the random generator. With the same seed, a larger count gives the same
            specifications first.

    Returns:
        The specifications; fewer than `count` if there are not enough distinct specifications.
    """
    rng = np.random.default_rng(seed)
    taken = {GemminiSpec.load(name).fingerprint for name in preset_files()}
    specs: list[GemminiSpec] = []
    while len(specs) < min(count, DIFFERENT - len(taken)):
        drawn = {name: int(rng.choice(list(values))) for name, values in _CHOICES.items()}
        kib, sums = drawn["scratchpad_rows"] >> 6, drawn["accumulator_rows"] >> 4
        name = f"gemmini-{kib}k-{sums}k-{drawn['memory_latency_cycles']}"
        spec = GemminiSpec.from_mapping({"name": f"{name}-{drawn['cycles_per_beat']}", **drawn})
        if spec.fingerprint not in taken:
            taken.add(spec.fingerprint)
            specs.append(spec)
    return specs


def area_of(spec: GemminiSpec) -> dict[str, float]:
    """Estimate the area of a machine with the model of this module.

    Args:
        spec: the machine.

    Returns:
        The number of bits `sram_bits` of the local memories, the number of `multipliers` in the
        array, the area `total` in gates, and the area `relative` to the default machine.
    """
    bits, gates = sram_bits(spec), _gates(spec)
    return {
        "sram_bits": float(bits), "multipliers": float(DIM * DIM), "total": gates,
        "relative": gates / _gates(GemminiSpec.from_mapping({})),
    }  # fmt: skip


def sram_bits(spec: GemminiSpec) -> int:
    """Return the number of bits in the scratchpad and the accumulator.

    Args:
        spec: the machine.
    """
    return DIM * (8 * spec.scratchpad_rows + 32 * spec.accumulator_rows)


def _gates(spec: GemminiSpec) -> float:
    adders = DIM * DIM * _CELL_ADDERS + DIM * (32 + _FLOAT_ADDERS)
    flip_flops = DIM * DIM * _CELL_FLIP_FLOPS
    return (
        SRAM_BIT_GATES * sram_bits(spec) + FLIP_FLOP_GATES * flip_flops + FULL_ADDER_GATES * adders
    )
