"""Compares lint findings with the recorded behaviour of simulators and RTL."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.vta_corpus import streams
from tilewright.targets.vta import classify
from tilewright.targets.vta.instruction_format import (
    ALU,
    FINISH,
    GEMM,
    LOAD,
    STORE,
    encode,
    layout_of,
)
from tilewright.targets.vta.lint import lint
from tilewright.targets.vta.program import Program
from tilewright.targets.vta.spec import VtaSpec

SPEC = VtaSpec.load("vta-pynq")
FUNCTIONAL = list(streams("functional"))
INVALID = list(streams("invalid"))
# Recorded notes whose class has another name in `lint`.
NOTES = {
    "acc_8bit": "acc_8bit_load",
    "store_not_written_by_gemm_or_alu": "stale_store",
    "zero_trip": "zero_trip_count",
    "y_size_0": "y_size_zero",
}
FINISH_INSN = {"opcode": FINISH}
POP_PREV, PUSH_NEXT, POP_NEXT, PUSH_PREV = (
    {flag: 1} for flag in ("pop_prev", "push_next", "pop_next", "push_prev")
)
LOAD_NOP, COMPUTE_NOP = {"opcode": LOAD, "memory_type": 2}, {"opcode": LOAD}
ROW = {"dram_base": 512, "y_size": 1, "x_size": 1, "x_stride": 1}


def program(*insns: dict[str, int]) -> Program:
    lay = layout_of(SPEC)
    words = [encode(values, lay).to_bytes(16, "little") for values in insns]
    return Program.from_bytes(b"".join(words), bytes(1 << 16), 4096)


def names(*insns: dict[str, int], spec: VtaSpec = SPEC) -> set[str]:
    result = program(*insns)
    return classify(result.insn_bytes, result.dram.tobytes(), result.base, spec)


@pytest.mark.parametrize("stream", INVALID, ids=lambda s: s.meta["id"].rpartition("/")[2])
def test_the_class_of_every_recorded_invalid_stream_is_found(stream) -> None:
    got = classify(stream.insns, stream.before, stream.base, stream.config)
    if stream.meta["severity"] == "ok":
        assert got == set()
    else:
        assert stream.meta["class"] in got


def test_functional_streams_show_exactly_their_recorded_notes() -> None:
    wrong = {}
    for stream in FUNCTIONAL:
        spec = VtaSpec.from_mapping(stream.config)
        result = lint(Program.from_bytes(stream.insns, stream.before, stream.base), spec)
        got = {finding.name for finding in result}
        want = {NOTES.get(note, note) for note in stream.meta["notes"]}
        if got != want:
            wrong[stream.meta["id"]] = got ^ want
    assert wrong == {}


def test_classify_is_silent_about_what_runs_on_simulator_and_rtl_alike() -> None:
    portable = [stream for stream in FUNCTIONAL if stream.meta["portable_chisel"]]
    assert len(portable) > 100
    for stream in portable:
        assert classify(stream.insns, stream.before, stream.base, stream.config) == set()


def test_severities_are_those_of_the_recorded_classes() -> None:
    for stream in INVALID:
        spec = VtaSpec.from_mapping(stream.config)
        result = lint(Program.from_bytes(stream.insns, stream.before, stream.base), spec)
        severities = {f.severity for f in result if f.name == stream.meta["class"]}
        expected = set() if stream.meta["severity"] == "ok" else {stream.meta["severity"]}
        assert severities == expected, stream.meta["id"]


LONG_GEMM = {"opcode": GEMM, "uop_end": 1, "iter_out": 1, "iter_in": 9000, "reset_reg": 1}


def pushes(count: int) -> list[dict[str, int]]:
    """Return a stream that pushes `count` load-to-compute tokens before any is popped."""
    return [
        LONG_GEMM,
        *[LOAD_NOP | PUSH_NEXT] * count,
        *[COMPUTE_NOP | POP_PREV] * count,
        FINISH_INSN,
    ]


def test_255_waiting_tokens_are_fine_and_256_are_not() -> None:
    assert names(*pushes(255)) == set()
    assert names(*pushes(256)) == {"token_overflow"}


def test_tokens_that_pile_up_only_if_something_is_slow_are_a_note() -> None:
    insns = [*[LOAD_NOP | PUSH_NEXT, COMPUTE_NOP | POP_PREV] * 300, FINISH_INSN]
    assert names(*insns) == set()
    assert [(f.name, f.severity) for f in lint(program(*insns), SPEC)] == [
        ("token_overflow_possible", "note")
    ]


def test_a_token_is_not_counted_once_its_taker_must_have_started() -> None:
    taken = [LOAD_NOP | PUSH_NEXT, COMPUTE_NOP | POP_PREV]
    assert names(*taken, *pushes(255)) == set()


def test_a_full_instruction_queue_that_waits_for_a_later_instruction_is_found() -> None:
    stuck = [LOAD_NOP | POP_NEXT, *[LOAD_NOP] * 511]
    released = [COMPUTE_NOP | PUSH_PREV, LOAD_NOP | PUSH_NEXT, COMPUTE_NOP | POP_PREV, FINISH_INSN]
    assert names(*stuck, *released) == set()
    assert names(*stuck, LOAD_NOP, *released) == {"instruction_queue_deadlock"}


def test_leftover_tokens_are_reported_at_the_instruction_that_pushed_them() -> None:
    findings = lint(program(COMPUTE_NOP | PUSH_PREV, FINISH_INSN), SPEC)
    assert [(f.instruction, f.name, f.severity) for f in findings] == [
        (0, "leftover_tokens", "flag")
    ]
    assert "1 tokens in g2l" in findings[0].text


def test_a_load_over_inputs_still_being_read_is_a_race() -> None:
    gemm = {"opcode": GEMM, "uop_end": 1, "iter_out": 1, "iter_in": 1}
    load = {"opcode": LOAD, "memory_type": 2, **ROW}
    ordered = [load | PUSH_NEXT, gemm | POP_PREV | PUSH_PREV, load | POP_NEXT | PUSH_NEXT]
    unordered = [load | PUSH_NEXT, gemm | POP_PREV, load | PUSH_NEXT]
    end = [COMPUTE_NOP | POP_PREV, FINISH_INSN]
    assert names(*ordered, *end) == set()
    assert names(*unordered, *end) == {"data_race"}


def test_a_store_that_does_not_wait_for_the_accumulator_is_a_race() -> None:
    alu = {"opcode": ALU, "uop_end": 1, "iter_out": 1, "iter_in": 1, "alu_opcode": 2, "use_imm": 1}
    fill = [{"opcode": LOAD, "memory_type": 3, **ROW}, {"opcode": LOAD, **ROW, "dram_base": 1024}]
    store = {"opcode": STORE, "memory_type": 4, **ROW}
    end = [COMPUTE_NOP | POP_NEXT, FINISH_INSN]
    assert names(*fill, alu | PUSH_NEXT, store | POP_PREV | PUSH_PREV, *end) == set()
    assert "data_race" in names(*fill, alu, store | PUSH_PREV, *end)


def test_results_that_depend_on_initial_contents_are_found_where_they_are_stored() -> None:
    alu = {"opcode": ALU, "uop_end": 1, "iter_out": 1, "iter_in": 1, "alu_opcode": 2, "use_imm": 1}
    uop = {"opcode": LOAD, **ROW, "dram_base": 1024}
    store = {"opcode": STORE, "memory_type": 4, **ROW}
    end = [store | POP_PREV | PUSH_PREV, COMPUTE_NOP | POP_NEXT, FINISH_INSN]
    findings = lint(program(uop, alu | PUSH_NEXT, *end), SPEC)
    assert [(f.instruction, f.name) for f in findings] == [(2, "reads_uninitialised_scratchpad")]


def test_a_store_not_ordered_before_finish_is_an_error_but_a_nop_only_a_flag() -> None:
    alu = {"opcode": ALU, "uop_end": 1, "iter_out": 1, "iter_in": 1, "alu_opcode": 2, "use_imm": 1}
    fill = [{"opcode": LOAD, "memory_type": 3, **ROW}, {"opcode": LOAD, **ROW, "dram_base": 1024}]
    store = {"opcode": STORE, "memory_type": 4, **ROW}
    late = lint(program(*fill, alu | PUSH_NEXT, store | POP_PREV, FINISH_INSN), SPEC)
    assert [(f.instruction, f.name, f.severity) for f in late] == [
        (3, "instruction_after_finish", "error")
    ]
    nop = lint(program({"opcode": STORE}, FINISH_INSN), SPEC)
    assert [(f.name, f.severity) for f in nop] == [("instruction_after_finish", "flag")]


def test_micro_ops_beyond_the_built_memory_depend_on_the_specification() -> None:
    load = {"opcode": LOAD, **ROW, "dram_base": 1024, "sram_base": 2048}
    deeper = VtaSpec.from_mapping(SPEC.model_dump() | {"uop_depth": 4096})
    assert names(load, FINISH_INSN) == {"uop_index_ge_2048"}
    assert names(load, FINISH_INSN, spec=deeper) == set()


def test_every_finding_names_its_instruction_in_one_sentence() -> None:
    for stream in INVALID:
        result = lint(Program.from_bytes(stream.insns, stream.before, stream.base), SPEC)
        for finding in result:
            if finding.instruction >= 0:
                assert finding.text.startswith(f"instruction {finding.instruction} (")
            assert "\n" not in finding.text


@settings(max_examples=100)
@given(st.binary(max_size=400), st.binary(max_size=200), st.integers(0, 1 << 33))
def test_classify_takes_any_bytes(insns: bytes, image: bytes, base: int) -> None:
    assert isinstance(classify(insns, image, base, SPEC), set)
