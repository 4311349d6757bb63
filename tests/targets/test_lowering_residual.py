"""Tests residuals that the GEMM core adds: equal results, and no leftover tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from benchmarks.schedule_spaces.vta_programs import mismatches
from tests.targets.drawn_layers import (
    PYNQ,
    RESIDUAL_SCALES,
    RESIDUAL_SPECS,
    SCANT,
    accepted,
    complaints,
)
from tilewright.core.errors import WorkloadError
from tilewright.targets.epilogue import parse_epilogue
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.measure import time_rows
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload, parse_workload


def _problems(lowering: Lowering, values: np.ndarray, seed: int) -> list[str]:
    """Return the problems of one config's program: wrong values, tokens and lint findings."""
    wrong = ["numbers"] if mismatches(lowering, values, seed) else []
    return wrong + complaints(lowering, values)


@pytest.mark.parametrize("scale", RESIDUAL_SCALES)
@pytest.mark.parametrize("bias", ["", "bias, "])
def test_residuals_of_every_scale_are_added(scale: int, bias: str) -> None:
    """The layer has uneven tiles and strides, and the smallest buffers for the residual."""
    text, epilogue = "conv2d:n=1,c=48,h=15,w=13,o=80,k=3,s=2,p=1", f"{bias}residual {scale}, >> 7"
    for spec in (PYNQ, RESIDUAL_SPECS[3]):
        lowering = Lowering.for_workload(parse_workload(text, epilogue), spec, "extended")
        values = accepted(lowering, scale, 128)[:6]
        assert len(values) == 6
        assert [_problems(lowering, row, scale) for row in values] == [[]] * 6


@settings(max_examples=25)
@given(
    rows=st.integers(2, 40), channels=st.tuples(st.integers(400, 900), st.integers(33, 900)),
    scale=st.sampled_from(RESIDUAL_SCALES), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_beside_weights_that_pass_through_as_a_stream(
    rows: int, channels: tuple[int, int], scale: int, seed: int
) -> None:
    epilogue = parse_epilogue(f"bias, residual {scale}, >> 8")
    workload = Workload("dense", rows, channels[0], 1, 1, channels[1], post=epilogue)
    lowering = Lowering.for_workload(workload, SCANT, "extended")
    space = lowering.space
    values = space.values(space.unravel(np.arange(space.size)))
    whole = {"tile_b": 99, "tile_ci": 99, "order": 1, "wgt_slots": 0, "head": 1}
    for k, knob in enumerate(space.knobs):
        if knob.name in whole:
            values = values[values[:, k] == min(whole[knob.name], max(knob.values))]
    values = np.random.default_rng(seed).permutation(values)[:24]
    elements = -(-channels[0] // 32) * -(-channels[1] // 32)
    codes, states = lowering.counts(values)
    assume(elements > 15 and (codes == 0).any())
    row = np.flatnonzero(codes == 0)[0]
    assert states[row].wgt_used == 16
    assert states[row].wgt_bytes == (elements + 1) * 1024  # each is loaded once, plus the identity
    assert _problems(lowering, values[row], seed % 1000) == []


def test_pieces_wait_for_their_slots_where_the_input_scratchpad_is_small() -> None:
    """A tile has eight output blocks, and the residual's ring buffer holds two."""
    workload = parse_workload(
        "conv2d:n=1,c=16,h=16,w=8,o=128,k=1,s=1,p=0", "residual 3, >> 4, min 127, max 0"
    )
    spec = VtaSpec.from_mapping({"LOG_INP_BUFF_SIZE": 11})  # 128 elements
    lowering = Lowering.for_workload(workload, spec, "extended")
    values = lowering.space.values(lowering.space.unravel(np.arange(lowering.space.size)))
    names = [knob.name for knob in lowering.space.knobs]
    wanted = {"tile_h": 4, "tile_w": 8, "tile_co": 8, "inp_slots": 2, "head": 1}
    for name, value in wanted.items():
        values = values[values[:, names.index(name)] == value]
    codes, states = lowering.counts(values)
    assert (codes == 0).all()
    assert (states["inp_used"] == 128).all()
    assert (states["inp_bytes"] == (16 * 8 + 8 * 16 * 8) * 16).all()
    assert [_problems(lowering, row, 1) for row in values[:4]] == [[]] * 4


@pytest.mark.parametrize(
    ("epilogue", "most"),
    [(">> 8, min 127, max 0", 101_900), ("residual 4, >> 8, min 127, max 0", 114_400),
     ("residual 8, >> 8, min 127, max 0", 127_300)],
)  # fmt: skip
def test_it_costs_an_iteration_or_two_an_accumulator(epilogue: str, most: int) -> None:
    """With bias and an int32 residual, the layer takes 215,873 cycles."""
    workload = parse_workload("conv2d:n=1,c=64,h=56,w=56,o=64,k=1,s=1,p=0", epilogue)
    target = VtaTarget(PYNQ)
    values = target.space(workload).values(_good_configs(target, workload))
    _, _, cycles = time_rows(target.lowering(workload), values)
    assert target.bound(workload).cycles <= cycles[cycles > 0].min() <= most


def _good_configs(target: VtaTarget, workload: Workload) -> np.ndarray:
    """Return those of a few thousand configs that have the best estimates, shape (n, knobs)."""
    space = target.space(workload)
    configs = space.unravel(np.random.default_rng(1).permutation(space.size)[:6000])
    codes, _ = target.lowering(workload).counts(space.values(configs))
    estimated = target.estimate(workload, configs).matrix[:, 0]
    return configs[np.argsort(np.where(codes == 0, estimated, np.inf))[:600]]


@pytest.mark.parametrize("spec", [PYNQ, RESIDUAL_SPECS[2]], ids=lambda spec: spec.name)
@pytest.mark.parametrize(
    "text",
    ["conv2d:n=1,c=64,h=28,w=28,o=96,k=1,s=1,p=0", "conv2d:n=1,c=128,h=14,w=14,o=128,k=3,s=1,p=1",
     "conv2d:n=1,c=64,h=14,w=14,o=64,k=3,s=1,p=1,g=64", "dense:n=40,c=96,o=160"],
)  # fmt: skip
def test_estimates_rank_as_of_a_plain_epilogue_and_bounds_hold(spec: VtaSpec, text: str) -> None:
    plain = _ranking(VtaTarget(spec), parse_workload(text))
    for steps in ("residual 4, >> 8", "residual 8, >> 8", ">> channel 8"):
        workload = parse_workload(text, f"bias, {steps}, min 127, max 0")
        assert _ranking(VtaTarget(spec), workload) > min(0.9, plain - 0.05)


def _ranking(target: VtaTarget, workload: Workload) -> float:
    """Return the rank correlation of estimates and cycles. No cycles may be below the bound."""
    space = target.space(workload)
    configs = space.unravel(np.random.default_rng(2).permutation(space.size)[:1500])
    codes, _, cycles = time_rows(target.lowering(workload), space.values(configs))
    assert (cycles[codes == 0] >= target.bound(workload).cycles).all()
    estimated = target.estimate(workload, configs[codes == 0]).matrix[:, 0]
    return float(spearmanr(estimated, cycles[codes == 0]).statistic)


@pytest.mark.parametrize("space", ["template", "unchecked"])
def test_other_spaces_name_the_one_that_can(space: str) -> None:
    workload = parse_workload("conv2d:n=1,c=16,h=8,w=8,o=16,k=1", "residual 2, >> 4")
    with pytest.raises(WorkloadError, match="extended space"):
        Lowering.for_workload(workload, PYNQ, space)  # type: ignore[arg-type]


@pytest.mark.parametrize("before", [">> 3", "<< 1", "relu", "min 100"])
def test_what_does_not_commute_with_it_must_come_later(before: str) -> None:
    workload = parse_workload("conv2d:n=1,c=16,h=8,w=8,o=16,k=1", f"{before}, residual 2, >> 4")
    with pytest.raises(WorkloadError, match="before 'residual'"):
        Lowering.for_workload(workload, PYNQ, "extended")
