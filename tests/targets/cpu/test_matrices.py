"""Compares compiled matrix products with the reference, for random schedules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import examples
from tests.targets.cpu.compiled import TOLERANCE, called, error_of
from tilewright.targets.cpu.compile import Compiler, scheduled
from tilewright.targets.cpu.kernels.kernel import DoesNotApply
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.sample_tensors import SampleTensors, reference
from tilewright.targets.cpu.spec import CpuSpec, this_machine
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.epilogue import parse_epilogue
from tilewright.targets.workload import Workload, parse_workload

TARGET = CpuTarget(this_machine())
EPILOGUES = ("", "bias", "residual 0, relu", "bias, residual 0, relu, min 2")
LAYERS = (
    "dense:n=1,c=512,o=1000",
    "dense:n=1,c=1280,o=1000",
    "dense:n=197,c=192,o=576",
    "dense:n=197,c=768,o=192",
    "dense:n=128,c=512,o=128",
    "batch_matmul:n=3,h=197,c=64,o=197",
    "batch_matmul:n=3,h=197,c=197,o=64",
)


@st.composite
def products(draw: st.DrawFn) -> Workload:
    """Draw products with sizes without common divisors, below and above one vector."""
    rows = draw(st.sampled_from([1, 1, 2, 5, 13, 29]))
    depth = draw(st.sampled_from([1, 3, 37, 64, 96]))
    columns = draw(st.sampled_from([1, 7, 16, 20, 37, 100]))
    if draw(st.booleans()):
        text = f"dense:n={rows},c={depth},o={columns}"
    else:
        text = f"batch_matmul:n={draw(st.integers(1, 3))},h={rows},c={depth},o={columns}"
    return parse_workload(text + ",dtype=float32", draw(st.sampled_from(EPILOGUES)))


@pytest.mark.slow(seconds=2)
@given(products(), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(30), derandomize=True)
def test_every_schedule_computes_the_product(workload: Workload, seed: int) -> None:
    space = TARGET.space(workload)
    tensors = SampleTensors(workload, TARGET.spec, space)
    flat = np.random.default_rng(seed).integers(0, space.size, 1)
    values = space.describe(space.unravel(flat)[0])
    try:
        error = error_of(tensors, values)
    except DoesNotApply:
        return
    assert error < TOLERANCE


@pytest.mark.parametrize("text", ["dense:n=3,c=24,o=37", "batch_matmul:n=2,h=5,c=24,o=37"])
def test_what_a_kernel_defines_is_what_its_schedules_compute(text: str) -> None:
    workload = parse_workload(text + ",dtype=float32", "bias, residual 0, relu")
    tensors = SampleTensors(workload, TARGET.spec, TARGET.space(workload))
    kernel = kernel_for(workload, TARGET.spec)
    values = kernel.baseline_values(workload, TARGET.spec)
    assert called(kernel.define(workload, TARGET.spec, values), tensors, values) < TOLERANCE
    assert error_of(tensors, values) < TOLERANCE


@pytest.mark.parametrize("text", LAYERS)
def test_baseline_schedules_and_most_others_apply(text: str) -> None:
    workload = parse_workload(text + ",dtype=float32", "bias")
    space = TARGET.space(workload)
    baseline = kernel_for(workload, TARGET.spec).baseline_values(workload, TARGET.spec)
    assert all(baseline[knob.name] in knob.values for knob in space.knobs)
    scheduled(workload, TARGET.spec, baseline)
    assert space.size > (100_000 if workload.height * workload.batch > 64 else 5_000)
    refused = 0
    for config in space.unravel(np.random.default_rng(0).integers(0, space.size, 40)):
        try:
            scheduled(workload, TARGET.spec, space.describe(config))
        except DoesNotApply:
            refused += 1
    assert refused < 16


def test_too_much_unrolled_code_is_refused_by_name() -> None:
    workload = parse_workload("dense:n=4,c=512,o=1000,dtype=float32", "")
    values = dict(kernel_for(workload, TARGET.spec).baseline_values(workload, TARGET.spec))
    values |= {"tile_rows": 4, "tile_vectors": 8, "chains": 8}
    with pytest.raises(DoesNotApply, match="register tile of 256 vectors"):
        scheduled(workload, TARGET.spec, values)


def test_the_reference_adds_a_bias_by_column_and_a_residual_by_number() -> None:
    workload = parse_workload("dense:n=2,c=1,o=2,dtype=float32", "bias, residual 0, relu")
    data, weights = np.array([[1], [2]], np.float32), np.array([[3], [-5]], np.float32)
    bias, residual = np.array([10, 1], np.float32), np.array([[0, 0], [0, 20]], np.float32)
    result = reference(workload, data, weights, bias, residual)
    assert result.tolist() == [[13, 0], [16, 11]]
    plain = replace(workload, post=parse_epilogue(""))
    assert reference(plain, data, weights, bias, residual).tolist() == [[3, -5], [6, -10]]


def test_a_share_of_one_tile_compiles_with_partial_sums() -> None:
    """TVM extracts no features from a loop with one iteration that does not begin at 0."""
    lanes = TARGET.spec.lanes
    workload = parse_workload(f"dense:n=1,c=128,o={2 * lanes},dtype=float32", "bias")
    baseline = kernel_for(workload, TARGET.spec).baseline_values(workload, TARGET.spec)
    values = {**baseline, "tile_vectors": 1, "column_shares": 2, "tile_depth": 32}
    compiled = Compiler().compile(workload, TARGET.spec, values)
    assert not compiled.failure, compiled.reason


@pytest.mark.parametrize(
    ("rows", "columns", "packs"), [(1024, 1024, 1), (512, 512, 1), (128, 128, 0), (6, 512, 0)]
)
def test_the_rule_packs_columns_that_lie_far_apart(rows: int, columns: int, packs: int) -> None:
    """With 1,024 columns, all rows of a tile map to the same set of the L1 cache."""
    w = parse_workload(f"batch_matmul:n=2,h={rows},c=64,o={columns},dtype=float32")
    spec = CpuSpec.parse("threads=1,lanes=8")
    assert kernel_for(w, spec).baseline_values(w, spec)["pack_weights"] == packs


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("dense:n=256,c=768,o=768", (1, 2)),  # 2 MB of weights, which each thread would read
        ("dense:n=197,c=192,o=768", (2, 1)),  # few weights
        ("dense:n=1024,c=768,o=768", (2, 1)),  # more data than weights
        ("dense:n=1,c=768,o=768", (1, 2)),
    ],
)
def test_the_rule_shares_many_weights_between_threads(text: str, shares: tuple[int, int]) -> None:
    workload = parse_workload(f"{text},dtype=float32")
    spec = replace(this_machine(), threads=2, lanes=16)
    values = kernel_for(workload, spec).baseline_values(workload, spec)
    assert (values["row_shares"], values["column_shares"]) == shares
