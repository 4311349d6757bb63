"""Tests single timing rules with cycles measured on the RTL, and programs that hang it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.packing import pack_gemm, pack_memory
from tilewright.core.errors import SpecError
from tilewright.targets.vta.instruction_format import (
    ACC,
    ALU,
    FINISH,
    INP,
    LOAD,
    POP_NEXT,
    POP_PREV,
    PUSH_NEXT,
    PUSH_PREV,
    STORE,
    UOP,
    WGT,
    layout_of,
)
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.timing import (
    CycleError,
    CycleReport,
    Deadlock,
    EndlessTransfer,
    MissingFinish,
    OvertakenLoad,
    UndecodableStream,
    simulate_program,
)

PYNQ = VtaSpec.load("vta-pynq")
FINISHED = (FINISH, 0)
COMPUTE_NOOP = (LOAD, 0)


def run(*insns: tuple[int, int], spec: VtaSpec = PYNQ, **options: object) -> CycleReport:
    return simulate_program(np.array(insns, np.uint64), spec, **options)  # type: ignore[arg-type]


def load(
    memory: int, y: int, x: int, stride: int = 0, pads: tuple[int, ...] = (0, 0, 0, 0),
    flags: int = 0, address: int = 4096,
) -> tuple[int, int]:  # fmt: skip
    lo, hi = pack_memory(LOAD, flags, memory, 0, address, y, x, stride or x, *pads)
    return int(lo), int(hi)


def length(report: CycleReport, insn: int = 0) -> int:
    return int(report.ends[insn] - report.starts[insn])


def with_flags(insn: tuple[int, int], flags: int) -> tuple[int, int]:
    return insn[0] | flags, insn[1]


@pytest.mark.parametrize(
    ("preset", "cycles"), [("vta-pynq", 25), ("vta-pynq-128", 27), ("vta-pynq-512", 27)]
)
def test_a_program_of_finish_alone_costs_one_fetch(preset: str, cycles: int) -> None:
    assert run(FINISHED, spec=VtaSpec.load(preset)).total == cycles


@pytest.mark.parametrize("count", [2, 17, 128])
def test_a_batch_of_noops_costs_two_beats_and_two_cycles_each(count: int) -> None:
    assert run(*[COMPUTE_NOOP] * (count - 1), FINISHED).total == 21 + 4 * count


@pytest.mark.parametrize(
    ("rows", "cycles"), [(1, 22), (8, 29), (16, 55), (32, 107), (64, 211), (128, 401), (1024, 3079)]
)
def test_rows_of_one_beat_starve_the_memory_and_pay_its_latency(rows: int, cycles: int) -> None:
    assert length(run(load(UOP, rows, 1, 2), FINISHED)) == cycles


@pytest.mark.parametrize(
    ("memory", "beats", "tail"), [(INP, 2, 22), (WGT, 32, 22), (ACC, 8, 22), (UOP, 1 / 2, 21)]
)
def test_a_load_alone_takes_its_beats_and_the_latency(memory: int, beats: float, tail: int) -> None:
    assert length(run(load(memory, 3, 4), FINISHED)) == tail + 3 * 4 * beats


def test_padding_is_written_in_cycles_without_beats() -> None:
    padded = load(INP, 4, 4, 4, pads=(2, 2, 3, 3))
    elements = 4 * 10 + 4 * 6
    assert length(run(padded, FINISHED)) == max(22 + 2 + 32, 2 + elements + 32)
    bottom = load(UOP, 4, 16, 16, pads=(0, 8, 0, 0))
    report = run(bottom, FINISHED, spec=VtaSpec.load("vta-pynq-128"))
    assert length(report) > max(21 + 16, 1 + 128 + 16)  # it walks past the data rows first


def test_two_loads_share_the_port_burst_by_burst() -> None:
    report = run(load(ACC, 1, 16), load(INP, 1, 64), FINISHED)
    assert length(report, 0) + length(report, 1) > 150
    assert report.read_beats == 128 + 128 + 2 * 3
    assert max(report.ends[:2]) - min(report.starts[:2]) >= 256


def test_a_narrow_store_reads_its_scratchpad_between_elements() -> None:
    for elements in (1, 5, 40):
        lo, hi = pack_memory(STORE, 0, 4, 0, 4096, 2, elements, 64, 0, 0, 0, 0)
        assert length(run((int(lo), int(hi)), FINISHED)) == 2 * (3 * elements + 3)


def test_loops_without_trips_run_the_whole_counter() -> None:
    lay = layout_of(PYNQ)
    for bgn, end, out, inner, iterations in (
        (0, 3, 2, 5, 30), (0, 1, 0, 1, 16384), (2, 2, 1, 1, 16384), (2, 1, 1, 3, 3 * 16383),
    ):  # fmt: skip
        lo, hi = pack_gemm(lay, 0, 0, bgn, end, out, inner, 0, 0, 0, 0, 0, 0)
        assert length(run((int(lo), int(hi)), FINISHED)) == iterations + 6


def test_tokens_beyond_the_counter_are_lost() -> None:
    def program(pushes: int) -> list[tuple[int, int]]:
        producer = with_flags(load(INP, 0, 0), PUSH_NEXT)
        gate = with_flags(COMPUTE_NOOP, POP_NEXT)  # opened by the store that comes last
        consumers = [with_flags(COMPUTE_NOOP, POP_PREV)] * pushes
        store = (STORE | POP_PREV | PUSH_PREV, 0)
        last = with_flags(load(INP, 0, 0), 0)
        return [COMPUTE_NOOP, *[producer] * pushes, last, gate, *consumers, FINISHED, store]

    open_gate = (0, 0, 1, 0)
    assert run(*program(255), tokens=open_gate).total > 0
    with pytest.raises(Deadlock, match="compute unit at instruction 514 for l2g"):
        run(*program(256), tokens=open_gate)


def test_a_token_left_by_the_run_before_lets_a_program_start() -> None:
    program = [with_flags(COMPUTE_NOOP, POP_NEXT), FINISHED]
    assert run(*program, tokens=(0, 0, 0, 1)).total == 29
    with pytest.raises(Deadlock) as error:
        run(*program)
    assert error.value.waiting == {"compute": (0, ("s2g",))}
    assert error.value.instruction == 0


def test_a_deadlock_names_every_unit_and_its_tokens() -> None:
    with pytest.raises(Deadlock) as error:
        run(
            with_flags(load(INP, 1, 1), POP_NEXT), (STORE | POP_PREV, 0),
            with_flags(COMPUTE_NOOP, POP_PREV | POP_NEXT), FINISHED,
        )  # fmt: skip
    assert error.value.waiting == {
        "load": (0, ("g2l",)), "compute": (2, ("l2g", "s2g")), "store": (1, ("g2s",)),
    }  # fmt: skip


def test_what_the_hardware_cannot_do_is_told_apart() -> None:
    with pytest.raises(MissingFinish):
        run(COMPUTE_NOOP)
    with pytest.raises(MissingFinish):
        simulate_program(np.zeros((0, 2), np.uint64), PYNQ)
    with pytest.raises(EndlessTransfer) as endless:
        run(COMPUTE_NOOP, with_flags(load(ACC, 0, 4), PUSH_PREV), FINISHED)
    assert (endless.value.instruction, endless.value.field, endless.value.limit) == (1, "y_size", 1)
    for insn in ((5, 0), (6, 0), (7, 0), load(4, 1, 1), load(5, 1, 1), (ALU, 4 << 44)):
        with pytest.raises(UndecodableStream) as unknown:
            run(COMPUTE_NOOP, insn, FINISHED)
        assert unknown.value.instruction == 1


def test_a_load_overtaken_by_the_next_is_refused() -> None:
    spec = VtaSpec.from_mapping(PYNQ.model_dump() | {"log_inp_buff_size": 12})
    whole = load(INP, 1, 256)
    report = run(whole, FINISHED, spec=spec)
    assert report.early_loads == 1
    assert length(report) < 512  # its counter of 512 beats wraps, so it ends too early
    with pytest.raises(OvertakenLoad):
        run(whole, whole, FINISHED, spec=spec)


def test_instructions_behind_finish_do_not_change_the_total() -> None:
    alone = run(FINISHED, COMPUTE_NOOP, load(INP, 1, 64))
    assert alone.total == alone.starts[0]
    assert alone.ends[2] > alone.total
    assert (alone.breakdown.sum(axis=1) == alone.total).all()


def test_a_configuration_without_an_encoding_keeps_the_default_fields() -> None:
    keys = {"LOG_BLOCK": 3, "LOG_INP_BUFF_SIZE": 15, "bus_bits": 64, "uop_depth": 2048}
    with pytest.raises(SpecError):
        VtaSpec.from_mapping(keys)
    gemm = pack_gemm(layout_of(PYNQ), 0, 0, 0, 2, 3, 4, 0, 0, 0, 0, 0, 0)
    insns: NDArray[np.uint64] = np.array([load(INP, 1, 5), gemm, FINISHED], np.uint64)
    report = simulate_program(insns, keys)
    assert length(report, 0) == 21 + 5  # 8 input bytes: a wide transfer on 64 bits
    assert length(report, 1) == 24 + 6


def test_bad_arguments_are_named() -> None:
    with pytest.raises(CycleError, match="multiple of 8"):
        run(FINISHED, insn_address=4)
    with pytest.raises(CycleError, match="l2g, g2l, g2s, s2g"):
        run(FINISHED, tokens=(0, 0, 256, 0))
    with pytest.raises(SpecError, match="powers of two"):
        simulate_program(np.array([FINISHED], np.uint64), {"bus_bits": 96})
    with pytest.raises(SpecError, match="whole number of bytes"):
        simulate_program(np.array([FINISHED], np.uint64), {"LOG_BLOCK": 1, "LOG_INP_WIDTH": 1})
