"""Tests a step composed of ALU operations: numbers on every shape, sound streams, a true bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.schedule_spaces.vta_programs import mismatches, program_with_data
from tests.targets.test_lowering_numbers import SPECS, complaints
from tests.targets.test_pooled_convolutions import accepted
from tilewright.core.errors import WorkloadError
from tilewright.targets.epilogue import EpilogueOp, parse_epilogue
from tilewright.targets.patterns.average import Average
from tilewright.targets.patterns.shortcut import Shortcut
from tilewright.targets.vta.functional import simulate
from tilewright.targets.vta.lowering.batch import Lowering, SpaceName
from tilewright.targets.vta.lowering.tensor_packing import random_tensors, unpack_output
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload, canonical, parse_workload

PYNQ = VtaSpec.load("vta-pynq")
PRESETS = [*SPECS, VtaSpec.load("huge")]
STEPS = [
    "bias, leaky 3, + 128, >> 8, min 127, max -128",
    "bias 32, residual 3, leaky 1, + 64, >> 7, min 127, max -128",
    "add, leaky 7, >> 9, min 127, max -128",
    ">> 4, add, leaky 5, >> 2, min 127, max -128",
    "leaky 15, leaky 2, >> channel, min 90, max -3",
    ">> 8, min 127, max -128, leaky 4",
]
CONV = "conv2d:n=1,c=64,h=14,w=14,o=64,k=3,s=1,p=1"


@st.composite
def leaking(draw: st.DrawFn) -> Workload:
    """Kernels, strides, groups, batches; maybe a shortcut or an average with it."""
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    pads = draw(st.tuples(*[st.integers(0, kernel[a % 2] - 1) for a in range(4)]))
    groups = draw(st.sampled_from([1, 1, 1, 2, 20]))
    own = Workload(
        "conv2d", draw(st.integers(1, 3)), draw(st.integers(1, 3 if groups > 2 else 40)) * groups,
        draw(st.integers(kernel[0], 12)), draw(st.integers(kernel[1], 12)),
        draw(st.integers(1, 3 if groups > 2 else 40)) * groups, *kernel,
        *draw(st.tuples(st.integers(1, 2), st.integers(1, 2))), *pads, groups=groups,
        post=parse_epilogue(draw(st.sampled_from(STEPS))),
    )  # fmt: skip
    size = own.out_height, own.out_width
    tensors = any(op.kind in ("add", "residual") for op in own.epilogue)
    if groups == 1 and not tensors and draw(st.booleans()):
        first = parse_epilogue("bias, >> 8, min 127, max -128, << 3")
        own = own.with_patterns(Shortcut(draw(st.integers(1, 40)), *size, epilogue=first))
    if draw(st.booleans()):
        own = own.with_patterns(Average(*size, parse_epilogue("+ 32, >> 6, max -128, min 127")))
    return own


@settings(max_examples=200)
@given(workload=leaking(), spec=st.sampled_from(PRESETS), seed=st.integers(0, 2**32 - 1))
@pytest.mark.slow(seconds=6)
def test_accepted_schedules_compute_the_integer_reference(
    workload: Workload, spec: VtaSpec, seed: int
) -> None:
    try:
        lowering = Lowering.of(workload, spec, "extended")
    except WorkloadError:  # a residual where blocks are not square
        assume(False)
    values = accepted(lowering, seed)
    assume(len(values))
    assert mismatches(lowering, values[0], seed % 1000) == 0
    assert complaints(lowering, values[0]) == []


def by_division(
    data: NDArray[np.int64], weight: NDArray[np.int64], slope: int
) -> NDArray[np.int64]:
    """A 3×3 convolution with a pixel of padding, then x or x over `slope`, then x over 256 rounded
    half up, cut to eight bits: in no word of the package's own reference."""
    n, c, h, w = data.shape
    padded = np.zeros((n, c, h + 2, w + 2), np.int64)
    padded[:, :, 1:-1, 1:-1] = data
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    sums = np.einsum("nchwij,ocij->nohw", windows, weight)
    leaked = np.where(sums > 0, sums, np.floor(sums / slope))
    return np.clip(np.floor(leaked / 256 + 0.5), -128, 127).astype(np.int64)


@pytest.mark.parametrize("shift", [1, 3, 6])
@pytest.mark.parametrize("seed", range(3))
def test_a_simulated_program_divides_what_is_negative(shift: int, seed: int) -> None:
    workload = parse_workload(CONV, f"leaky {shift}, + 128, >> 8, min 127, max -128")
    lowering = Lowering.of(workload, PYNQ, "extended")
    tensors = random_tensors(workload, PYNQ.machine, seed)
    tensors["weight"] >>= 2  # so that results are cut on neither side alone
    expected = by_division(tensors["data"], tensors["weight"], 1 << shift)
    assert (expected < 0).any()
    assert ((expected > 0) & (expected < 127)).any()
    for values in accepted(lowering, seed)[:4]:
        program = program_with_data(lowering, values, tensors)
        assert program is not None
        after = simulate(program, PYNQ).dram
        got = unpack_output(workload, PYNQ.machine, lowering.geometry, after)
        np.testing.assert_array_equal(got, expected)


@settings(max_examples=60)
@given(workload=leaking(), spec=st.sampled_from(PRESETS), seed=st.integers(0, 2**32 - 1))
def test_nothing_is_faster_than_the_bound(workload: Workload, spec: VtaSpec, seed: int) -> None:
    target = VtaTarget(spec)
    try:
        space = target.space(workload)
    except WorkloadError:
        assume(False)
    configs = space.unravel(np.random.default_rng(seed).integers(0, space.size, 8))
    _, measured = target.lower_and_measure(workload, configs)
    cycles = np.where(measured.cycles > 0, measured.cycles, np.inf)
    assert cycles.min() >= (target.bound(workload).cycles or 0)
    assert (target.schedule_bounds(workload, configs) <= cycles).all()


@pytest.mark.parametrize("spec", PRESETS, ids=lambda spec: spec.name)
def test_estimates_find_good_schedules(spec: VtaSpec) -> None:
    target, workload = VtaTarget(spec), parse_workload(CONV, STEPS[0])
    space = target.space(workload)
    configs = space.unravel(np.random.default_rng(1).integers(0, space.size, 1024))
    _, measured = target.lower_and_measure(workload, configs)
    valid = measured.cycles > 0
    cycles = measured.cycles[valid]
    estimated = target.estimate(workload, configs[valid]).matrix[:, 0]
    assert cycles[estimated.argmin()] < 1.2 * cycles.min()
    assert spearmanr(estimated, cycles).statistic > 0.8


def test_its_baseline_is_a_schedule_of_ours() -> None:
    target, workload = VtaTarget(PYNQ), parse_workload(CONV, STEPS[0])
    found = target.baseline(workload)
    assert found.source == "estimate"
    assert found.measured.cycles[0] >= (target.bound(workload).cycles or 0)


def test_texts_and_json_round_trip() -> None:
    workload = parse_workload(CONV, STEPS[0])
    assert workload.epilogue[1] == EpilogueOp("leaky", 3)
    assert workload.epilogue_text == STEPS[0]
    assert Workload.from_json(workload.to_json()) == workload
    other = parse_workload(CONV, STEPS[0].replace("leaky 3", "leaky 5"))
    assert other.id != workload.id
    assert canonical(other) == canonical(workload)


@pytest.mark.parametrize("text", ["leaky 0", "leaky 16", "leaky -1", "leaky"])
def test_slopes_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="leaky"):
        parse_epilogue(text)


@pytest.mark.parametrize(
    ("text", "epilogue", "space", "says"),
    [
        (CONV, STEPS[0], "template", "only the extended space has 'leaky 3'"),
        (CONV, "leaky 3, >> 8", "unchecked", "only the extended space has 'leaky 3'"),
        (CONV + ",mk=2,ms=2", STEPS[0], "extended", "no step of pooled sums"),
        ("max_pool:n=1,c=16,h=8,w=8,k=2,s=2", "leaky 3", "extended", "constants only"),
        (CONV + ",xc=16,xi=14", "leaky 3, >> 8 | bias, >> 8", "extended", "basic steps alone"),
    ],
)
def test_what_has_no_lowering_is_refused(
    text: str, epilogue: str, space: SpaceName, says: str
) -> None:
    with pytest.raises(WorkloadError, match=says):
        Lowering.of(parse_workload(text, epilogue), PYNQ, space)
