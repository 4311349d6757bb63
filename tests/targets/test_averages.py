"""Tests convolutions whose outputs are averaged in the accumulators."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from benchmarks.schedule_spaces.vta_programs import mismatches
from tests.targets.drawn_layers import PRESETS, PYNQ, accepted, averaged
from tilewright.core.errors import WorkloadError
from tilewright.targets.display_names import shape
from tilewright.targets.epilogue import parse_epilogue
from tilewright.targets.integer_reference import average_weights, reference, total_taps
from tilewright.targets.patterns.average import Average
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.lowering.invalid_configs import FAILURES
from tilewright.targets.vta.lowering.tensor_packing import random_tensors
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.vta.workload_bound import bounds
from tilewright.targets.workload import Workload, canonical, parse_workload

LAST = "conv2d:n=1,c=320,h=7,w=7,o=1280,k=1,s=1,p=0,avg=7"
EPILOGUES = "bias, >> 8, min 127, max 0 | + 2048, >> 12, min 127, max -128"


@settings(max_examples=60)
@given(workload=averaged(), seed=st.integers(0, 2**32 - 1))
def test_the_average_is_that_of_a_depthwise_convolution(workload: Workload, seed: int) -> None:
    """The reference is a separate layer that averages the clipped 8-bit results."""
    assert workload.average is not None
    cut = parse_epilogue(">> 9, min 127, max -128")
    together = workload.with_steps((*workload.epilogue, *cut))
    tensors = random_tensors(together, PYNQ.machine, seed)
    data = reference(together.remove_pattern(Average), tensors)
    n, c, h, w = data.shape
    taps, _ = average_weights(h, w)
    apart = Workload(
        "conv2d", n, c, h, w, c, h, w, groups=c, post=workload.average.epilogue
    )  # fmt: skip
    weight = np.broadcast_to(taps, (c, 1, h, w))
    expected = reference(apart, {"data": data, "weight": weight})
    np.testing.assert_array_equal(reference(together, tensors), expected)


@given(height=st.integers(1, 40), width=st.integers(1, 40))
def test_taps_differ_by_one_at_most_and_sum_up_to_a_power_of_two(height: int, width: int) -> None:
    taps, bits = average_weights(height, width)
    assert taps.sum(dtype=np.int64) == 1 << bits == total_taps(height, width)
    assert taps.max() - taps.min() <= 1
    assert taps.min() > 0


@pytest.mark.parametrize("spec", PRESETS, ids=lambda spec: spec.name)
def test_estimates_find_good_schedules(spec: VtaSpec) -> None:
    target, workload = VtaTarget(spec), parse_workload(LAST, EPILOGUES)
    space = target.space(workload)
    configs = space.unravel(np.random.default_rng(1).integers(0, space.size, 1024))
    _, measured = target.lower_and_measure(workload, configs)
    valid = measured.cycles > 0
    cycles = measured.cycles[valid]
    estimated = target.estimate(workload, configs[valid]).matrix[:, 0]
    assert cycles[estimated.argmin()] < 1.2 * cycles.min()
    if spec.name in ("vta-pynq", "small", "large"):
        assert spearmanr(estimated, cycles).statistic > 0.85


def test_a_lifted_bias_saves_a_cycle_an_accumulator() -> None:
    before = {bias: f"{bias}, >> 8, min 127, max 0 | + 2048, >> 12, min 127, max -128"
              for bias in ("bias", "bias 32")}  # fmt: skip
    lifted, plain = (
        Lowering.for_workload(parse_workload(LAST, text), PYNQ, "extended")
        for text in before.values()
    )
    assert lifted.geometry.average_lift > 0 == plain.geometry.average_lift
    values = accepted(lifted, 0)
    work = [item.counts(values)[1] for item in (lifted, plain)]
    resets = [item["reset_iterations"] for item in work]
    assert (resets[1] - resets[0] > 2000).all()
    assert mismatches(lifted, values[0]) == 0
    large = parse_workload(
        "conv2d:n=1,c=16,h=17,w=17,o=16,k=1,s=1,p=0,avg=17", before["bias"]
    )  # fmt: skip
    assert Lowering.for_workload(large, PYNQ, "extended").geometry.average_lift == 0


def test_an_element_a_channel_block_is_stored() -> None:
    lowering = Lowering.for_workload(parse_workload(LAST, EPILOGUES), PYNQ, "extended")
    _, states = lowering.counts(accepted(lowering, 0))
    assert set(states["out_bytes"]) == {1280}
    assert bounds(lowering.workload, PYNQ)["write"] == 1280 // PYNQ.machine.bus_bytes


def test_an_image_that_accumulators_cannot_hold_has_no_schedule() -> None:
    workload = parse_workload("conv2d:n=1,c=16,h=64,w=64,o=16,k=1,s=1,p=0,avg=64", EPILOGUES)
    lowering = Lowering.for_workload(workload, PYNQ, "extended")
    codes, _ = lowering.counts(lowering.space.values(lowering.space.unravel(np.arange(16))))
    assert {FAILURES[code].name for code in codes.tolist()} <= {"ALLOC"}
    with pytest.raises(WorkloadError, match="has no schedule"):
        VtaTarget(PYNQ).baseline(workload)


def test_texts_and_json_round_trip() -> None:
    workload = parse_workload(LAST, EPILOGUES)
    assert Workload.from_json(workload.to_json()) == workload
    assert parse_workload(str(workload), workload.epilogue_text) == workload
    assert (str(workload), workload.epilogue_text) == (LAST, EPILOGUES)
    assert shape(workload).endswith(" avg")
    assert canonical(workload).average != workload.average
    assert canonical(canonical(workload)) == canonical(workload)
    assert "average" not in workload.remove_pattern(Average).to_json()


def test_with_a_shortcut_there_are_three_epilogues() -> None:
    text = "conv2d:n=1,c=16,h=6,w=7,o=16,k=1,s=1,p=0,xc=8,xi=6x7,xs=1,avg=6x7"
    epilogues = f"bias, >> 8 | {EPILOGUES}"
    workload = parse_workload(text, epilogues)
    assert (str(workload), workload.epilogue_text) == (text, epilogues)
    assert Workload.from_json(workload.to_json()) == workload
    with pytest.raises(WorkloadError, match=r"has 2 epilogues, but .* needs 3"):
        workload.with_epilogue(EPILOGUES)


@pytest.mark.parametrize(
    ("text", "epilogue", "says"),
    [
        (
            LAST.replace("avg=7", "avg=7x6"),
            None,
            "its average covers 7×6 pixels, but its output has 7×7",
        ),
        (LAST + ",mk=2,ms=2", None, "without a pool"),
        (LAST + ",dtype=float32", "", "an int8 conv2d"),
        (LAST, ">> 8 | bias, >> 12", "can only use constants"),
        (LAST, ">> 8 | residual 2, >> 12", "can only use constants"),
        (LAST.replace(",avg=7", ""), EPILOGUES, "has 2 epilogues"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, epilogue: str | None, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        parse_workload(text, epilogue)


@pytest.mark.parametrize("space", ["template", "unchecked"])
def test_other_spaces_have_no_averages(space: str) -> None:
    with pytest.raises(WorkloadError, match="only the extended space"):
        VtaTarget(PYNQ, space).space(parse_workload(LAST, ">> 8 | >> 12"))  # type: ignore[arg-type]
