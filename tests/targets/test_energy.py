"""Compares the energy model with hand-calculated sums, and tests user-defined constants."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tilewright.core.errors import SpecError
from tilewright.targets import make_target
from tilewright.targets.capabilities import (
    HasEnergy,
    capability,
    picojoules_of,
)
from tilewright.targets.vta.board.artifact_builder import counters_of
from tilewright.targets.vta.energy import VARIABLE, energy_of
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import INSNS, VtaTarget
from tilewright.targets.workload import parse_workload

LAYER = parse_workload("conv2d:n=1,c=16,h=8,w=8,o=32,k=1,s=1,p=0")
COUNTERS = {
    "instructions": 10, "inp_load_bytes": 1000, "wgt_load_bytes": 2000, "acc_load_bytes": 0,
    "uop_load_bytes": 40, "out_store_bytes": 500, "gemm_iterations": 100, "alu_iterations": 50,
}  # fmt: skip
"""Counters of a program on the default machine: 16×16 blocks, 32 KiB of inputs, 256 KiB of weights,
128 KiB of accumulators, 32 KiB of outputs, and 8 KiB of micro-ops."""


def energy(counters: dict[str, int], spec: VtaSpec) -> dict[str, float]:
    energy = energy_of(spec, {name: np.array([value]) for name, value in counters.items()})
    return {name: float(values[0]) for name, values in energy.items()}


def test_energy_is_the_sum_by_hand() -> None:
    result = energy(COUNTERS, VtaSpec.from_mapping({}))
    assert result["dram"] == pytest.approx((1000 + 2000 + 40 + 500 + 160) * 162.5)
    assert result["inp"] == pytest.approx((1000 + 100 * 16) * 1.25 * 2)  # 32 KiB: √4
    assert result["wgt"] == pytest.approx((2000 + 100 * 256) * 1.25 * 32**0.5)
    assert result["acc"] == pytest.approx(2 * 150 * 64 * 1.25 * 4)
    assert result["out"] == pytest.approx((500 + 150 * 16) * 1.25 * 2)
    assert result["uop"] == pytest.approx((40 + 150 * 4) * 1.25)
    assert result["compute"] == pytest.approx(100 * 256 * 0.3 + 50 * 16 * 0.1)


def test_a_larger_scratchpad_costs_more_a_byte() -> None:
    small, large = (
        energy(COUNTERS, VtaSpec.from_mapping({"LOG_INP_BUFF_SIZE": size})) for size in (13, 15)
    )
    assert large["inp"] == pytest.approx(2 * small["inp"])
    assert large["wgt"] == small["wgt"]


def test_programs_have_an_energy_and_failures_none() -> None:
    target = make_target("vta-pynq")
    space = target.space(LAYER)
    lowered = target.lower(LAYER, space.unravel(np.arange(0, space.size, 97)))
    picojoules = picojoules_of(target, target.measure(lowered))
    assert picojoules is not None
    assert np.isnan(picojoules[~lowered.ok]).all()
    macs = LAYER.macs * 0.3
    # At least its MACs, and its weights and inputs from DRAM once.
    assert (picojoules[lowered.ok] > macs + (16 * 32 + 16 * 64) * 162.5).all()


@pytest.mark.parametrize(
    ("text", "epilogue"),
    [
        ("conv2d:n=1,c=16,h=8,w=8,o=32,k=1,s=1,p=0", None),
        ("conv2d:n=1,c=64,h=28,w=28,o=64,k=1,s=2,p=0", None),
        ("conv2d:n=1,c=32,h=14,w=14,o=32,k=3,s=1,p=1,g=2", None),
        ("conv2d:n=1,c=48,h=13,w=9,o=80,k=3,s=2,p=1", ">> 7, bias, add, relu, min 100"),
        ("dense:n=1,c=128,o=64", ">> 7, bias, relu, min 100"),
        ("max_pool:n=1,c=32,h=14,w=14,k=3,s=2,p=1", None),
    ],
)
def test_an_estimate_orders_schedules_by_energy_and_none_is_below_the_least(
    text: str, epilogue: str | None
) -> None:
    target, workload = make_target("vta-pynq"), parse_workload(text, epilogue)
    knows = capability(target, HasEnergy)
    assert knows is not None
    space = target.space(workload)
    flat = np.random.default_rng(0).choice(space.size, min(80, space.size), replace=False)
    configs = space.unravel(flat)
    picojoules = picojoules_of(target, target.measure(target.lower(workload, configs)))
    assert picojoules is not None
    ran = np.isfinite(picojoules)
    least, most = knows.least_energy(workload), picojoules[ran].min()
    assert 0.6 * most < least <= most
    estimated = knows.estimated_energy(workload, configs)
    assert stats.spearmanr(picojoules[ran], estimated[ran]).statistic > 0.9
    assert np.abs(np.log(estimated[ran] / picojoules[ran])).max() < 0.3


def test_a_target_without_counters_has_no_energy() -> None:
    target = make_target("cpu")
    assert capability(target, HasEnergy) is None


def test_constants_are_those_of_the_file_a_person_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = json.loads((Path(energy_of.__code__.co_filename).with_suffix(".json")).read_text())
    mine = tmp_path / "energy.json"
    mine.write_text(json.dumps(stock | {"dram_picojoules_per_byte": 325.0}))
    before = energy(COUNTERS, VtaSpec.from_mapping({}))
    monkeypatch.setenv(VARIABLE, str(mine))
    after = energy(COUNTERS, VtaSpec.from_mapping({}))
    assert after["dram"] == pytest.approx(2 * before["dram"])
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(stock | {"add_picojoules": -1}))
    monkeypatch.setenv(VARIABLE, str(wrong))
    with pytest.raises(SpecError, match="add_picojoules"):
        energy(COUNTERS, VtaSpec.from_mapping({}))


def test_every_constant_has_a_source() -> None:
    stock = json.loads((Path(energy_of.__code__.co_filename).with_suffix(".json")).read_text())
    numbers = {name for name, value in stock.items() if isinstance(value, float | int)}
    assert numbers - set(stock["sources"]) == {"sram_bytes"}


@pytest.mark.parametrize(
    ("text", "epilogue"),
    [
        ("conv2d:n=1,c=16,h=8,w=8,o=32,k=1,s=1,p=0", None),
        ("conv2d:n=1,c=48,h=13,w=9,o=80,k=3,s=2,p=1", ">> 7, bias, add, relu, min 100"),
        ("dense:n=1,c=128,o=64", ">> 7, bias, relu, min 100"),
    ],
)
def test_a_stream_has_the_counts_that_lowering_had(text: str, epilogue: str | None) -> None:
    target = make_target("vta-pynq")
    assert isinstance(target, VtaTarget)
    workload = parse_workload(text, epilogue)
    space = target.space(workload)
    flat = np.random.default_rng(0).choice(space.size, min(60, space.size), replace=False)
    lowered = target.lower(workload, space.unravel(flat))
    measured = target.measure(lowered)
    made = np.flatnonzero(lowered.ok)
    assert len(made) > 3
    for row in made.tolist():
        counters = counters_of(lowered.programs[INSNS][row], target.spec)
        known = {name: values[row] for name, values in measured.counters.items()}
        assert {name: values[0] for name, values in counters.items()} == known
