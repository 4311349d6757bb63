"""Area model of a VTA: exact storage bits, counted operators, and the area relative to the default.

The number of storage bits follows the structure of the Chisel RTL (scratchpads with their banks,
instruction queues, table of read tags) and is exact. Arithmetic operators are counted from the same
structure. The total area converts both to gate equivalents with textbook weights:

    gates = 0.5·(SRAM bits) + 6·(flip-flops) + 6·(full adders) + 2.5·(2:1 multiplexers)

The relative area is this number divided by that of the default 16×16 machine. An n×m multiplier
counts as n·m full adders, an n-bit adder or comparator as n full adders, and an n-bit barrel
shifter as n·log2(n) multiplexers. The weights are those of a generic standard-cell library (Weste
and Harris, CMOS VLSI Design). They were not fitted to any synthesis run. Wiring, control, clock
tree and pads are ignored.

The model is meant for comparing configurations. It does not predict square millimetres or FPGA
utilisation, because the synthesis tools decide how many DSP blocks a multiplier needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import log2

from tilewright.targets.vta.spec import Machine, VtaSpec

SRAM_BIT_GATES = 0.5
FLIP_FLOP_GATES = 6.0
FULL_ADDER_GATES = 6.0
MULTIPLEXER_GATES = 2.5

_INSTRUCTION_BITS = 128
_TAG_BITS = 21  # bits of a client tag in the memory engine, in the Chisel default configuration


@dataclass(frozen=True)
class Memory:
    """Scratchpad of the accelerator.

    It consists of banks, each with one read port and one write port.

    Attributes:
        name: name of the scratchpad.
        bits: total size in bits.
        banks: number of banks.
        words: number of words per bank.
        word_bits: size of a word in bits.
    """

    name: str
    bits: int
    banks: int
    words: int
    word_bits: int


@dataclass(frozen=True)
class Area:
    """Hardware resources of a VTA configuration.

    `relative` is the number of gates divided by that of the default machine.
    """

    memories: tuple[Memory, ...]
    queue_bits: int  # bits of the instruction queues and the fetch buffer
    tag_bits: int  # bits of the table of outstanding reads
    multipliers: int  # number of multipliers of inp_bits × wgt_bits
    tree_adders: int
    accumulator_adders: int  # number of adders of acc_bits
    alu_lanes: int
    flip_flops: int  # flip-flops of the GEMM and ALU pipelines
    bus_bits: int
    gates: float
    relative: float

    @property
    def sram_bits(self) -> int:
        """Number of bits in all scratchpads."""
        return sum(memory.bits for memory in self.memories)


def area_of(spec: VtaSpec) -> Area:
    """Compute the hardware resources of a machine."""
    return _area(spec, _default_gates())


@cache
def _default_gates() -> float:
    return _area(VtaSpec.from_mapping({}), None).gates


def _area(spec: VtaSpec, reference_gates: float | None) -> Area:
    m = spec.machine
    memories = _memories(m, spec.out_depth or m.acc_built)
    fetch_entries = m.max_burst_beats // 2 if m.bus_bytes == 8 else m.max_burst_beats
    queue_bits = (3 * m.queue_entries + fetch_entries) * _INSTRUCTION_BITS
    tag_bits = m.read_tags * (3 + _TAG_BITS + m.read_tags)
    lanes = m.batch * m.block_out
    alu_bits = lanes * m.acc_bits
    flip_flops = _gemm_registers(m) + 3 * alu_bits  # per lane: two operands and a saved source
    gates = (
        SRAM_BIT_GATES * (sum(memory.bits for memory in memories) + queue_bits)
        + FLIP_FLOP_GATES * (flip_flops + tag_bits)
        # The ALU has an adder, a comparator and two barrel shifters per lane.
        + FULL_ADDER_GATES * (_gemm_full_adders(m) + 2 * alu_bits)
        + MULTIPLEXER_GATES * (2 * alu_bits * int(log2(m.acc_bits)))
    )
    return Area(
        memories, queue_bits, tag_bits, lanes * m.block_in, lanes * (m.block_in - 1), lanes, lanes,
        flip_flops, m.bus_bytes * 8, gates, gates / (reference_gates or gates),
    )  # fmt: skip


def _memories(m: Machine, out_depth: int) -> tuple[Memory, ...]:
    bus = m.bus_bytes * 8
    elements = (
        ("uop", 8 * m.uop_bytes, m.uop_built),
        ("inp", 8 * m.inp_bytes, m.inp_built),
        ("wgt", 8 * m.wgt_bytes, m.wgt_built),
        ("acc", 8 * m.acc_bytes, m.acc_built),
        ("out", 8 * m.out_bytes, out_depth),
    )
    return tuple(_memory(name, bits, depth, bus) for name, bits, depth in elements)


def _memory(name: str, element_bits: int, depth: int, bus: int) -> Memory:
    """Compute the banks of a scratchpad, divided as the hardware's load engines need them.

    An element that is wider than the bus is split over several banks. Narrower elements are stored
    side by side, in one bank each.

    Args:
        name: name of the scratchpad.
        element_bits: size of an element in bits.
        depth: number of elements.
        bus: width of the memory bus in bits.
    """
    if element_bits >= bus:
        banks, words, word_bits = element_bits // bus, depth, bus
    else:
        banks, word_bits = bus // element_bits, element_bits
        words = -(-depth // banks)
    return Memory(name, element_bits * depth, banks, words, word_bits)


def _gemm_full_adders(m: Machine) -> int:
    """Count the full adders of the GEMM core: multipliers, adder trees and accumulators.

    The adders of a tree become one bit wider per level.
    """
    tree, width, nodes = 0, m.inp_bits + m.wgt_bits, m.block_in
    while nodes > 1:
        nodes //= 2
        tree += nodes * width
        width += 1
    per_lane = m.block_in * m.inp_bits * m.wgt_bits + tree + m.acc_bits
    return m.batch * m.block_out * per_lane


def _gemm_registers(m: Machine) -> int:
    """Count the register bits of the GEMM core.

    They are the operand or product registers, one layer of the adder tree, and the accumulator
    bypass.
    """
    product_bits = m.inp_bits + m.wgt_bits
    layer = m.block_in // 2 if m.block_in <= 8 else 2
    levels = log2(m.block_in // layer) if m.block_in > layer else 0
    layer_bits = layer * (product_bits + int(levels))
    per_lane = m.block_in * (product_bits + 1) + layer_bits + m.acc_bits
    return m.batch * m.block_out * per_lane
