"""Checks that lowering gives the same counts whether it writes the program or only counts it."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.targets import make_target
from tilewright.targets.vta.lowering.batch import SpaceName
from tilewright.targets.workload import parse_workload

WORKLOAD = parse_workload("conv2d:n=1,c=32,h=14,w=14,o=32,k=3,s=1,p=1")


@pytest.mark.parametrize("space", ["template", "extended", "unchecked"])
def test_counted_and_written_programs_have_the_same_counts(space: SpaceName) -> None:
    lowering = make_target("vta-pynq", space).lowering(WORKLOAD)
    flat = np.random.default_rng(0).integers(0, lowering.space.size, 300)
    values = lowering.space.values(lowering.space.unravel(flat))
    codes, counted = lowering.counts(values)
    assert (codes == 0).sum() > 20
    for row in np.flatnonzero(codes == 0):
        code, instructions, _, written = lowering.program(values[row])
        assert code == 0
        assert len(instructions) == written.instructions
        assert counted[row] == written
