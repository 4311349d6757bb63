"""Checks that every CPU config has a latency estimate, and that better schedules get lower ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.targets.base import Space
from tilewright.targets.cpu.estimates import COLUMNS, CpuMachine, estimate
from tilewright.targets.cpu.estimates.convolution import Tilings, nearest_divisors
from tilewright.targets.cpu.estimates.cost_model import moved_bytes
from tilewright.targets.cpu.kernels.conv2d_shapes import CpuTiling, pixels
from tilewright.targets.cpu.kernels.kernel import DoesNotApply
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.kernels.tile_arithmetic import nearest_divisor
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload, parse_workload

LAYERS = (
    "conv2d:n=1,c=64,h=56,w=56,o=64,k=3,p=1",
    "conv2d:n=2,c=3,h=37,w=41,o=24,k=7,s=2,p=3",
    "conv2d:n=1,c=24,h=14,w=14,o=144,k=1",
    "conv2d:n=1,c=12,h=9,w=7,o=7,k=1x3,s=1x2,p=0x1,d=1x2",
    "conv2d:n=1,c=96,h=112,w=112,o=96,k=3,s=2,p=1,g=96",
    "conv2d:n=1,c=128,h=7,w=7,o=128,k=3,p=1,g=32",
    "conv2d:n=1,c=1,h=1,w=1,o=1,k=1",
    "dense:n=1,c=512,o=1000",
    "dense:n=197,c=768,o=192",
    "dense:n=3,c=5,o=7",
    "batch_matmul:n=3,h=197,c=64,o=197",
)
EPILOGUES = ("", "bias, residual 0, relu, min 6")


def machine(threads: int = 2, lanes: int = 16) -> CpuMachine:
    """Return a machine of 3 GHz with a 48 KiB L1 and a 2 MiB L2 cache."""
    spec = CpuSpec(threads, lanes, "", "made up")
    peak = 3e9 * 4 * lanes * threads
    return CpuMachine.from_rates(spec, peak, 150e9 * threads, 45e9 * threads, (48 << 10, 2 << 20))


def workload(text: str, epilogue: str = "bias, relu") -> Workload:
    """Parse a float32 workload."""
    return parse_workload(f"{text},dtype=float32", epilogue)


def space_of(w: Workload, core: CpuMachine) -> Space:
    """Return the space of the kernel that computes the workload."""
    return Space("kernels", kernel_for(w, core.spec).knobs(w, core.spec))


def seconds(w: Workload, core: CpuMachine, values: Mapping[str, int]) -> float:
    """Return the estimated latency of one config in seconds."""
    space = space_of(w, core)
    config = [knob.values.index(values[knob.name]) for knob in space.knobs]
    result = estimate(w, core, space, np.array([config], np.int32))
    return float(result.of_meaning("latency")[0, 0])


@given(
    st.sampled_from(LAYERS),
    st.sampled_from(EPILOGUES),
    st.sampled_from([(1, 16), (2, 16), (2, 8), (4, 4)]),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_every_config_has_an_estimate(
    text: str, epilogue: str, size: tuple[int, int], seed: int
) -> None:
    w, core = workload(text, epilogue), machine(*size)
    space = space_of(w, core)
    configs = space.unravel(np.random.default_rng(seed).integers(0, space.size, 64))
    result = estimate(w, core, space, configs)
    assert np.isfinite(result.matrix).all()
    assert (result.matrix > 0).all()
    assert result.columns == COLUMNS
    # No estimate is below the time of the multiplications with Winograd's largest tile.
    least = 2 * w.macs / (4 * core.clock * 4 * core.spec.lanes * core.spec.threads)
    assert (result.of_meaning("latency")[:, 0] >= least).all()
    one = estimate(w, core, space, configs[5:6])
    np.testing.assert_allclose(one.matrix[0], result.matrix[5])  # independent of the other rows


@pytest.mark.parametrize("text", LAYERS[:4])
def test_tilings_are_those_of_the_kernels(text: str) -> None:
    w, core = workload(text), machine()
    space = space_of(w, core)
    configs = space.unravel(np.random.default_rng(1).integers(0, space.size, 200))
    values = space.values(configs).astype(np.float64)
    knobs = {knob.name: values[:, k] for k, knob in enumerate(space.knobs)}
    rows, columns = pixels(w)
    ones = np.ones(len(configs))
    result = Tilings.for_configs(w, core.spec, knobs, (rows * ones, columns * ones))
    for row, config in enumerate(configs):
        exact = CpuTiling.for_config(w, core.spec, space.describe(config), (rows, columns))
        assert (result.ib, result.ob) == (exact.ib, exact.ob)
        assert result.accumulators[row] == exact.accumulators
        assert result.channels[row] == exact.channels
        for many, one in (
            (result.tile, exact.tile), (result.tiles, exact.tiles), (result.chunk, exact.chunk),
        ):  # fmt: skip
            assert [item[row] for item in many] == list(one)


def test_divisors_are_those_of_the_kernels() -> None:
    rng = np.random.default_rng(2)
    numbers, wanted = rng.integers(1, 130, 300), rng.integers(1, 130, 300)
    divisors = nearest_divisors(numbers.astype(float), wanted.astype(float))
    pairs = zip(numbers, wanted, strict=True)
    assert list(divisors) == [nearest_divisor(int(a), int(b)) for a, b in pairs]


@pytest.mark.parametrize("text", [LAYERS[0], "conv2d:n=1,c=192,h=28,w=28,o=64,k=1"])
def test_two_threads_beat_one(text: str) -> None:
    w, core = workload(text), machine()
    values = {**kernel_for(w, core.spec).baseline_values(w, core.spec), "parallel": 1}
    together, alone = (seconds(w, core, {**values, "parallel": n}) for n in (1, 0))
    assert together < 0.75 * alone


def test_a_launch_is_not_worth_it_for_little() -> None:
    w, core = workload("conv2d:n=1,c=16,h=4,w=4,o=16,k=1"), machine()
    values = kernel_for(w, core.spec).baseline_values(w, core.spec)
    assert seconds(w, core, {**values, "parallel": 0}) < seconds(w, core, {**values, "parallel": 1})


def test_sums_that_fit_the_registers_beat_one_sum_and_too_many() -> None:
    w, core = workload("dense:n=192,c=768,o=768"), machine()
    values = {
        **kernel_for(w, core.spec).baseline_values(w, core.spec),
        "tile_rows": 12, "tile_vectors": 2, "tile_depth": 768, "pack_data": 0,
    }  # fmt: skip
    fits = seconds(w, core, values)
    assert fits < 0.5 * seconds(w, core, {**values, "tile_rows": 1, "tile_vectors": 1})
    assert fits < 0.7 * seconds(w, core, {**values, "tile_rows": 12, "tile_vectors": 4})


def test_numbers_kept_for_several_blocks_of_channels_do_not_fit_the_registers() -> None:
    w, core = workload("conv2d:n=1,c=64,h=28,w=28,o=64,k=3,p=1"), machine(1)
    values = {**kernel_for(w, core.spec).baseline_values(w, core.spec), "algorithm": 0}
    values |= {"tile_ow": 14, "tile_oh": 1, "tile_oc": 2, "unroll_kernel": 0}
    assert seconds(w, core, {**values, "pixels_first": 1}) < seconds(
        w, core, {**values, "pixels_first": 0}
    )


def test_winograd_pays_where_channels_are_many() -> None:
    core = machine(1)
    many, few = (workload(f"conv2d:n=1,c={c},h=56,w=56,o={c},k=3,p=1") for c in (128, 3))

    def best(w: Workload, algorithm: int) -> float:
        space = space_of(w, core)
        configs = space.unravel(np.random.default_rng(3).integers(0, space.size, 4000))
        names = [knob.name for knob in space.knobs]
        configs = configs[space.values(configs)[:, names.index("algorithm")] == algorithm]
        return float(estimate(w, core, space, configs).of_meaning("latency").min())

    assert best(many, 4) < best(many, 0)
    assert best(few, 0) < best(few, 4)


@pytest.mark.parametrize("text", [LAYERS[0], LAYERS[4], LAYERS[8]])
def test_what_is_refused_for_its_code_is_foretold(text: str) -> None:
    w, core = workload(text), machine()
    space = space_of(w, core)
    kernel = kernel_for(w, core.spec)
    configs = space.unravel(np.random.default_rng(4).integers(0, space.size, 4000))
    code = estimate(w, core, space, configs).of_meaning("share")[:, 0]
    refused = np.argsort(-code)[:3]
    assert (code[refused] > 1).all()
    for config in configs[refused]:
        values = space.describe(config)
        with pytest.raises(DoesNotApply):
            kernel.schedule(kernel.define(w, core.spec, values), w, core.spec, values)


def test_moving_counts_what_a_cache_cannot_keep() -> None:
    def bodies(size: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"a": 100.0 * size["x"], "b": 100.0 * size["y"]}

    one = np.ones(1)
    loops = [{"x": 8 * one}, {"y": 4 * one}]
    small, large = (
        moved_bytes(bodies, {"x": one, "y": one}, loops, cache) for cache in (500.0, 5000.0)
    )
    assert small[0] == 8 * 4 * 100 + 4 * 100  # `a` is reloaded for each y, `b` once
    assert large[0] == 0  # everything stays in the cache between calls
