"""Tests the baseline schedules of the stock stack, with its tuning log and without one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.layers import RESNET18
from tilewright.core.errors import WorkloadError
from tilewright.targets.registry import make_target
from tilewright.targets.vta.baseline import fallback_of
from tilewright.targets.vta.lowering.batch import SpaceName
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import parse_workload

REFERENCE = {
    row["layer"]: row
    for row in json.loads(
        (Path(__file__).parents[1] / "data" / "tvm-vta" / "reference.json").read_text()
    )
}


def _target(name: str) -> VtaTarget:
    target = make_target(name)
    assert isinstance(target, VtaTarget)
    return target


@pytest.mark.parametrize(
    ("preset", "log", "none"),
    [("vta-pynq", 7_251_185, 283_175_289), ("vta-de10", 7_283_166, 280_047_512)],
)
def test_the_stock_stack_compiles_resnet18_with_its_log_and_without(
    preset: str, log: int, none: int
) -> None:
    target, short = _target(preset), preset.removeprefix("vta-")
    result = {"tophub": 0, "fallback": 0}
    for name, (workload, count) in RESNET18.items():
        for source, baseline in (
            ("tophub", target.baseline(workload)),
            ("fallback", target.fallback(workload)),
        ):
            assert baseline.source == source
            stock = REFERENCE[name][source]
            knobs = baseline.space.describe(baseline.config)
            assert knobs == {knob: stock[knob] for knob in knobs}
            assert baseline.latency.cycles == stock[f"cycles_{short}"]
            result[source] += count * baseline.latency.cycles
    assert result == {"tophub": log, "fallback": none}


def test_where_the_first_entries_do_not_lower_the_smallest_tiles_that_do_are_taken() -> None:
    """The padding is so wide that a tile of one row would read nothing but padding."""
    spec = _target("vta-pynq").spec
    workload = parse_workload("conv2d:n=1,c=16,h=8,w=8,o=16,k=1,s=1,p=2")
    fallback = fallback_of(workload, spec)
    space = fallback.lowering.space
    every = space.values(space.unravel(np.arange(space.size)))
    codes, _ = fallback.lowering.counts(every)
    assert codes[0] != 0
    assert fallback.values.prod() == every[codes == 0].prod(axis=1).min()


def test_a_layer_that_no_schedule_fits_has_none() -> None:
    workload = parse_workload("conv2d:n=1,c=16,h=64,w=64,o=16,k=64,s=1,p=0")
    with pytest.raises(WorkloadError, match="even the smallest tile does not fit"):
        _target("vta-pynq").fallback(workload)


@pytest.mark.slow(seconds=0.8)
@pytest.mark.parametrize("space", ["extended", "template", "unchecked"])
def test_schedules_are_measured_and_verified_in_their_own_space_whichever_target_is_asked(
    space: SpaceName,
) -> None:
    """The extended space stores the biases of this layer in another form than the template."""
    spec = _target("vta-pynq").spec
    workload = parse_workload(
        "conv2d:n=1,c=32,h=4,w=4,o=32,k=3,s=1,p=1", "bias, >> 8, min 127, max 0"
    )
    asked = VtaTarget(spec, space)
    baseline = asked.baseline(workload)
    assert (baseline.space.name, baseline.lowered.space) == ("template", "template")
    assert asked.verify(baseline.lowered).tolist() == [0]
    assert asked.measure(baseline.lowered).cycles.tolist() == baseline.measured.cycles.tolist()
    ours = VtaTarget(spec)
    configs = ours.space(workload).unravel(np.arange(0, ours.space(workload).size, 997))
    lowered = ours.lower(workload, configs)
    assert lowered.ok.any()
    assert (asked.verify(lowered) == np.where(lowered.ok, 0, -1)).all()
    assert (asked.measure(lowered).cycles == ours.measure(lowered).cycles).all()
