"""Checks that every schedule that lowers computes the reference's results, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.schedule_spaces.vta_programs import mismatches, program_with_data
from tests.targets.drawn_layers import EPILOGUES, PYNQ, SCANT, complaints, drawn_values
from tilewright.core.errors import WorkloadError
from tilewright.targets.epilogue import parse_epilogue
from tilewright.targets.vta.functional import simulate
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.lowering.tensor_packing import random_tensors, reference, unpack_output
from tilewright.targets.workload import Workload


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
    lowering = Lowering.for_workload(workload, SCANT, "extended")
    values = drawn_values(lowering, seed)
    whole = {"tile_h": 99, "tile_w": 99, "tile_ci": 99, "order": 1, "wgt_slots": 0, "head": 1}
    for k, knob in enumerate(lowering.space.knobs):
        if knob.name in whole:
            values[:, k] = min(whole[knob.name], max(knob.values))
    elements = -(-channels[0] // 32) * -(-channels[1] // 32) * kernel[0] * kernel[1]
    codes, states = lowering.counts(values)
    assume(elements > 16 and (codes == 0).any())
    row = np.flatnonzero(codes == 0)[0]
    assert states[row].wgt_used == 16
    assert states[row].wgt_bytes == elements * 1024  # each is loaded once
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
    lowering = Lowering.for_workload(workload, SCANT, "extended")
    values = drawn_values(lowering, seed)
    whole = {"tile_b": 99, "tile_ci": 99, "order": 1, "wgt_slots": 0, "head": 1}
    for k, knob in enumerate(lowering.space.knobs):
        if knob.name in whole:
            values[:, k] = min(whole[knob.name], max(knob.values))
    elements = -(-channels[0] // 32) * -(-channels[1] // 32)
    codes, states = lowering.counts(values)
    assume(elements > 16 and (codes == 0).any())
    row = np.flatnonzero(codes == 0)[0]
    assert states[row].wgt_bytes == elements * 1024  # each is loaded once
    assert mismatches(lowering, values[row], seed % 1000) == 0
    assert complaints(lowering, values[row]) == []


@pytest.mark.parametrize("semantics", ["functional", "chisel"])
def test_schedules_mean_the_same_to_simulator_and_hardware(semantics: str) -> None:
    workload = Workload("conv2d", 1, 48, 14, 14, 64, 3, 3, 1, 1, 1, 1, 1, 1)
    for kind in ("extended", "template"):
        lowering = Lowering.for_workload(workload, PYNQ, kind)
        values = drawn_values(lowering, 5)
        codes, _ = lowering.counts(values)
        for row in values[codes == 0][:6]:
            assert mismatches(lowering, row, 1, semantics) == 0  # type: ignore[arg-type]


def test_a_wrong_program_is_noticed() -> None:
    """The check can fail: a GEMM with one iteration less gives wrong values."""
    workload = Workload("conv2d", 1, 16, 8, 8, 16, 3, 3, 1, 1, 1, 1, 1, 1)
    lowering = Lowering.for_workload(workload, PYNQ, "extended")
    values = drawn_values(lowering, 0)
    codes, _ = lowering.counts(values)
    tensors = random_tensors(workload, lowering.machine, 0)
    program = program_with_data(lowering, values[codes == 0][0], tensors)
    assert program is not None
    gemm = next(i for i, w in enumerate(program.insns[:, 0]) if int(w) & 135 == 2)
    at = lowering.layout.iter_in
    program.insns[gemm, at // 64] -= np.uint64(1) << np.uint64(at % 64)
    after = simulate(program, PYNQ).dram
    got = unpack_output(workload, lowering.machine, lowering.geometry, after)
    assert (got != reference(workload, lowering.machine, tensors)).any()


def test_pads_beyond_the_field_are_refused_with_the_reason() -> None:
    with pytest.raises(WorkloadError, match="pads at most 15"):
        Lowering.for_workload(Workload("conv2d", 1, 16, 8, 8, 16, 3, 3, 1, 1, 16), PYNQ, "extended")
