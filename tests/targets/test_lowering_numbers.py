"""Checks that every schedule the lowering accepts computes the right numbers, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.schedule_spaces.vta_programs import mismatches, program_with_data
from tilewright.core.errors import WorkloadError
from tilewright.targets.epilogue import parse_epilogue
from tilewright.targets.vta.functional import simulate
from tilewright.targets.vta.lint import lint
from tilewright.targets.vta.lowering.batch import Lowering, SpaceName
from tilewright.targets.vta.lowering.tensor_packing import random_tensors, reference, unpack_output
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import Workload

SPECS = [
    VtaSpec.load("vta-pynq"),
    VtaSpec.load("small"),
    VtaSpec.load("evta-zcu102"),
    VtaSpec.load("large"),
    VtaSpec.from_mapping(
        {"LOG_BLOCK": 3, "LOG_INP_BUFF_SIZE": 13, "LOG_WGT_BUFF_SIZE": 15, "LOG_ACC_BUFF_SIZE": 14}
    ),
    VtaSpec.from_mapping({"LOG_BLOCK_IN": 5, "LOG_BLOCK_OUT": 4}),
    VtaSpec.from_mapping(
        {
            "LOG_BATCH": 1, "LOG_BLOCK_IN": 3, "LOG_BLOCK_OUT": 4, "LOG_INP_BUFF_SIZE": 13,
            "LOG_WGT_BUFF_SIZE": 15, "LOG_ACC_BUFF_SIZE": 14,
        }
    ),
]  # fmt: skip
EPILOGUES = [
    ">> 8, min 127, max 0",
    "bias, >> 8, min 127, max -128",
    "bias, add, relu, >> 7, min 127",
    "add, >> 6, min 127, max -128",
    "",
    ">> 4, add, min 127, max 0",
    "relu, bias, << 1, >> 9, max -128, min 127",
    "bias, >> channel 8, min 127, max -128",
    "bias 32, >> channel, min 127, max 0",
    "add, >> channel, relu, min 127",
]


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Odd sizes, 1×1 to 7×7 kernels, strides, asymmetric pads, dilation, batches, groups."""
    kernel = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    groups = draw(st.sampled_from([1, 1, 1, 2]))
    dilation = draw(st.sampled_from([1, 1, 1, 2]))
    reach = [(k - 1) * dilation + 1 for k in kernel]
    pads = draw(st.tuples(*[st.integers(0, kernel[a % 2] - 1) for a in range(4)]))
    height = draw(st.integers(reach[0], reach[0] + 12))
    width = draw(st.integers(reach[1], reach[1] + 12))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    return Workload(
        "conv2d", draw(st.integers(1, 3)), draw(st.integers(1, 40)) * groups, height, width,
        draw(st.integers(1, 40)) * groups, *kernel, *stride, *pads, dilation, dilation, groups,
        post=parse_epilogue(draw(st.sampled_from(EPILOGUES))),
    )  # fmt: skip


@st.composite
def batched_dense(draw: st.DrawFn) -> Workload:
    """Rows that fill the machine's batch or do not."""
    return Workload(
        "dense", draw(st.integers(2, 70)), draw(st.integers(1, 130)), 1, 1,
        draw(st.integers(1, 130)), post=parse_epilogue(draw(st.sampled_from(EPILOGUES))),
    )  # fmt: skip


SCANT = VtaSpec.from_mapping({"LOG_BLOCK": 5, "LOG_WGT_BUFF_SIZE": 14, "LOG_ACC_BUFF_SIZE": 16})
"""Sixteen weight elements of 128 beats each: weights of most layers pass through as a stream."""


def _draw_values(lowering: Lowering, seed: int) -> np.ndarray:
    flat = np.random.default_rng(seed).integers(0, lowering.space.size, 24)
    return lowering.space.values(lowering.space.unravel(flat))


def complaints(lowering: Lowering, values: np.ndarray) -> list[str]:
    """Why a program might behave otherwise elsewhere: tokens lost, data overwritten too early; or
    before another: tokens left over."""
    program = program_with_data(
        lowering, values, random_tensors(lowering.workload, lowering.machine, 0)
    )
    assert program is not None
    left = simulate(program, lowering.spec).tokens_left
    found = [f.name for f in lint(program, lowering.spec) if f.severity != "note"]
    return found + [f"tokens in {queue}" for queue, count in left.items() if count]


@settings(max_examples=150)
@given(
    workload=st.one_of(workloads(), batched_dense()),
    spec=st.sampled_from(SPECS),
    kind=st.sampled_from(["extended", "extended", "template"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_accepted_schedules_compute_the_integer_reference(
    workload: Workload, spec: VtaSpec, kind: SpaceName, seed: int
) -> None:
    lowering = Lowering.of(workload, spec, kind)
    values = _draw_values(lowering, seed)
    codes, _ = lowering.counts(values)
    assume((codes == 0).any())
    assert mismatches(lowering, values[codes == 0][0], seed % 1000) == 0
    if kind == "extended":
        assert complaints(lowering, values[codes == 0][0]) == []


@settings(max_examples=40)
@given(
    kernel=st.sampled_from([(1, 1), (2, 3), (3, 3), (5, 2)]), size=st.integers(5, 9),
    channels=st.tuples(st.integers(1, 130), st.integers(1, 300)),
    epilogue=st.sampled_from(EPILOGUES), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_weights_that_do_not_fit_pass_through_as_a_stream(
    kernel: tuple[int, int], size: int, channels: tuple[int, int], epilogue: str, seed: int
) -> None:
    workload = Workload(
        "conv2d", 1, channels[0], size, size, channels[1], *kernel, 1, 1,
        post=parse_epilogue(epilogue),
    )  # fmt: skip
    lowering = Lowering.of(workload, SCANT, "extended")
    values = _draw_values(lowering, seed)
    whole = {"tile_h": 99, "tile_w": 99, "tile_ci": 99, "order": 1, "wgt_slots": 0, "head": 1}
    for k, knob in enumerate(lowering.space.knobs):
        if knob.name in whole:
            values[:, k] = min(whole[knob.name], max(knob.values))
    elements = -(-channels[0] // 32) * -(-channels[1] // 32) * kernel[0] * kernel[1]
    codes, states = lowering.counts(values)
    assume(elements > 16 and (codes == 0).any())
    row = np.flatnonzero(codes == 0)[0]
    assert states[row].wgt_used == 16
    assert states[row].wgt_bytes == elements * 1024  # each once
    assert mismatches(lowering, values[row], seed % 1000) == 0
    assert complaints(lowering, values[row]) == []


@settings(max_examples=25)
@given(
    rows=st.integers(2, 40), channels=st.tuples(st.integers(1, 900), st.integers(1, 900)),
    epilogue=st.sampled_from(EPILOGUES), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_weights_of_a_batched_dense_pass_through_as_a_stream_too(
    rows: int, channels: tuple[int, int], epilogue: str, seed: int
) -> None:
    workload = Workload(
        "dense", rows, channels[0], 1, 1, channels[1], post=parse_epilogue(epilogue)
    )
    lowering = Lowering.of(workload, SCANT, "extended")
    values = _draw_values(lowering, seed)
    whole = {"tile_b": 99, "tile_ci": 99, "order": 1, "wgt_slots": 0, "head": 1}
    for k, knob in enumerate(lowering.space.knobs):
        if knob.name in whole:
            values[:, k] = min(whole[knob.name], max(knob.values))
    elements = -(-channels[0] // 32) * -(-channels[1] // 32)
    codes, states = lowering.counts(values)
    assume(elements > 16 and (codes == 0).any())
    row = np.flatnonzero(codes == 0)[0]
    assert states[row].wgt_bytes == elements * 1024  # each once
    assert mismatches(lowering, values[row], seed % 1000) == 0
    assert complaints(lowering, values[row]) == []


@pytest.mark.parametrize("semantics", ["functional", "chisel"])
def test_schedules_mean_the_same_to_simulator_and_hardware(semantics: str) -> None:
    workload = Workload("conv2d", 1, 48, 14, 14, 64, 3, 3, 1, 1, 1, 1, 1, 1)
    for kind in ("extended", "template"):
        lowering = Lowering.of(workload, SPECS[0], kind)
        values = _draw_values(lowering, 5)
        codes, _ = lowering.counts(values)
        for row in values[codes == 0][:6]:
            assert mismatches(lowering, row, 1, semantics) == 0  # type: ignore[arg-type]


def test_a_wrong_program_is_noticed() -> None:
    """The check itself can fail: a GEMM with one iteration less leaves wrong numbers behind."""
    workload = Workload("conv2d", 1, 16, 8, 8, 16, 3, 3, 1, 1, 1, 1, 1, 1)
    lowering = Lowering.of(workload, SPECS[0], "extended")
    values = _draw_values(lowering, 0)
    codes, _ = lowering.counts(values)
    tensors = random_tensors(workload, lowering.machine, 0)
    program = program_with_data(lowering, values[codes == 0][0], tensors)
    assert program is not None
    gemm = next(i for i, w in enumerate(program.insns[:, 0]) if int(w) & 135 == 2)
    at = lowering.layout.iter_in
    program.insns[gemm, at // 64] -= np.uint64(1) << np.uint64(at % 64)
    after = simulate(program, SPECS[0]).dram
    got = unpack_output(workload, lowering.machine, lowering.geometry, after)
    assert (got != reference(workload, lowering.machine, tensors)).any()


def test_pads_beyond_the_field_are_refused_with_the_reason() -> None:
    with pytest.raises(WorkloadError, match="pads at most 15"):
        Lowering.of(Workload("conv2d", 1, 16, 8, 8, 16, 3, 3, 1, 1, 16), SPECS[0], "extended")
