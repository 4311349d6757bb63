"""Tests the breakdown of a program's cycles into compute and waiting."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.targets import make_target
from tilewright.targets.capabilities import (
    PARTS,
    Bounds,
    HasDesigns,
    capability,
)
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.vta.workload_bound import bounds
from tilewright.targets.workload import Workload, parse_workload

CONVOLUTION = parse_workload("conv2d:n=1,c=64,h=14,w=14,o=64,k=3,s=1,p=1")
DENSE = parse_workload("dense:n=1,c=512,o=256")
PROGRAMS = 200
"""Number of random programs that are checked."""


@pytest.mark.parametrize("layer", [CONVOLUTION, DENSE], ids=str)
@pytest.mark.parametrize("name", ["vta-pynq", "vta-de10"])
def test_parts_sum_to_what_the_program_takes(name: str, layer: Workload) -> None:
    target = make_target(name)
    assert isinstance(target, VtaTarget)
    seen = capability(target, HasDesigns)
    assert seen is not None
    space = target.space(layer)
    chosen = np.random.default_rng(5).choice(space.size, PROGRAMS, replace=False)
    lowered = target.lower(layer, space.unravel(chosen))
    measured, parts = target.measure(lowered), seen.breakdown(lowered)
    assert parts is not None
    assert parts.shape == (PROGRAMS, len(PARTS))
    valid = measured.valid
    assert valid.any()
    assert (~valid).any()
    assert (parts[valid] >= 0).all()
    assert (parts[valid].sum(axis=1) == measured.cycles[valid]).all()
    assert (parts[~lowered.ok] == -1).all()
    work = parts[valid, PARTS.index("compute")] + parts[valid, PARTS.index("start-up")]
    assert (work >= 0.9 * bounds(layer, target.spec)["compute"]).all()


def test_a_layer_waits_for_what_its_bound_is_made_of() -> None:
    """A dense layer with one row is bound by reads, and a 3×3 convolution by compute."""
    target = make_target("vta-pynq")
    assert isinstance(target, VtaTarget)
    assert isinstance(target, Bounds)
    for layer, expected in ((DENSE, "reads"), (CONVOLUTION, "compute")):
        space = target.space(layer)
        some = space.unravel(np.random.default_rng(0).choice(space.size, 2000, replace=False))
        _, measured = target.lower_and_measure(layer, some)
        best = int(np.nanargmin(measured.seconds))
        parts = target.breakdown(target.lower(layer, some[best : best + 1]))[0]
        assert PARTS[int(parts.argmax())] == expected
