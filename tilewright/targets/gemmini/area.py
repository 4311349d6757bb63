"""Models what a Gemmini takes on a chip: bits of its memories, operators of its array, one number.

    gates = 0.5·(SRAM bits) + 6·(flip-flops) + 6·(full adders)

An n×m multiplier counts n·m full adders, an n-bit adder n; weights are those of
`targets.vta.area`. A cell of the array multiplies 8 by 8 bits and adds 32 bits. It holds two
weights or sums of 32 bits, and its operands (PE.scala). The accumulator adds a row of 16 values,
and its scaler multiplies 16 by float32. Control, queues, scaling of loads and wiring are left out.
The relative area is in units of the default machine. It compares configurations of Gemmini alone.
"""

from __future__ import annotations

from tilewright.targets.gemmini.spec import DIM, GemminiSpec

SRAM_BIT_GATES, FLIP_FLOP_GATES, FULL_ADDER_GATES = 0.5, 6.0, 6.0
_CELL_ADDERS = 8 * 8 + 32
_CELL_FLIP_FLOPS = 2 * 32 + 8 + 20
_FLOAT_ADDERS = 24 * 24
"""Of the product of two float32."""


def area_of(spec: GemminiSpec) -> dict[str, float]:
    """`sram_bits`, `multipliers`, `total` gates, and `relative` to the default machine."""
    bits, gates = sram_bits(spec), _gates(spec)
    return {
        "sram_bits": float(bits), "multipliers": float(DIM * DIM), "total": gates,
        "relative": gates / _gates(GemminiSpec.from_mapping({})),
    }  # fmt: skip


def sram_bits(spec: GemminiSpec) -> int:
    """Of the scratchpad and the accumulator."""
    return DIM * (8 * spec.scratchpad_rows + 32 * spec.accumulator_rows)


def _gates(spec: GemminiSpec) -> float:
    adders = DIM * DIM * _CELL_ADDERS + DIM * (32 + _FLOAT_ADDERS)
    flip_flops = DIM * DIM * _CELL_FLIP_FLOPS
    return (
        SRAM_BIT_GATES * sram_bits(spec) + FLIP_FLOP_GATES * flip_flops + FULL_ADDER_GATES * adders
    )
