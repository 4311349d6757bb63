"""Tests max-pools that run as ALU programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from benchmarks.schedule_spaces.vta_programs import mismatches
from tests.targets.drawn_layers import PYNQ, accepted, complaints
from tests.tune_bare import tune_bare
from tilewright.core.errors import WorkloadError
from tilewright.targets.display_names import shape
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.lowering.max_pool_plan import axis_of, length, maxima_of
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.vta.workload_bound import bounds
from tilewright.targets.workload import parse_workload


@pytest.mark.parametrize(
    "text",
    [
        "max_pool:n=1,c=64,h=112,w=112,k=3,s=2,p=1",  # ResNet
        "max_pool:n=1,c=32,h=4,w=4,k=2,s=2",
        "max_pool:n=1,c=64,h=147,w=147,k=3,s=2",  # Inception
        "max_pool:n=2,c=40,h=35,w=35,k=3,s=1,p=1",
        "max_pool:n=1,c=96,h=13,w=13,k=13,s=1",  # the whole image
        "max_pool:n=1,c=64,h=13,w=13,k=5,s=1,p=2",  # spatial pyramids
        "max_pool:n=1,c=64,h=13,w=13,k=13,s=1,p=6",
        "max_pool:n=1,c=16,h=20,w=20,k=3,s=2,p=0x0x1x1",  # sizes rounded up
        "max_pool:n=1,c=16,h=21,w=21,k=2,s=5",  # some pixels are not read
        "max_pool:n=1,c=16,h=21,w=21,k=1,s=2",
        "max_pool:n=1,c=24,h=1,w=50,k=1x4,s=1x2,p=0x1",
    ],
)
def test_pools_that_networks_have(text: str) -> None:
    lowering = Lowering.for_workload(parse_workload(text), PYNQ, "extended")
    values = accepted(lowering, 3, 200)
    assert len(values)
    for row in values[:4]:
        assert mismatches(lowering, row, 1) == 0
        assert complaints(lowering, row) == []


@given(
    kernel=st.integers(1, 20), stride=st.integers(1, 8), tile=st.integers(1, 12),
    data=st.data(),
)  # fmt: skip
def test_maxima_along_an_axis_are_those_of_its_windows(
    kernel: int, stride: int, tile: int, data: st.DataObject
) -> None:
    """The steps run one pixel after the other, as on the ALU."""
    outputs = data.draw(st.integers(1, tile))
    axis = axis_of(kernel, stride, tile)
    pixels = np.random.default_rng(kernel).integers(-99, 99, length(axis, outputs))
    stride = axis.stride
    expected = [pixels[o * stride : o * stride + kernel].max() for o in range(outputs)]
    steps = np.zeros((kernel + 32, 4), np.int64)
    for into, source, ahead, count in steps[: maxima_of(axis, outputs, steps)]:
        for j in range(count):
            at = j * stride + into
            pixels[at] = max(pixels[at], pixels[(j + ahead) * stride + source])
    assert [pixels[o * stride + axis.home] for o in range(outputs)] == expected


def test_windows_share_what_they_have_in_common() -> None:
    """A 3/2 pool takes two maxima per output. A window of 13 takes four, not twelve."""

    def maxima(kernel: int, stride: int) -> int:
        axis, steps = axis_of(kernel, stride, 100), np.zeros((kernel + 32, 4), np.int64)
        return int(steps[: maxima_of(axis, 100, steps), 3].sum()) // 100

    assert [maxima(3, 2), maxima(2, 2), maxima(3, 1), maxima(3, 3)] == [2, 1, 2, 2]
    assert maxima(13, 1) == 4


def test_the_bound_counts_pixels_and_maxima() -> None:
    """The bound of ResNet's pool is the sum of its operations.

    There are 112² pixels, each reset and multiplied. There are two maxima per pair of output row
    and pixel column, and two per output, with two cycles each. All this runs for four blocks.
    """
    pool = parse_workload("max_pool:n=1,c=64,h=112,w=112,k=3,s=2,p=1")
    assert bounds(pool, PYNQ) == {
        "compute": 4 * (2 * 112 * 112 + 2 * (2 * 56 * 112 + 2 * 56 * 56)),
        "read": (4 * 112 * 112 * 16 + 256) // 8, "write": 4 * 56 * 56 * 16 // 8,
    }  # fmt: skip
    whole = parse_workload("max_pool:n=1,c=16,h=7,w=7,k=7,s=1")
    assert bounds(whole, PYNQ)["compute"] == 2 * 49 + 2 * (7 * 7 - 1)
    assert VtaTarget(PYNQ).roofline(pool).cycles == (112 * 112 + 56 * 56) * 64 // 8


@pytest.mark.parametrize(
    "text",
    [
        "max_pool:n=1,c=64,h=112,w=112,k=3,s=2,p=1",
        "max_pool:n=1,c=32,h=4,w=4,k=2,s=2",
        "max_pool:n=1,c=192,h=35,w=35,k=3,s=1,p=1",
        "max_pool:n=1,c=512,h=7,w=7,k=7,s=1",
    ],
)
def test_estimates_rank_schedules(text: str) -> None:
    target, pool = VtaTarget(PYNQ), parse_workload(text)
    space = target.space(pool)
    flat = np.random.default_rng(0).choice(space.size, min(space.size, 1000), replace=False)
    lowered = target.lower(pool, space.unravel(flat))
    measured = target.measure(lowered)
    estimated = target.estimate(pool, lowered.configs[measured.valid]).of_meaning("latency")[:, 0]
    cycles = measured.cycles[measured.valid]
    assert spearmanr(estimated, cycles).statistic > 0.9
    assert 0.7 < np.median(estimated / cycles) < 1.3
    best = VtaTarget(PYNQ).bound(pool).cycles
    if best > 10_000:  # smaller pools mostly wait for memory
        assert cycles.min() < 1.15 * best


def test_the_baseline_schedule_has_the_smallest_tiles() -> None:
    target = VtaTarget(PYNQ)
    pool = parse_workload("max_pool:n=1,c=64,h=28,w=28,k=3,s=2,p=1")
    baseline, rule = target.baseline(pool), target.fallback(pool)
    assert baseline.space.name == "template"
    assert baseline.source == rule.source == "fallback"
    assert baseline.space.describe(baseline.config) == {
        "tile_h": 1, "tile_w": 4, "tile_c": 1, "inp_slots": 1, "acc_slots": 1, "head": 1, "tail": 1
    }  # fmt: skip
    assert baseline.latency == rule.latency
    assert (VtaTarget(PYNQ, "template").verify(baseline.lowered) == 0).all()


def test_a_pool_is_tuned_like_any_layer(tmp_path: Path) -> None:
    text = "max_pool:n=1,c=32,h=28,w=28,k=3,s=2,p=1"
    summary = tune_bare(workload=text, trials=16, batch=8, out=str(tmp_path / "out"))
    (row,) = summary["workloads"]
    assert (row["operator"], row["macs"], row["workload"]) == ("max_pool", 0, text)
    assert row["bound_cycles"] <= row["tuned_cycles"] < row["rule_cycles"]
    (schedule,) = json.loads((tmp_path / "out" / "schedules.json").read_text())["schedules"]
    assert (schedule["epilogue"], schedule["space"]) == ("", "extended")
    target, pool = VtaTarget(PYNQ, schedule["space"]), parse_workload(text)
    again = target.lower(pool, np.array([schedule["config"]], np.int32))
    assert target.measure(again).cycles.tolist() == [row["tuned_cycles"]]
    assert target.space(pool).describe(schedule["config"]) == schedule["knobs"]


def test_a_pool_s_title_names_no_groups() -> None:
    pool = parse_workload("max_pool:n=2,c=64,h=112,w=112,k=3,s=2,p=1")
    assert shape(pool) == "max 3×3/2 64 @112 n=2"


def test_a_layer_s_identity_is_its_only_weight() -> None:
    lowering = Lowering.for_workload(
        parse_workload("max_pool:n=1,c=32,h=8,w=8,k=2,s=2"), PYNQ, "extended"
    )
    _, states = lowering.counts(accepted(lowering, 0))
    assert set(states["wgt_bytes"]) == {256}


def test_what_has_no_lowering_is_refused_with_the_reason() -> None:
    text = "max_pool:n=1,c=32,h=8,w=8,k=2,s=2"
    with pytest.raises(WorkloadError, match="with dilation"):
        Lowering.for_workload(parse_workload(text + ",d=2"), PYNQ, "extended")
    with pytest.raises(WorkloadError, match="can only use constants, not 'residual'"):
        Lowering.for_workload(parse_workload(text, "residual 0"), PYNQ, "extended")
    with pytest.raises(WorkloadError, match="unchecked space only supports convolutions"):
        Lowering.for_workload(parse_workload(text), PYNQ, "unchecked")
    oblong = VtaSpec.from_mapping({"LOG_BLOCK_IN": 5, "LOG_BLOCK_OUT": 4})
    with pytest.raises(WorkloadError, match="square"):
        Lowering.for_workload(parse_workload(text), oblong, "extended")
