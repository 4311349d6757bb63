"""Compares random programs with a plain interpreter, on machines of many shapes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.packing import pack_uop
from tests.targets.vta_interpreter import Interpreter
from tilewright.core.errors import SpecError
from tilewright.targets.vta.functional import (
    FUNCTIONAL,
    QUEUES_OF_FLAGS,
    ScratchpadOverflow,
    Semantics,
    allocate,
    outcome,
    rules_of,
    run,
    simulate,
)
from tilewright.targets.vta.instruction_format import (
    ALU,
    FINISH,
    GEMM,
    LOAD,
    STORE,
    Layout,
    encode,
    fields_of,
    layout_of,
)
from tilewright.targets.vta.numba_decorators import as_record
from tilewright.targets.vta.program import Program, words_of
from tilewright.targets.vta.spec import VtaSpec

WRAPPING = Semantics(name="wrapping", indices_wrap=True)
BASE, IMAGE = 4096, 1 << 16


def machine(
    batch: int = 0, block_in: int = 4, block_out: int = 4, inp: int = 3, wgt: int = 3, acc: int = 5
) -> VtaSpec:
    """Return a machine with small scratchpads.

    They hold 16 inputs, 8 weights, 16 accumulators and 32 micro-ops.
    """
    return VtaSpec.from_mapping(
        {
            "LOG_INP_WIDTH": inp,
            "LOG_WGT_WIDTH": wgt,
            "LOG_ACC_WIDTH": acc,
            "LOG_BATCH": batch,
            "LOG_BLOCK_IN": block_in,
            "LOG_BLOCK_OUT": block_out,
            "LOG_UOP_BUFF_SIZE": 7,
            "LOG_INP_BUFF_SIZE": 4 + batch + block_in + inp - 3,
            "LOG_WGT_BUFF_SIZE": 3 + block_in + block_out + wgt - 3,
            "LOG_ACC_BUFF_SIZE": 4 + batch + block_out + acc - 3,
        }
    )


SHAPES = [
    machine(),
    machine(batch=1),
    machine(batch=2, block_in=3, block_out=3),
    machine(block_in=5, block_out=4),
    machine(block_in=3, block_out=5),
    machine(block_in=1, block_out=1, batch=1),
    machine(block_in=0, block_out=4),
    machine(inp=2, wgt=2),
    machine(inp=1, wgt=3, block_in=4, block_out=3),
    machine(inp=4, wgt=4),
    machine(acc=4),
    machine(acc=3, batch=1),
]


def insn(lay: Layout, opcode: int, **values: int) -> bytes:
    return encode({"opcode": opcode, **values}, lay).to_bytes(16, "little")


def load(lay: Layout, memory: int, address: int, elements: int) -> bytes:
    return insn(
        lay, LOAD, memory_type=memory, dram_base=address, y_size=1, x_size=elements,
        x_stride=elements,
    )  # fmt: skip


def loads(spec: VtaSpec) -> bytes:
    """Return loads that fill all scratchpads with the beginning of the memory image."""
    m, lay = spec.machine, layout_of(spec)
    sizes = {0: m.uop_bytes, 1: m.wgt_bytes, 2: m.inp_bytes, 3: m.acc_bytes}
    logs = {0: m.log_uop_depth, 1: m.log_wgt_depth, 2: m.log_inp_depth, 3: m.log_acc_depth}
    return b"".join(
        load(lay, memory, -(-BASE // sizes[memory]), 1 << logs[memory]) for memory in (0, 1, 2, 3)
    )


@st.composite
def computations(draw: st.DrawFn, spec: VtaSpec) -> bytes:
    """Draw one GEMM or ALU instruction with few iterations and any indices."""
    lay, opcode = layout_of(spec), draw(st.sampled_from((GEMM, ALU)))
    values = {}
    for field in fields_of(opcode, lay):
        low = -(1 << field.width - 1) if field.signed else 0
        high = (1 << field.width - (1 if field.signed else 0)) - 1
        values[field.name] = draw(st.integers(low, high))
    values["reset_reg"] = draw(st.sampled_from((0, 0, 0, 1)))
    values["uop_bgn"] = draw(st.integers(0, 31))
    values["uop_end"] = values["uop_bgn"] + draw(st.integers(0, 5))
    values["iter_out"], values["iter_in"] = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    if draw(st.booleans()):
        for name in ("wgt_factor_in", "wgt_factor_out", "dst_factor_out"):
            if name in values and draw(st.booleans()):
                values[name] = 0
    if draw(st.booleans()):
        values["dst_factor_in"] = values["src_factor_in"] = 1
    if opcode == ALU:
        values["alu_opcode"] = draw(st.integers(0, 4))
        if values["alu_opcode"] == 3 and draw(st.booleans()):
            values["imm"] = draw(st.integers(-40, 40))
    return insn(lay, opcode, **values)


@st.composite
def transfers(draw: st.DrawFn, spec: VtaSpec) -> bytes:
    """Draw one LOAD or STORE inside the image, with any rows, strides and padding."""
    m, lay = spec.machine, layout_of(spec)
    opcode = draw(st.sampled_from((LOAD, STORE)))
    memory = draw(st.sampled_from((0, 1, 2, 3))) if opcode == LOAD else 4
    size = (m.uop_bytes, m.wgt_bytes, m.inp_bytes, m.acc_bytes, m.out_bytes)[memory]
    pads = {}
    if opcode == LOAD:
        for side in ("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1"):
            pads[side] = draw(st.integers(0, 2))
    first = -(-BASE // size)
    return insn(
        lay, opcode, memory_type=memory, sram_base=draw(st.integers(0, 40)),
        dram_base=draw(st.integers(first, first + 20)), y_size=draw(st.integers(0, 3)),
        x_size=draw(st.integers(0, 4)), x_stride=draw(st.integers(0, 6)), **pads,
    )  # fmt: skip


def dump(spec: VtaSpec) -> bytes:
    """Return stores of all bytes of the accumulators, eight bits at a time."""
    m, lay = spec.machine, layout_of(spec)
    depth = 1 << m.log_acc_depth
    stored, at = b"", -(-(BASE + IMAGE // 2) // m.out_bytes)
    # sets micro-op 0 to zero: a LOAD of padding alone reads nothing
    blank = insn(
        lay, LOAD, memory_type=0, dram_base=BASE // m.uop_bytes, y_size=0, x_size=1, y_pad_0=1
    )
    for k in range(4):
        shift = insn(
            lay, ALU, uop_end=1, iter_out=1, iter_in=depth, dst_factor_in=1, src_factor_in=1,
            alu_opcode=3, use_imm=1, imm=8 if k else 0,
        )  # fmt: skip
        stored += blank + shift
        stored += insn(
            lay, STORE, memory_type=4, dram_base=at + k * depth, y_size=1, x_size=depth,
            x_stride=depth,
        )  # fmt: skip
    return stored


@pytest.mark.parametrize("spec", SHAPES, ids=range(len(SHAPES)))
@settings(max_examples=40)
@given(data=st.data())
def test_random_programs_match_the_interpreter(spec: VtaSpec, data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 1 << 32))
    image = np.random.default_rng(seed).integers(0, 256, IMAGE).astype(np.uint8).tobytes()
    body = data.draw(st.lists(st.one_of(computations(spec), transfers(spec)), max_size=6))
    insns = chained(loads(spec) + b"".join(body) + dump(spec), layout_of(spec))
    got = simulate(Program.from_bytes(insns, image, BASE), spec, WRAPPING)
    assert got.dram.tobytes() == Interpreter(spec, image, BASE).run(insns)


few = st.integers(1, 4)


@st.composite
def nests(draw: st.DrawFn, spec: VtaSpec) -> bytes:
    """Draw 32 micro-ops that repeat with shifted indices, except for one or two."""
    m, lay = spec.machine, layout_of(spec)
    depths = (1 << m.log_acc_depth, 1 << m.log_inp_depth, 1 << m.log_wgt_depth)
    most = (4, 4, depths[2] - 1)
    first = [tuple(draw(st.integers(0, n)) for n in most) for _ in range(draw(few))]
    steps = (draw(st.integers(0, 2)), draw(st.integers(0, 2)), 0)
    words = []
    for k in range(32):
        moved = zip(first[k % len(first)], steps, depths, strict=True)
        words.append(int(pack_uop(lay, *(((v + k // len(first) * s) % d) for v, s, d in moved))))
    for place in draw(st.lists(st.integers(0, 31), max_size=2)):
        words[place] ^= 1 << draw(st.integers(0, lay.uop_dst_bits + lay.uop_src_bits + 2))
    return b"".join(word.to_bytes(m.uop_bytes, "little") for word in words)


@pytest.mark.parametrize("spec", [machine(), machine(batch=1, block_in=5)], ids=["plain", "wide"])
@settings(max_examples=150)
@given(data=st.data())
@pytest.mark.slow(seconds=4)
def test_micro_ops_in_nests_match_the_interpreter(spec: VtaSpec, data: st.DataObject) -> None:
    draw, lay = data.draw, layout_of(spec)
    uops = draw(nests(spec))
    noise = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, IMAGE - len(uops))
    image = uops + noise.astype(np.uint8).tobytes()
    values = {"uop_bgn": draw(st.integers(0, 6)), "uop_end": draw(st.integers(7, 32))}
    values |= {name: draw(few) for name in ("iter_out", "iter_in")}
    for name in ("dst_factor", "src_factor", "wgt_factor"):
        values |= {f"{name}_{loop}": draw(st.integers(0, 1)) for loop in ("out", "in")}
    insns = chained(loads(spec) + insn(lay, GEMM, **values) + dump(spec), lay)
    got = simulate(Program.from_bytes(insns, image, BASE), spec, WRAPPING)
    assert got.dram.tobytes() == Interpreter(spec, image, BASE).run(insns)


def chained(insns: bytes, lay: Layout) -> bytes:
    """Return the instructions in strict program order, enforced by tokens of no-ops."""
    words = words_of(insns).tolist()
    result = []
    for low, high in words:
        opcode, memory = low & 7, low >> 7 & 7
        if opcode == STORE:
            result += [[0x40, 0], [low | 0x28, high], [0x10, 0]]
        elif opcode == LOAD and memory in (1, 2):
            result += [[0x20, 0], [low | 0x50, high], [0x08, 0]]
        else:
            result.append([low, high])
    result.append([FINISH, 0])
    return np.array(result, np.uint64).tobytes()


def test_a_batch_of_programs_runs_in_threads_without_disturbing_each_other() -> None:
    spec, rng = machine(), np.random.default_rng(0)
    m, rules = spec.machine, rules_of(FUNCTIONAL, spec.machine)
    numbers = as_record(m), as_record(layout_of(spec)), as_record(rules)  # as `simulate` does
    insns = words_of(chained(loads(spec) + dump(spec), layout_of(spec)))
    images = [rng.integers(0, 256, IMAGE).astype(np.uint8) for _ in range(16)]
    expected = [simulate(Program(insns, image, BASE), spec).dram for image in images]

    def one(image: np.ndarray) -> int:
        pads, result = allocate(m, rules), outcome()
        return run(insns, image, BASE, *numbers, pads, QUEUES_OF_FLAGS, result)

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(one, images)) == {0}
    assert all((image == want).all() for image, want in zip(images, expected, strict=True))


def test_tokens_of_an_earlier_program_can_be_given() -> None:
    spec = machine()
    lay = layout_of(spec)
    insns = insn(lay, LOAD, memory_type=0, pop_next=1) + insn(lay, FINISH)
    program = Program.from_bytes(insns, bytes(64), BASE)
    assert simulate(program, spec, tokens=(0, 0, 0, 1)).tokens_left["s2g"] == 0


def test_wrapping_is_chosen_by_the_semantics() -> None:
    spec = machine()
    lay = layout_of(spec)
    insns = load(lay, 3, BASE // 64, 17) + insn(lay, FINISH)
    program = Program.from_bytes(insns, bytes(IMAGE), BASE)
    simulate(program, spec, "chisel")
    with pytest.raises(ScratchpadOverflow, match=r"instruction 0 \(LOAD\).* 17 of 16"):
        simulate(program, spec)


def test_wide_values_are_refused() -> None:
    spec = machine(inp=5)
    with pytest.raises(SpecError, match="at most 16 bits"):
        simulate(Program.from_bytes(b"", b"", BASE), spec)
