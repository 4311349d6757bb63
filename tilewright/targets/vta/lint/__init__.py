"""Linter for programs: finds what is invalid, or what differs between implementations of the VTA.

The implementations are the functional simulator, the Chisel RTL and, in findings with the severity
`note`, the HLS design. The linter also finds data races in the scratchpads and in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilewright.targets.vta.functional.execution_order import QUEUES_OF_FLAGS, issue_order
from tilewright.targets.vta.functional.faults import DEADLOCK, TRUNCATED_INSTRUCTION, fault_of
from tilewright.targets.vta.functional.kernel import outcome
from tilewright.targets.vta.functional.scratchpads import allocate
from tilewright.targets.vta.functional.semantics import FUNCTIONAL, rules_of
from tilewright.targets.vta.functional.session import deadlock_detail, stuck_modules
from tilewright.targets.vta.instruction_format import (
    MEMORY_NAMES,
    OPCODE_NAMES,
    QUEUE_NAMES,
    layout_of,
)
from tilewright.targets.vta.lint import findings as c
from tilewright.targets.vta.lint.findings import (
    FLAG_CLASSES,
    Log,
    Severity,
    empty_log,
    name_of,
    note,
    rename,
    severity_of,
)
from tilewright.targets.vta.lint.memory import memory_races
from tilewright.targets.vta.lint.portability import no_accesses, survey
from tilewright.targets.vta.lint.token_order import (
    CONSUMERS,
    blocked_dispatch,
    check_finish,
    clocks_of,
    loses_tokens,
)
from tilewright.targets.vta.numba_decorators import as_record
from tilewright.targets.vta.program import FIRST_ADDRESS, Program
from tilewright.targets.vta.spec import VtaSpec

__all__ = ["WORK_LIMIT", "Finding", "Severity", "classify", "lint"]

WORK_LIMIT = 1 << 33
"""Maximum work of a program that is examined, in multiply-accumulates. The remaining instructions
are skipped, and the finding `work_limit` is reported. Examining this much work takes several
seconds at worst."""
# Report everything that only the functional simulator accepts, but compute as it does.
_STRICT = replace(
    FUNCTIONAL, extensions=False, empty_rows_hang=True, alu_hazards_stop=True, work_limit=WORK_LIMIT
)
# The program is executed with two initial contents of the scratchpads: zeros and noise. Results
# that differ depend on what the scratchpads contained before.
_NOISE_SEED = 1


@dataclass(frozen=True)
class Finding:
    """Problem that the linter found in a program.

    Attributes:
        instruction: index of the instruction; -1 if the problem concerns the whole program.
        name: name of the kind of problem.
        severity: severity of the problem.
        text: one sentence that describes the problem.
    """

    instruction: int
    name: str
    severity: Severity
    text: str


def lint(
    program: Program, spec: VtaSpec, tokens: tuple[int, int, int, int] = (0, 0, 0, 0)
) -> list[Finding]:
    """Find all problems of a program.

    Instructions after a deadlock are not examined. No content of the program raises an exception.

    Args:
        program: the program.
        spec: the machine.
        tokens: number of tokens in the queues l2g, g2l, g2s and s2g at the start.

    Returns:
        The findings, sorted by instruction; at most 65,536. The list is empty for a program that
        runs identically on all implementations.
    """
    log, deadlock = _survey(program, spec, tokens)
    findings = [_finding(program, row, deadlock) for row in log.rows[: int(log.filled[0])].tolist()]
    return sorted(findings, key=lambda finding: (finding.instruction, finding.name))


def classify(
    insn_bytes: bytes,
    dram: bytes,
    base: int = FIRST_ADDRESS,
    spec: VtaSpec | Mapping[str, object] | None = None,
) -> set[str]:
    """Return the classes of problems that a program has.

    Findings with the severity `note`, for example about the HLS design, are omitted; `lint` lists
    them. No content of the program or the image raises an exception.

    Args:
        insn_bytes: instructions, 16 bytes each.
        dram: memory image; `dram[0]` is at address `base`.
        base: byte address of the memory image.
        spec: the machine, or a mapping with the keys of `vta_config.json`; by default the stock
            machine.

    Returns:
        Names of the classes; empty for a portable program.
    """
    if not isinstance(spec, VtaSpec):
        spec = VtaSpec.from_mapping(dict(spec or {}))
    whole = len(insn_bytes) // 16 * 16
    program = Program.from_bytes(insn_bytes[:whole], dram, base)
    log, _ = _survey(program, spec, (0, 0, 0, 0))
    if whole != len(insn_bytes):
        note(log, TRUNCATED_INSTRUCTION, whole // 16, len(insn_bytes) - whole, 16, 0)
    met = [code for code in range(len(log.met)) if log.met[code]]
    return {name_of(code) for code in met if severity_of(code) != "note"}


def _survey(program: Program, spec: VtaSpec, tokens: tuple[int, int, int, int]) -> tuple[Log, str]:
    """Find all problems of a program.

    Args:
        program: the program.
        spec: the machine.
        tokens: number of tokens in the queues l2g, g2l, g2s and s2g at the start.

    Returns:
        The log of all findings, and a description of the deadlock (empty without a deadlock).
    """
    m, log, deadlock = spec.machine, empty_log(), ""
    rules = rules_of(_STRICT, m)
    insns = np.ascontiguousarray(program.insns)
    result, start = outcome(tokens), np.array(tokens, np.int64)
    order = issue_order(insns, QUEUES_OF_FLAGS, result.tokens, result.heads)
    if len(order) < len(insns):
        deadlock = deadlock_detail(stuck_modules(insns, result))
        note(log, DEADLOCK, -1, 0, 0, 0)
    else:
        blocked = blocked_dispatch(insns, QUEUES_OF_FLAGS, start, m.queue_entries)
        if blocked >= 0:
            note(log, c.INSTRUCTION_QUEUE_DEADLOCK, blocked, 0, m.queue_entries, 0)
    clocks = clocks_of(insns, order, QUEUES_OF_FLAGS, CONSUMERS, start, m.token_limit, log)
    if log.met[c.TOKEN_OVERFLOW] and not loses_tokens(insns, spec, tokens):
        rename(log, c.TOKEN_OVERFLOW, c.TOKEN_OVERFLOW_POSSIBLE)
    check_finish(insns, order, clocks, log)
    image = program.base, len(program.dram)
    for instruction, other, address in memory_races(insns, order, clocks, m, image):
        note(log, c.MEMORY_RACE, instruction, address, other, 0)
    survey(
        insns, order, clocks, program.dram.copy(), program.dram.copy(), program.base,
        as_record(m), as_record(layout_of(spec)), as_record(rules),
        allocate(m, rules), allocate(m, rules, _NOISE_SEED),
        QUEUES_OF_FLAGS, no_accesses(rules), log,
    )  # fmt: skip
    return log, deadlock


def _finding(program: Program, row: list[int], deadlock: str) -> Finding:
    code, instruction, value, limit, extra = row
    opcode = int(program.insns[instruction, 0]) & 7 if instruction >= 0 else 0
    if code not in FLAG_CLASSES:
        fault = fault_of(code, instruction, opcode, value, limit, extra, deadlock)
        # A no-op after FINISH hangs only the functional simulator, and only in some execution
        # orders.
        harmless = code == c.INSTRUCTION_AFTER_FINISH and extra
        severity = "flag" if harmless else severity_of(code)
        return Finding(instruction, fault.name, severity, fault.text)
    flag = FLAG_CLASSES[code]
    text = flag.sentence.format(
        value=value,
        limit=limit,
        memory=MEMORY_NAMES[extra] if extra < len(MEMORY_NAMES) else extra,
        queue=QUEUE_NAMES[extra] if extra < len(QUEUE_NAMES) else extra,
    )
    name = OPCODE_NAMES[opcode] if opcode < len(OPCODE_NAMES) else f"opcode {opcode}"
    return Finding(
        instruction, flag.name, flag.severity, f"instruction {instruction} ({name}) {text}"
    )
