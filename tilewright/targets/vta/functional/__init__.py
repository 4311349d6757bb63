"""Functional simulator of the VTA: the exact results of a program, without its timing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.functional.execution_order import QUEUES_OF_FLAGS
from tilewright.targets.vta.functional.faults import (
    DramOutOfRange,
    Fault,
    FinishError,
    FunctionalError,
    HardwareHang,
    ScratchpadOverflow,
    TokenDeadlock,
    UndecodableInstruction,
    WorkLimitExceeded,
    error_of,
)
from tilewright.targets.vta.functional.kernel import COUNTER_NAMES, ExecutionOutcome, outcome, run
from tilewright.targets.vta.functional.scratchpads import Scratchpads, allocate, clear
from tilewright.targets.vta.functional.semantics import (
    CHISEL,
    FUNCTIONAL,
    SEMANTICS,
    SemanticRules,
    Semantics,
    SemanticsName,
    rules_of,
)
from tilewright.targets.vta.functional.session import fault
from tilewright.targets.vta.instruction_format import QUEUE_NAMES, layout_of
from tilewright.targets.vta.numba_decorators import as_record
from tilewright.targets.vta.program import Program
from tilewright.targets.vta.spec import VtaSpec

__all__ = [
    "CHISEL", "COUNTER_NAMES", "FUNCTIONAL", "QUEUES_OF_FLAGS", "SEMANTICS", "DramOutOfRange",
    "ExecutionOutcome", "ExecutionRun", "Fault", "FinishError", "FunctionalError", "HardwareHang",
    "ScratchpadOverflow", "Scratchpads", "SemanticRules", "Semantics", "TokenDeadlock",
    "UndecodableInstruction", "WorkLimitExceeded", "allocate", "clear", "execute", "outcome",
    "rules_of", "run", "simulate",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class ExecutionRun:
    """Result of a program that has finished.

    Attributes:
        dram: memory image after the program, uint8, shape (bytes,).
        counters: values of the counters in `COUNTER_NAMES`, by name.
        tokens_left: number of tokens that are left in each queue, by queue name.
    """

    dram: NDArray[np.uint8]
    counters: dict[str, int]
    tokens_left: dict[str, int]


def simulate(
    program: Program,
    spec: VtaSpec,
    semantics: Semantics | SemanticsName = "functional",
    tokens: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> ExecutionRun:
    """Run a program on scratchpads that are initially zero.

    The memory image of `program` itself is not changed.

    Args:
        program: the program.
        spec: the machine.
        semantics: implementation of the instruction set to follow where the implementations differ.
        tokens: number of tokens in the queues l2g, g2l, g2s and s2g at the start. A program that
            was recorded after another program may need the tokens that the other program left.

    Raises:
        FunctionalError: the program is invalid, or does not finish. The subclass gives the kind of
            fault; the message names the instruction and the field.
    """
    choice = SEMANTICS[semantics] if isinstance(semantics, str) else semantics
    m = spec.machine
    rules = rules_of(choice, m)
    result = outcome(tokens)
    dram = program.dram.copy()
    insns = np.ascontiguousarray(program.insns)
    code = run(
        insns, dram, program.base, as_record(m), as_record(layout_of(spec)), as_record(rules),
        allocate(m, rules), QUEUES_OF_FLAGS, result,
    )  # fmt: skip
    if code:
        raise error_of(code, fault(insns, result))
    return ExecutionRun(
        dram,
        dict(zip(COUNTER_NAMES, result.counters.tolist(), strict=True)),
        dict(zip(QUEUE_NAMES, result.tokens.tolist(), strict=True)),
    )


def execute(
    insn_bytes: bytes, dram: bytes, base: int, spec: VtaSpec | Mapping[str, object]
) -> bytes:
    """Execute a program and return the memory image after it; see `vta.execute`.

    Args:
        insn_bytes: instructions, 16 bytes each.
        dram: memory image before the program; `dram[0]` is at address `base`.
        base: byte address of the memory image.
        spec: the machine, or a mapping with the keys of `vta_config.json`.

    Raises:
        TilewrightError: the program is invalid, or does not finish.
    """
    spec = spec if isinstance(spec, VtaSpec) else VtaSpec.from_mapping(dict(spec))
    return simulate(Program.from_bytes(insn_bytes, dram, base), spec).dram.tobytes()
