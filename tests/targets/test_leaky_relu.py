"""Tests leaky ReLU, a post-operation that is composed of several ALU operations."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.schedule_spaces.vta_programs import program_with_data
from tests.targets.drawn_layers import LEAKY_EPILOGUES, PRESETS, PYNQ, accepted
from tilewright.core.errors import WorkloadError
from tilewright.targets.epilogue import EpilogueOp, parse_epilogue
from tilewright.targets.vta.functional import simulate
from tilewright.targets.vta.lowering.batch import Lowering, SpaceName
from tilewright.targets.vta.lowering.tensor_packing import random_tensors, unpack_output
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload, canonical, parse_workload

CONV = "conv2d:n=1,c=64,h=14,w=14,o=64,k=3,s=1,p=1"


def by_division(
    data: NDArray[np.int64], weight: NDArray[np.int64], slope: int
) -> NDArray[np.int64]:
    """Compute a leaky ReLU of a 3×3 convolution without the package's own reference.

    The convolution is padded by one pixel. A sum x stays x, or becomes x / `slope` if it is
    negative. The result is x / 256, rounded half up and clipped to eight bits.
    """
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
    lowering = Lowering.for_workload(workload, PYNQ, "extended")
    tensors = random_tensors(workload, PYNQ.machine, seed)
    tensors["weight"] >>= 2  # so that results are not all clipped on one side
    expected = by_division(tensors["data"], tensors["weight"], 1 << shift)
    assert (expected < 0).any()
    assert ((expected > 0) & (expected < 127)).any()
    for values in accepted(lowering, seed)[:4]:
        program = program_with_data(lowering, values, tensors)
        assert program is not None
        after = simulate(program, PYNQ).dram
        got = unpack_output(workload, PYNQ.machine, lowering.geometry, after)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("spec", PRESETS, ids=lambda spec: spec.name)
def test_estimates_find_good_schedules(spec: VtaSpec) -> None:
    target, workload = VtaTarget(spec), parse_workload(CONV, LEAKY_EPILOGUES[0])
    space = target.space(workload)
    configs = space.unravel(np.random.default_rng(1).integers(0, space.size, 1024))
    _, measured = target.lower_and_measure(workload, configs)
    valid = measured.cycles > 0
    cycles = measured.cycles[valid]
    estimated = target.estimate(workload, configs[valid]).matrix[:, 0]
    assert cycles[estimated.argmin()] < 1.2 * cycles.min()
    assert spearmanr(estimated, cycles).statistic > 0.8


def test_its_baseline_is_a_schedule_of_ours() -> None:
    target, workload = VtaTarget(PYNQ), parse_workload(CONV, LEAKY_EPILOGUES[0])
    baseline = target.baseline(workload)
    assert baseline.source == "estimate"
    assert baseline.measured.cycles[0] >= (target.bound(workload).cycles or 0)


def test_texts_and_json_round_trip() -> None:
    workload = parse_workload(CONV, LEAKY_EPILOGUES[0])
    assert workload.epilogue[1] == EpilogueOp("leaky", 3)
    assert workload.epilogue_text == LEAKY_EPILOGUES[0]
    assert Workload.from_json(workload.to_json()) == workload
    other = parse_workload(CONV, LEAKY_EPILOGUES[0].replace("leaky 3", "leaky 5"))
    assert other.id != workload.id
    assert canonical(other) == canonical(workload)


@pytest.mark.parametrize("text", ["leaky 0", "leaky 16", "leaky -1", "leaky"])
def test_slopes_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="leaky"):
        parse_epilogue(text)


@pytest.mark.parametrize(
    ("text", "epilogue", "space", "says"),
    [
        (CONV, LEAKY_EPILOGUES[0], "template", "only the extended space supports 'leaky 3'"),
        (CONV, "leaky 3, >> 8", "unchecked", "only the extended space supports 'leaky 3'"),
        (CONV + ",mk=2,ms=2", LEAKY_EPILOGUES[0], "extended", "cannot be applied to pooled sums"),
        ("max_pool:n=1,c=16,h=8,w=8,k=2,s=2", "leaky 3", "extended", "can only use constants"),
        (
            CONV + ",xc=16,xi=14",
            "leaky 3, >> 8 | bias, >> 8",
            "extended",
            "only supports the basic steps",
        ),
    ],
)
def test_what_has_no_lowering_is_refused(
    text: str, epilogue: str, space: SpaceName, says: str
) -> None:
    with pytest.raises(WorkloadError, match=says):
        Lowering.for_workload(parse_workload(text, epilogue), PYNQ, space)
