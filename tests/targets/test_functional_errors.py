"""Checks that invalid programs give one typed error, never a hang or a crash."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.vta_corpus import streams
from tilewright.core.errors import TilewrightError
from tilewright.targets.vta import classify, execute
from tilewright.targets.vta.functional import (
    SEMANTICS,
    DramOutOfRange,
    FinishError,
    FunctionalError,
    HardwareHang,
    ScratchpadOverflow,
    Semantics,
    SemanticsName,
    TokenDeadlock,
    UndecodableInstruction,
    WorkLimitExceeded,
    simulate,
)
from tilewright.targets.vta.instruction_format import (
    ALU,
    FINISH,
    GEMM,
    LOAD,
    STORE,
    encode,
    layout_of,
)
from tilewright.targets.vta.program import Program, ProgramError
from tilewright.targets.vta.spec import VtaSpec

SPEC = VtaSpec.load("vta-pynq")
CORPUS = [stream for stream in streams("functional") if stream.meta["config"] == "default"]


def program(*insns: dict[str, int]) -> Program:
    """Encode instructions, given as field values, for a memory image of 64 KiB."""
    lay = layout_of(SPEC)
    words = [encode(values, lay).to_bytes(16, "little") for values in insns]
    return Program.from_bytes(b"".join(words), bytes(1 << 16), 4096)


FINISH_INSN = {"opcode": FINISH}
ONE_ROW = {"dram_base": 512, "y_size": 1, "x_size": 1, "x_stride": 1}
ONE_TRIP = {"uop_end": 1, "iter_out": 1, "iter_in": 1}


@pytest.mark.parametrize(
    ("insns", "semantics", "error", "message"),
    [
        (
            [{"opcode": LOAD, "memory_type": 2, "sram_base": 2048, **ONE_ROW, "push_next": 1}],
            "functional",
            ScratchpadOverflow,
            r"instruction 0 \(LOAD\) fills INP elements up to 2049 of 2048",
        ),
        (
            [{"opcode": GEMM, **ONE_TRIP, "iter_in": 3, "src_factor_in": 1024}],
            "functional",
            ScratchpadOverflow,
            r"instruction 0 \(GEMM\) reaches input 2048 of 2048 \(micro-op 0\)",
        ),
        (
            [{"opcode": ALU, **ONE_TRIP, "alu_opcode": 6}],
            "functional",
            UndecodableInstruction,
            "undefined ALU operation 6",
        ),
        (
            [{"opcode": LOAD, "memory_type": 3, **ONE_ROW, "dram_base": 5000}],
            "functional",
            DramOutOfRange,
            "0x4e200 outside the image ending at 0x11000",
        ),
        (
            [{"opcode": LOAD, "memory_type": 3, **ONE_ROW, "dram_base": 1087, "x_size": 2}],
            "functional",
            DramOutOfRange,
            "up to address 0x11040, beyond the image",
        ),
        (
            [{"opcode": STORE, "memory_type": 4, "pop_prev": 1}, {"opcode": LOAD, "pop_next": 1}],
            "functional",
            TokenDeadlock,
            "compute waits at instruction 1 for s2g; store waits at instruction 0 for g2s",
        ),
        ([{"opcode": LOAD}], "functional", FinishError, "no FINISH"),
        (
            [FINISH_INSN, {"opcode": LOAD}],
            "functional",
            FinishError,
            r"instruction 1 \(LOAD\) is not ordered before FINISH \(instruction 0\)",
        ),
        (
            [{"opcode": LOAD, "memory_type": 3, **ONE_ROW, "y_size": 0}],
            "chisel",
            HardwareHang,
            "y_size = 0",
        ),
        (
            [{"opcode": ALU, **ONE_TRIP, "iter_in": 2, "use_imm": 1}],
            "chisel",
            HardwareHang,
            "needs accumulator 0 one iteration after",
        ),
        (
            [{"opcode": GEMM, "uop_end": 8192, "iter_out": 16383, "iter_in": 16383}],
            "functional",
            WorkLimitExceeded,
            "more than the limit of 68719476736",
        ),
    ],
)
def test_the_error_names_instruction_field_and_limit(
    insns: list[dict[str, int]],
    semantics: SemanticsName,
    error: type[FunctionalError],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        simulate(program(*insns, *([] if error is FinishError else [FINISH_INSN])), SPEC, semantics)


def test_the_work_limit_belongs_to_the_caller() -> None:
    work = program({"opcode": GEMM, **ONE_TRIP, "iter_in": 100}, FINISH_INSN)
    simulate(work, SPEC, Semantics(work_limit=25_601))
    with pytest.raises(WorkLimitExceeded):
        simulate(work, SPEC, Semantics(work_limit=25_599))


def test_half_an_instruction_is_refused() -> None:
    with pytest.raises(ProgramError, match="not a multiple of 16"):
        execute(bytes(15), b"", 4096, SPEC)
    assert "truncated_instruction" in classify(bytes(15), b"", 4096, SPEC)


def ends_well(insns: bytes, image: bytes, base: int) -> None:
    """Check that both simulators and the classification give a result or a typed error."""
    budget = 1 << 24  # keeps a fuzzed loop nest to milliseconds
    for name in SEMANTICS:
        limited = replace(SEMANTICS[name], work_limit=budget)
        try:
            after = simulate(Program.from_bytes(insns, image, base), SPEC, limited).dram
        except TilewrightError:
            continue
        assert after.nbytes == len(image)
    assert all(isinstance(name, str) for name in classify(insns, image, base, SPEC))


@settings(max_examples=150)
@given(st.lists(st.binary(min_size=16, max_size=16), max_size=12), st.binary(max_size=300))
@pytest.mark.slow(seconds=4)
def test_random_bytes_end_in_a_result_or_a_typed_error(words: list[bytes], image: bytes) -> None:
    ends_well(b"".join(words), image, 4096)


@settings(max_examples=150)
@given(st.sampled_from(CORPUS), st.data())
def test_damaged_programs_end_in_a_result_or_a_typed_error(stream, data: st.DataObject) -> None:
    insns = bytearray(stream.insns)
    for _ in range(data.draw(st.integers(1, 6))):
        insns[data.draw(st.integers(0, len(insns) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    ends_well(bytes(insns), stream.before, stream.base)
