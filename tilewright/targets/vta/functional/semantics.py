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
"""Default maximum work of a program, in multiply-accumulates; see `Semantics.work_limit`."""


@dataclass(frozen=True)
class Semantics:
    """Behaviour of the simulator in the cases in which the implementations of the VTA differ.

    The implementations are the functional simulator and the hardware description (RTL) in Chisel.
    The default of each field is the behaviour of the functional simulator.
    """

    name: str = "functional"
    indices_wrap: bool = False
    """If True, a scratchpad index is taken modulo the depth of the scratchpad, as in the RTL. If
    False, an index beyond the depth is an error."""
    built_depths: bool = False
    """If True, the scratchpads have the depths of the built hardware, such as 2048 micro-ops. If
    False, the depths follow the keys LOG_*_BUFF_SIZE."""
    out_scratchpad: bool = False
    """If True, STORE reads a separate scratchpad, which is written by ALU and GEMM but not by a
    GEMM reset. If False, STORE reads the accumulators."""
    immediate_reads_source: bool = False
    """If True, an ALU operation with an immediate reads the accumulator at its source index. If
    False, it reads the accumulator at its destination index."""
    hardware_shift: bool = False
    """If True, a SHR whose amounts come from a tensor uses the low bits as an unsigned amount
    (modulo 32). If False, it shifts left for negative amounts, and amounts beyond 31 have the
    effect that they have in x86-64 code of the functional simulator."""
    zero_trips_wrap: bool = False
    """If True, a trip count of zero, or an empty range of micro-ops, runs 16384 times. If False, it
    does nothing."""
    store_ignores_fields: bool = False
    """If True, STORE ignores its memory type and its padding. If False, the memory type must be OUT
    and the padding must be zero."""
    extensions: bool = True
    """If True, the ALU operation MUL and the memory type ACC_8BIT of LOAD exist. If False,
    instructions that use them cannot be decoded."""
    empty_rows_hang: bool = False
    """If True, a transfer with x_size > 0 and y_size = 0 never ends. If False, it transfers
    nothing."""
    alu_hazards_stop: bool = False
    """If True, a data dependence between consecutive ALU iterations stops the simulation. If False,
    the iterations are executed one after another, so that dependences are respected."""
    illegal_flags_ignored: bool = False
    """If True, a dependency flag that refers to a module that is not a neighbour is ignored. If
    False, it is an error."""
    finish_ends: bool = False
    """If True, instructions that have not run before FINISH are dropped. If False, such
    instructions are an error."""
    work_limit: int = WORK_LIMIT
    """Maximum work of a program in multiply-accumulates. Programs that need more work are rejected.
    An ALU operation on one accumulator counts as 16 multiply-accumulates, and a transferred byte as
    4. The default work takes some seconds on one core."""


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
