"""Tests the VTA target against the target contract."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from tests.targets.stock import workload_of
from tilewright.core.errors import WorkloadError
from tilewright.targets import Measurements, make_target
from tilewright.targets.epilogue import DEFAULT_EPILOGUE, parse_epilogue
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload, parse_workload

LAYER = parse_workload("conv2d:n=1,c=64,h=14,w=14,o=64,k=3,s=1,p=1")


def _sample(target: VtaTarget, workload: Workload, count: int, seed: int = 0) -> np.ndarray:
    space = target.space(workload)
    return space.unravel(np.random.default_rng(seed).integers(0, space.size, count))


@pytest.mark.parametrize("space", ["extended", "template", "unchecked"])
def test_equal_arguments_give_equal_results_in_any_batch(space: str) -> None:
    preset = "evta-zcu102" if space == "unchecked" else "vta-pynq"
    target = make_target(preset, space)  # type: ignore[arg-type]
    configs = _sample(target, LAYER, 40)
    together = target.measure(target.lower(LAYER, configs))
    alone = [target.measure(target.lower(LAYER, configs[k : k + 1])) for k in range(len(configs))]
    assert together.cycles.tolist() == [int(one.cycles[0]) for one in alone]
    assert together.status.tolist() == [one.status[0] for one in alone]


def test_configs_and_flat_indices_are_one_to_one() -> None:
    space = make_target("vta-pynq").space(LAYER)
    flat = np.random.default_rng(0).integers(0, space.size, 500)
    assert (space.ravel(space.unravel(flat)) == flat).all()


def test_a_failed_compile_has_a_class_a_reason_and_no_hidden_features() -> None:
    target = make_target("vta-pynq")
    lowered = target.lower(LAYER, _sample(target, LAYER, 300))
    failed = ~lowered.ok
    assert failed.any()
    assert np.isnan(lowered.hidden.matrix[failed]).all()
    assert np.isfinite(lowered.hidden.matrix[~failed]).all()
    assert all(reason.startswith("build: ") for reason in lowered.reasons[failed])


def test_enumerating_is_measuring_everything() -> None:
    target = make_target("vta-pynq", "stock")
    workload = workload_of("C10")
    lowered, measured = target.enumerate(workload)
    which = np.random.default_rng(1).integers(0, len(lowered), 60)
    again = target.measure(target.lower(workload, lowered.configs[which]))
    assert (again.cycles == measured.cycles[which]).all()
    assert (again.status == measured.status[which]).all()


@pytest.mark.parametrize(("preset", "layer"), [("vta-pynq", "C8"), ("large", "C9"), ("huge", "C6")])
def test_no_schedule_beats_the_roofline(preset: str, layer: str) -> None:
    target, workload = make_target(preset), workload_of(layer)
    measured = target.measure(target.lower(workload, _sample(target, workload, 300)))
    assert measured.valid.any()
    assert measured.cycles[measured.valid].min() >= target.roofline(workload).cycles


@pytest.mark.parametrize("space", ["extended", "template"])
def test_estimates_rank_schedules_without_lowering_them(space: str) -> None:
    target, workload = make_target("vta-pynq", space), workload_of("C8")  # type: ignore[arg-type]
    configs = _sample(target, workload, 400)
    measured = target.measure(target.lower(workload, configs))
    estimated = target.estimate(workload, configs).of_meaning("latency")[:, 0]
    assert spearmanr(estimated[measured.valid], measured.cycles[measured.valid])[0] > 0.8


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("dense:n=1,c=2048,o=16", 0.9),  # bound by loads
        ("conv2d:n=1,c=26,h=12,w=10,o=7,k=3,s=2,p=1", 0.8),  # rings that hold all weights
    ],
)
def test_estimates_rank_small_layers(text: str, least: float) -> None:
    target, workload = make_target("vta-pynq"), parse_workload(text)
    assert isinstance(target, VtaTarget)
    lowered, measured = target.enumerate(workload)
    estimates = target.estimate(workload, lowered.configs[measured.valid]).matrix[:, 0]
    assert spearmanr(estimates, measured.cycles[measured.valid]).statistic > least


def test_the_fingerprint_tells_apart_what_measures_differently() -> None:
    prints = {
        make_target("vta-pynq").fingerprint,
        make_target("vta-de10").fingerprint,
        make_target("vta-pynq", "template").fingerprint,
        make_target("vta-pynq", "stock").fingerprint,
    }
    assert len(prints) == 4
    assert make_target("vta-pynq").fingerprint in prints


def test_a_layer_no_schedule_of_the_template_fits_says_so() -> None:
    tiny = VtaSpec.from_mapping({"LOG_INP_BUFF_SIZE": 8, "LOG_WGT_BUFF_SIZE": 12})
    with pytest.raises(WorkloadError, match="even the smallest tile"):
        VtaTarget(tiny).baseline(parse_workload("conv2d:c=16,h=32,w=32,o=16,k=7,p=3"))


@settings(max_examples=100)
@given(
    n=st.integers(1, 4), c=st.integers(1, 64), h=st.integers(7, 64), w=st.integers(7, 64),
    o=st.integers(1, 64), k=st.integers(1, 7), s=st.integers(1, 3), p=st.integers(0, 3),
)  # fmt: skip
def test_a_workload_reads_what_it_writes(
    n: int, c: int, h: int, w: int, o: int, k: int, s: int, p: int
) -> None:
    workload = parse_workload(f"conv2d:n={n},c={c},h={h},w={w},o={o},k={k},s={s},p={p}")
    assert parse_workload(str(workload)) == workload
    assert parse_workload(str(workload)).id == workload.id
    text = ", ".join(map(str, workload.epilogue))
    assert parse_epilogue(text) == DEFAULT_EPILOGUE
    assert json.loads(json.dumps(dataclasses.asdict(workload)))["height"] == h


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("pool:c=3", "must begin with"),
        ("conv2d:c=3,h=4,w=4", "lacks"),
        ("conv2d:c=3,h=4,w=4,o=4,k=9", "larger than the padded image"),
        ("conv2d:c=3,h=4,w=4,o=4,k=x", "cannot read"),
        ("conv2d:c=3,h=4,w=4,o=4,k=3,g=2", "must divide"),
        ("conv2d:c=3,h=4,w=4,o=4,k=3,z=2", "unknown key"),
    ],
)
def test_wrong_workloads_name_the_cause(text: str, cause: str) -> None:
    with pytest.raises(WorkloadError, match=cause):
        parse_workload(text)


def test_earlier_names_of_public_methods_warn_and_work() -> None:
    workload = parse_workload("conv2d:n=1,c=16,h=8,w=8,o=16,k=3,s=1,p=1,mk=2,ms=2")
    with pytest.warns(DeprecationWarning, match=r"call Workload\.find_pattern"):
        assert workload.part(Pool) == workload.find_pattern(Pool)
    with pytest.warns(DeprecationWarning, match=r"call Workload\.remove_pattern"):
        assert workload.without(Pool) == workload.remove_pattern(Pool)
    with pytest.warns(DeprecationWarning, match=r"call Measurements\.unmeasured"):
        assert (Measurements.nothing(3).status == "compile_error").all()
    target = make_target("vta-pynq")
    lowered = target.lower(workload, target.space(workload).unravel(np.arange(2)))
    with pytest.warns(DeprecationWarning, match=r"call Lowered\.followed_by"):
        assert len(lowered.before(lowered)) == 4
