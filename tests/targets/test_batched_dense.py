"""Checks that a batched dense is as fast as the convolution that it equals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from tilewright.targets.vta.lowering.geometry import geometry_of
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import parse_workload

LOADS_BOUND = VtaSpec.from_mapping({"name": "loads bound", "LOG_BLOCK": 5})
SPECS = {spec.name: spec for spec in (VtaSpec.load("vta-pynq"), LOADS_BOUND)}


def _best(target: VtaTarget, text: str) -> int:
    _, measured = target.enumerate(parse_workload(text))
    return int(measured.cycles[measured.valid].min())


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    ("dense", "convolutions"),
    [
        ("n=16,c=128,o=64", ["h=4,w=4,c=128,o=64", "h=16,w=1,c=128,o=64", "h=2,w=8,c=128,o=64"]),
        ("n=9,c=33,o=150", ["h=3,w=3,c=33,o=150"]),
    ],
)
def test_a_batched_dense_is_as_fast_as_the_convolution_it_equals(
    spec: str, dense: str, convolutions: list[str]
) -> None:
    target = VtaTarget(SPECS[spec])
    best = _best(target, f"dense:{dense}")
    for image in convolutions:
        assert best <= _best(target, f"conv2d:n=1,{image},k=1")
    assert best >= target.roofline(parse_workload(f"dense:{dense}")).cycles


def test_its_knob_is_rows_of_the_batch() -> None:
    names = [knob.name for knob in VtaTarget(SPECS["vta-pynq"]).space(parse_workload(
        "dense:n=6,c=64,o=64")).knobs]  # fmt: skip
    assert names[:2] == ["tile_b", "tile_w"]


@pytest.mark.slow(seconds=4)
def test_its_estimates_rank_schedules() -> None:
    target, workload = VtaTarget(SPECS["vta-pynq"]), parse_workload("dense:n=12,c=256,o=128")
    lowered, measured = target.enumerate(workload)
    estimated = target.estimate(workload, lowered.configs[measured.valid]).matrix[:, 0]
    assert spearmanr(estimated, measured.cycles[measured.valid]).statistic > 0.9


@pytest.mark.parametrize("rows", [1, 5])
def test_only_the_extended_space_sees_a_column(rows: int) -> None:
    machine = VtaSpec.from_mapping({"LOG_BATCH": 1}).machine
    workload = parse_workload(f"dense:n={rows},c=64,o=64")
    plain, column = geometry_of(workload, machine), geometry_of(workload, machine, column=True)
    assert (plain.batches, plain.h) == (-(-rows // 2), 1)
    assert (column.batches, column.h) == (1, -(-rows // 2))
    assert np.array_equal(plain[-5:], column[-5:])  # as many bytes of each tensor
