"""Tests convolutions that are fused with a max-pool."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from benchmarks.schedule_spaces.vta_programs import mismatches
from tests.targets.drawn_layers import PYNQ, complaints, convolutions_with_pools, with_pool
from tilewright.core.errors import WorkloadError
from tilewright.targets.display_names import shape
from tilewright.targets.epilogue import parse_epilogue
from tilewright.targets.integer_reference import reference
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.vta.workload_bound import bounds
from tilewright.targets.workload import Workload, canonical, parse_workload


@settings(max_examples=60)
@given(drawn=convolutions_with_pools(), seed=st.integers(0, 2**31))
def test_the_reference_is_that_of_two_layers(drawn: tuple[Workload, Pool], seed: int) -> None:
    """A maximum before shift and clips equals a maximum after them."""
    convolution, pool = drawn
    epilogue = parse_epilogue("bias, >> 7, min 127, max 0")
    both = with_pool(convolution.with_steps(epilogue), pool)
    first = both.remove_pattern(Pool)
    second = Workload(
        "max_pool", first.batch, first.out_channels, first.out_height, first.out_width,
        first.out_channels, pool.kernel_h, pool.kernel_w, pool.stride_h, pool.stride_w,
        pool.pad_top, pool.pad_left, pool.pad_bottom, pool.pad_right, groups=first.out_channels,
        post=(),
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    tensors = {
        "data": rng.integers(-128, 128, (both.batch, both.in_channels, both.height, both.width)),
        "weight": rng.integers(
            -128, 128,
            (both.out_channels, both.in_channels // both.groups, both.kernel_h, both.kernel_w),
        ),
        "bias": rng.integers(-9999, 9999, both.out_channels),
    }  # fmt: skip
    apart = reference(second, {"data": reference(first, tensors)})
    together = reference(both, tensors)
    assert together.shape == (both.batch, both.out_channels, both.out_height, both.out_width)
    assert (together == apart).all()


@pytest.mark.parametrize("pads", ["0", "1", "1x0x1x2", "0x1"])
def test_its_text_is_read_back(pads: str) -> None:
    text = f"conv2d:n=1,c=64,h=57,w=56,o=64,k=3,s=1,p=1,mk=3,ms=2,mp={pads}"
    workload = parse_workload(text)
    assert str(workload) == text
    assert Workload.from_json(workload.to_json()) == workload
    assert canonical(workload).pool == workload.pool
    assert workload.id != workload.remove_pattern(Pool).id
    assert parse_workload(text.replace("ms=2", "ms=2x2")) == workload


def test_workloads_without_a_pool_are_what_they_were() -> None:
    """Ledgers, tables and output directories identify workloads by these IDs."""
    plain = parse_workload("conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1")
    assert plain.id == "29cab8787af4"
    assert "pool" not in plain.to_json()
    assert Workload.from_json(plain.to_json()) == plain


RESNET = "conv2d:n=1,c=16,h=115,w=115,o=64,k=4,s=1,mk=3,ms=2,mp=1"
USUAL = "bias, >> 8, min 127, max 0"


def test_the_bound_counts_sums_and_maxima() -> None:
    """The bound of ResNet's first layer is the sum of its operations.

    There are 112² sums with 16 kernel positions each, each with a reset, maxima of 3×3 windows with
    stride 2, two cycles each, and four operations on the result.
    """
    first = parse_workload(RESNET, USUAL)
    assert bounds(first, PYNQ) == {
        "compute": 4 * (112 * 112 * 17 + 2 * (2 * 56 * 112 + 2 * 56 * 56) + 4 * 56 * 56),
        "read": (115 * 115 * 16 + 4 * 16 * 256 + 4 * 64) // 8, "write": 4 * 56 * 56 * 16 // 8,
    }  # fmt: skip
    assert first.macs == first.remove_pattern(Pool).macs


def config(lowering: Lowering, **knobs: int) -> np.ndarray:
    """Return knob values, shape (1, 10)."""
    return np.array([[knobs[knob.name] for knob in lowering.space.knobs]])


ROWS = {
    "tile_h": 2, "tile_co": 1, "tile_ci": 1, "order": 0, "inp_slots": 2,
    "wgt_slots": 0, "acc_slots": 2, "head": 1, "ramp": 2,
}  # fmt: skip


SMALLER = "conv2d:n=1,c=16,h=58,w=58,o=64,k=3,s=1"


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize(
    ("text", "cols", "sums"),
    [
        (RESNET, 56, 112 * 112 * 16),  # reads the shared row in place
        (SMALLER + ",mk=4,ms=2,mp=1x1x2x2", 28, 56 * 56 * 9),  # copies two shared rows
        (SMALLER + ",mk=2,ms=1,mp=0x0x1x1", 56, 56 * 56 * 9),
    ],
)
def test_tiles_of_whole_rows_take_over_what_they_share(
    text: str, cols: int, sums: int, slots: int
) -> None:
    """With two slots, no sum is computed twice."""
    lowering = Lowering.for_workload(parse_workload(text, USUAL), PYNQ, "extended")
    values = config(lowering, **ROWS | {"acc_slots": slots, "tile_w": cols})
    codes, states = lowering.counts(values)
    assert codes.tolist() == [0]
    assert (states[0].gemm_iterations == 4 * sums) == (slots == 2)
    assert mismatches(lowering, values[0], 1) == 0
    assert complaints(lowering, values[0]) == []


@pytest.mark.parametrize(
    "text",
    [
        RESNET,
        "conv2d:n=1,c=64,h=28,w=28,o=128,k=3,s=1,p=1,mk=2,ms=2",
        "conv2d:n=1,c=256,h=13,w=13,o=256,k=3,s=1,p=1,mk=3,ms=2",
    ],
)
def test_estimates_rank_schedules(text: str) -> None:
    target, workload = VtaTarget(PYNQ), parse_workload(text, USUAL)
    space = target.space(workload)
    flat = np.random.default_rng(0).choice(space.size, 600, replace=False)
    lowered = target.lower(workload, space.unravel(flat))
    measured = target.measure(lowered)
    estimated = target.estimate(workload, lowered.configs[measured.valid]).of_meaning("latency")
    cycles = measured.cycles[measured.valid]
    assert spearmanr(estimated[:, 0], cycles).statistic > 0.8
    assert 0.9 < np.median(estimated[:, 0] / cycles) < 1.1


def test_the_baseline_schedule_is_the_one_of_lowest_estimate() -> None:
    target, workload = VtaTarget(PYNQ), parse_workload(RESNET, USUAL)
    baseline = target.baseline(workload)
    assert (baseline.source, baseline.space.name) == ("estimate", "extended")
    assert baseline.latency.cycles < 1.1 * target.bound(workload).cycles
    assert (target.verify(baseline.lowered) == 0).all()
    rule = target.fallback(workload)
    assert rule.source == "fallback"
    assert rule.space.describe(rule.config)["tile_h"] == 1
    assert rule.latency.cycles > baseline.latency.cycles


def test_its_title_names_the_pool() -> None:
    assert shape(parse_workload(RESNET)) == "4×4/1 16→64 @115 max 3×3/2"


def test_what_has_no_lowering_is_refused_with_the_reason() -> None:
    text = "conv2d:n=1,c=32,h=9,w=9,o=32,k=3,s=1,p=1"
    with pytest.raises(WorkloadError, match="only the extended space pools"):
        Lowering.for_workload(parse_workload(text + ",mk=2,ms=2"), PYNQ, "template")
    with pytest.raises(WorkloadError, match="its windows skip sums"):
        Lowering.for_workload(parse_workload(text + ",mk=2,ms=3"), PYNQ, "extended")
    with pytest.raises(WorkloadError, match="'add' adds a tensor"):
        Lowering.for_workload(parse_workload(text + ",mk=2,ms=2", "add"), PYNQ, "extended")
    with pytest.raises(WorkloadError, match="only the sums of a conv2d"):
        parse_workload("dense:n=1,c=16,o=16").with_patterns(Pool(1, 1))
    with pytest.raises(WorkloadError, match="smaller than its window"):
        parse_workload(text + ",mk=2,mp=2")
    with pytest.raises(WorkloadError, match="has no mk"):
        parse_workload(text + ",ms=2")
    with pytest.raises(WorkloadError, match="unknown key mk"):
        parse_workload("max_pool:c=32,h=9,w=9,k=3,mk=3")
