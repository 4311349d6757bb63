"""Tests residuals that are multiplied by a weight, and constants of the output's shape."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.core.errors import WorkloadError
from tilewright.targets.epilogue import EpilogueOp, weight_and_shift
from tilewright.targets.registry import make_target
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import canonical, parse_workload

DEPTHWISE = "conv2d:n=1,c=32,h=6,w=6,o=32,k=1,s=1,p=0,g=32"
WIDE = "conv2d:n=1,c=32,h=6,w=6,o=32,k=3,s=1,p=1"


@pytest.mark.parametrize("weight", [1, 93, 127, 130, 252, 264, 127 << 4])
@pytest.mark.parametrize("sums", ["bias", "add", "+ 64"])
def test_a_weighted_residual_is_added_in_every_schedule(weight: int, sums: str) -> None:
    target = make_target("vta-pynq")
    assert isinstance(target, VtaTarget)
    for shape in (DEPTHWISE, WIDE):
        workload = parse_workload(shape, f"{sums}, weighted {weight}, >> 7, min 127, max -128")
        space = target.space(workload)
        flat = np.random.default_rng(weight).integers(0, space.size, 40)
        lowered = target.lower(workload, space.unravel(flat))
        rows = np.flatnonzero(lowered.ok)[:4]
        assert len(rows)
        assert not target.verify(lowered.rows(rows)).any()


def test_a_weight_is_seven_bits_times_a_power_of_two() -> None:
    assert weight_and_shift(93) == (93, 0)
    assert weight_and_shift(264) == (66, 2)
    for wrong in ("weighted 0", "weighted -3", "weighted 129", "weighted 257"):
        with pytest.raises(WorkloadError, match="weight"):
            parse_workload(DEPTHWISE, wrong)


@pytest.mark.parametrize(("weight", "power"), [(93, 0), (130, 7), (264, 8)])
def test_one_schedule_serves_all_weights_of_as_many_iterations(weight: int, power: int) -> None:
    workload = parse_workload(DEPTHWISE, f"bias, weighted {weight}, >> 8, min 127, max 0")
    assert EpilogueOp("residual", power) in canonical(workload).epilogue
