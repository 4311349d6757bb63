"""Options for the cases in which the implementations of the VTA behave differently.

The instruction set has three implementations: the functional simulator of the original stack, the
Chisel RTL, and the HLS design. A portable program behaves identically on all of them. `Semantics`
determines the behaviour of other programs.

`FUNCTIONAL` is the functional simulator with one exception: accesses that it would not detect (a
STORE beyond the accumulators, memory beyond the image) are errors here. `CHISEL` is the RTL of the
main branch, but with unbounded token counters. Whether the RTL's 8-bit counters lose a token
depends on timing (see the cycle simulator and `lint`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tilewright.targets.vta.spec import Machine

WORK_LIMIT = 1 << 36
"""Default limit of a program's work, in multiply-accumulates (see `Semantics.work_limit`)."""


@dataclass(frozen=True)
class Semantics:
    """Behaviour of the simulator in the cases in which the implementations of the VTA differ.

    The implementations are the functional simulator and the hardware description (RTL) in Chisel.
    The default of each field is the behaviour of the functional simulator.
    """

    name: str = "functional"
    indices_wrap: bool = False
    """A scratchpad index beyond the depth is an error; if set, it is taken modulo the depth (RTL).
    """
    built_depths: bool = False
    """Depths follow LOG_*_BUFF_SIZE; if set, they are those of the built hardware (2048 micro-ops).
    """
    out_scratchpad: bool = False
    """STORE reads the accumulators; if set, it reads a scratchpad that only GEMM (not its reset)
    and ALU write."""
    immediate_reads_source: bool = False
    """An immediate ALU operation reads its destination index; if set, it reads its source index."""
    hardware_shift: bool = False
    """SHR by a tensor shifts left for negative amounts, and for amounts beyond 31 does what x86-64
    code of the functional simulator does; if set, the low bits are an unsigned amount (modulo 32).
    """
    zero_trips_wrap: bool = False
    """A trip count of zero, or an empty range of micro-ops, does nothing; if set, it runs 16384
    times."""
    store_ignores_fields: bool = False
    """STORE requires memory type OUT and no padding; if set, it ignores both fields."""
    extensions: bool = True
    """ALU MUL and LOAD ACC_8BIT exist; if not set, they are undecodable."""
    empty_rows_hang: bool = False
    """A transfer with x_size > 0 and y_size = 0 moves nothing; if set, it never ends."""
    alu_hazards_stop: bool = False
    """Dependences between consecutive ALU iterations are respected; if set, they stop the
    simulation."""
    illegal_flags_ignored: bool = False
    """A dependency flag towards a neighbour that does not exist is an error; if set, it is ignored.
    """
    finish_ends: bool = False
    """All instructions must have run before FINISH; if set, those that have not are dropped."""
    work_limit: int = WORK_LIMIT
    """Maximum work of a program in multiply-accumulates; programs that need more are rejected. One
    ALU operation on one accumulator counts as 16, one transferred byte as 4. The default takes some
    seconds on one core."""


FUNCTIONAL = Semantics()
CHISEL = Semantics(
    name="chisel",
    indices_wrap=True,
    built_depths=True,
    out_scratchpad=True,
    immediate_reads_source=True,
    hardware_shift=True,
    zero_trips_wrap=True,
    store_ignores_fields=True,
    extensions=False,
    empty_rows_hang=True,
    alu_hazards_stop=True,
    illegal_flags_ignored=True,
    finish_ends=True,
)

SemanticsName = Literal["functional", "chisel"]
SEMANTICS: dict[str, Semantics] = {"functional": FUNCTIONAL, "chisel": CHISEL}


class SemanticRules(NamedTuple):
    """The fields of `Semantics` and the scratchpad depths, as integers for compiled kernels."""

    uop_depth: int
    inp_depth: int
    wgt_depth: int
    acc_depth: int
    indices_wrap: int
    out_scratchpad: int
    immediate_reads_source: int
    hardware_shift: int
    zero_trips_wrap: int
    store_ignores_fields: int
    extensions: int
    empty_rows_hang: int
    alu_hazards_stop: int
    illegal_flags_ignored: int
    finish_ends: int
    work_limit: int


def rules_of(semantics: Semantics, m: Machine) -> SemanticRules:
    """Convert `Semantics` to integers for compiled kernels.

    Args:
        semantics: the semantics.
        m: the machine, which determines the scratchpad depths.
    """
    built = semantics.built_depths
    return SemanticRules(
        m.uop_built if built else 1 << m.log_uop_depth,
        m.inp_built if built else 1 << m.log_inp_depth,
        m.wgt_built if built else 1 << m.log_wgt_depth,
        m.acc_built if built else 1 << m.log_acc_depth, int(semantics.indices_wrap),
        int(semantics.out_scratchpad), int(semantics.immediate_reads_source),
        int(semantics.hardware_shift), int(semantics.zero_trips_wrap),
        int(semantics.store_ignores_fields), int(semantics.extensions),
        int(semantics.empty_rows_hang), int(semantics.alu_hazards_stop),
        int(semantics.illegal_flags_ignored), int(semantics.finish_ends), semantics.work_limit,
    )  # fmt: skip
