"""Checks that equivalent configs are lowered and timed only once, with unchanged results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.drawn_layers import SCANT, SPECS, batched_dense, convolutions
from tilewright.core.errors import WorkloadError
from tilewright.targets.vta.lowering.batch import Lowering, SpaceName
from tilewright.targets.vta.lowering.canonical_configs import distinct, set_alike
from tilewright.targets.vta.machine_variants import variants
from tilewright.targets.vta.measure import NO_PROGRAM, time_rows
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import Workload, parse_workload

EVERY_SPEC = [*SPECS, SCANT, *variants(12, 1)]


def drawn(lowering: Lowering, seed: int, configs: int = 48) -> np.ndarray:
    """Draw knob values, shape (configs, knobs). Many share the tile and the loop order."""
    rng, space = np.random.default_rng(seed), lowering.space
    configs_of = space.unravel(rng.integers(0, space.size, configs))
    if len(space.knobs) > 5:
        configs_of[:, :5] = configs_of[rng.integers(0, configs, configs // 16).repeat(16), :5]
    return space.values(configs_of)


def same(found: tuple[np.ndarray, ...], plain: tuple[np.ndarray, ...]) -> None:
    """Check that failure codes, counts of valid programs, and cycles are equal."""
    np.testing.assert_array_equal(found[0], plain[0])
    made = plain[0] == 0
    np.testing.assert_array_equal(found[1][made], plain[1][made])
    np.testing.assert_array_equal(found[2], plain[2])


@settings(max_examples=60)
@given(
    workload=st.one_of(convolutions(), batched_dense()),
    spec=st.sampled_from(EVERY_SPEC),
    kind=st.sampled_from(["extended", "extended", "template"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_codes_counts_and_cycles_are_the_same(
    workload: Workload, spec: VtaSpec, kind: SpaceName, seed: int
) -> None:
    try:
        lowering = Lowering.for_workload(workload, spec, kind)
    except WorkloadError:
        return
    values = drawn(lowering, seed)
    same(time_rows(lowering, values), time_rows(lowering, values, every_row=True))


@settings(max_examples=40)
@given(
    workload=st.one_of(convolutions(), batched_dense()),
    spec=st.sampled_from(EVERY_SPEC),
    seed=st.integers(0, 2**32 - 1),
)
def test_knobs_set_alike_write_the_same_program(
    workload: Workload, spec: VtaSpec, seed: int
) -> None:
    try:
        lowering = Lowering.for_workload(workload, spec, "extended")
    except WorkloadError:
        return
    values = drawn(lowering, seed)
    alike = values.copy()
    set_alike(*lowering.records, lowering.epilogue, alike)
    for row, other in zip(values, alike, strict=True):
        program, plain = lowering.program(other), lowering.program(row)
        assert program[0] == plain[0]
        if plain[0] == 0:
            for part, expected in zip(program[1:], plain[1:], strict=True):
                np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize(
    "text",
    [
        "conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1",
        "conv2d:n=1,c=512,h=7,w=7,o=512,k=3,s=1,p=1",
        "conv2d:n=1,c=32,h=8,w=8,o=32,k=3,s=1,p=1,mk=3,ms=2,mp=1",
        "max_pool:n=1,c=32,h=8,w=8,k=3,s=2,p=1",
        "dense:n=1,c=512,o=1000",
    ],
)
@pytest.mark.parametrize("name", ["vta-pynq", "vta-de10", "vta-pynq-128", "evta-zcu102"])
def test_layers_take_the_same_cycles(text: str, name: str) -> None:
    lowering = Lowering.for_workload(parse_workload(text), VtaSpec.load(name), "extended")
    values = drawn(lowering, 3)
    rows = time_rows(lowering, values)
    same(rows, time_rows(lowering, values, every_row=True))
    assert (rows[2] != NO_PROGRAM).any()


def test_a_third_of_a_space_is_said_twice() -> None:
    workload = parse_workload("conv2d:n=1,c=64,h=14,w=14,o=64,k=3,s=1,p=1")
    lowering = Lowering.for_workload(workload, VtaSpec.load("vta-pynq"), "extended")
    values = lowering.space.values(lowering.space.unravel(np.arange(lowering.space.size)))
    rows, which = lowering.find_distinct(values)
    assert len(rows) < 0.75 * len(values)
    assert len(which) == len(values)
    assert which.max() == len(rows) - 1


def test_rows_are_distinct_if_any_number_is() -> None:
    values = np.array([[1, 2, 3], [1, 2, 4], [1, 2, 3], [0, 2, 3]])
    rows, which = distinct(values)
    np.testing.assert_array_equal(values[rows][which], values)
    assert len(rows) == 3
    assert len(distinct(np.zeros((0, 3), np.int64))[0]) == 0
    far = np.array([[1 << 40, 1 << 40], [1 << 40, 1 << 40]])  # too far apart to be packed
    np.testing.assert_array_equal(far[distinct(far)[0]][distinct(far)[1]], far)
