"""Lists where the implementations of VTA disagree, and which side a simulation takes.

The instruction set has three implementations: the functional simulator of the original stack, the
Chisel RTL and the HLS design. A portable program behaves the same on all of them; `Semantics` says
what the rest does. `FUNCTIONAL` is the reference functional simulator, with one exception. An
access it would not notice (a STORE beyond the accumulators, memory beyond the image) is an error
here too. `CHISEL` is the RTL of the main branch, but with unbounded token counters. Whether the
RTL's 8-bit counters lose a token depends on time (see the cycle simulator and `lint`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tilewright.targets.vta.spec import Machine

WORK_LIMIT = 1 << 36
"""Default bound on a program's work, in multiply-accumulates (see `Semantics.work_limit`)."""


@dataclass(frozen=True)
class Semantics:
    """The choices. Each field's first value is the functional simulator's."""

    name: str = "functional"
    indices_wrap: bool = False
    """A scratchpad index beyond the depth is an error / is taken modulo the depth (RTL)."""
    built_depths: bool = False
    """Depths follow LOG_*_BUFF_SIZE / are those of the built hardware (2048 micro-ops)."""
    out_scratchpad: bool = False
    """STORE reads the accumulators / a scratchpad that only GEMM (not its reset) and ALU write."""
    immediate_reads_source: bool = False
    """An immediate ALU operation reads its destination / its source index."""
    hardware_shift: bool = False
    """SHR by a tensor: negative amounts shift left / low bits as unsigned amount. Amounts beyond
    31: as x86-64 code of the functional simulator does / modulo 32."""
    zero_trips_wrap: bool = False
    """A trip count of zero does nothing / runs 16384 times; an empty micro-op range likewise."""
    store_ignores_fields: bool = False
    """STORE demands memory type OUT and no padding / ignores both."""
    extensions: bool = True
    """ALU MUL and LOAD ACC_8BIT exist / are undecodable."""
    empty_rows_hang: bool = False
    """A transfer with x_size > 0 and y_size = 0 moves nothing / never ends."""
    alu_hazards_stop: bool = False
    """Back-to-back ALU dependences are obeyed / stop the simulation."""
    illegal_flags_ignored: bool = False
    """A dependency flag to a neighbour that does not exist is an error / is ignored."""
    finish_ends: bool = False
    """Everything must have run before FINISH / what has not run at FINISH is forgotten."""
    work_limit: int = WORK_LIMIT
    """A program that would need more multiply-accumulates is refused. One ALU operation on one
    accumulator counts 16, one transferred byte 4. The default is some seconds on one core."""


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
    """`Semantics` and the depths they imply, as the integers a compiled kernel takes."""

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
    """The kernel's view of `semantics` on one machine."""
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
