"""Compares convolutions whose results are pooled by the store instruction with numpy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tests.targets.gemmini.test_schedules import ROUNDED, expected, in_memory
from tilewright.core.errors import WorkloadError
from tilewright.targets import gemmini, make_target
from tilewright.targets.gemmini.lowering.memory_layout import constants
from tilewright.targets.workload import Workload, parse_workload

SIGNED = "bias, >> even 8, min 127, max -128"
BASE = 0x80000000
LAYERS = {
    "conv2d:n=1,c=24,h=12,w=12,o=24,k=3,s=1,p=1,mk=2,ms=2": ROUNDED,
    "conv2d:n=1,c=16,h=13,w=11,o=40,k=3,s=1,p=1,mk=2,ms=2": SIGNED,
    "conv2d:n=1,c=3,h=30,w=30,o=32,k=7,s=2,p=3,mk=3,ms=2,mp=1": ROUNDED,
    "conv2d:n=2,c=16,h=21,w=18,o=48,k=1,s=1,p=0,mk=3,ms=1,mp=0x1x1x0": ROUNDED,
    "conv2d:n=1,c=32,h=9,w=14,o=32,k=3,s=1,p=1,g=32,mk=2,ms=3": ROUNDED,
    "conv2d:n=1,c=16,h=9,w=9,o=16,k=1,s=1,p=0,mk=1,ms=2": SIGNED,
}


def largest(w: Workload, results: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the maximum of each window of the results (n, o, h, w). Padding never wins."""
    p = w.pool
    assert p is not None
    around = ((0, 0), (0, 0), (p.pad_top, p.pad_bottom), (p.pad_left, p.pad_right))
    padded = np.pad(results, around, constant_values=-999)
    seen = sliding_window_view(padded, (p.kernel_h, p.kernel_w), axis=(2, 3))
    return seen[:, :, :: p.stride_h, :: p.stride_w].max(axis=(4, 5))


@pytest.mark.parametrize("text", LAYERS)
def test_pooled_sums_equal_pooled_results(text: str) -> None:
    """The random tiles range from a single pixel to the whole output, at the borders and inside."""
    w, rng = parse_workload(text, LAYERS[text]), np.random.default_rng(5)
    target = make_target("gemmini")
    g = target.lowering(w).geometry  # type: ignore[attr-defined]
    tensors = {
        "data": rng.integers(-128, 128, (w.batch, w.in_channels, w.height, w.width)),
        "weight": rng.integers(
            -128, 128, (w.out_channels, w.in_channels // w.groups, w.kernel_h, w.kernel_w)
        ),
        "bias": rng.integers(-(1 << 14), 1 << 14, w.out_channels),
    }
    image = np.zeros(1 << 20, np.uint8)
    parts = {"data": in_memory(tensors["data"])}
    parts |= constants(g, tensors["weight"], tensors["bias"])
    for role, values in parts.items():
        at = g.addresses[role] - BASE
        image[at : at + values.nbytes] = np.ascontiguousarray(values).view(np.uint8).ravel()
    want = largest(w, expected(w, tensors))
    assert want.shape == (w.batch, w.out_channels, w.out_height, w.out_width)
    space = target.space(w)
    lowered = target.lower(w, space.unravel(rng.integers(0, space.size, 24)))
    assert lowered.ok.sum() >= 12
    at = g.addresses["output"] - BASE
    for row in np.flatnonzero(lowered.ok):
        after = gemmini.execute(*lowered.programs["commands"][row].T, image.tobytes(), BASE)
        stored = np.frombuffer(after, np.int8)[at : at + g.pixels * g.output_stride]
        got = stored.reshape(w.batch, w.out_height, w.out_width, -1)[..., : w.out_channels]
        assert np.array_equal(np.moveaxis(got, -1, 1), want), space.describe(lowered.configs[row])


def test_pooled_programs_are_timed_and_no_faster_than_the_bound() -> None:
    target = make_target("gemmini")
    w = parse_workload("conv2d:n=1,c=16,h=12,w=12,o=32,k=3,s=1,p=1,mk=2,ms=2", ROUNDED)
    space = target.space(w)
    drawn = space.unravel(np.random.default_rng(0).integers(0, space.size, 8))
    measured = target.measure(target.lower(w, drawn))
    valid = measured.status == "valid"
    assert valid.sum() >= 4
    assert (measured.cycles[valid] >= target.bound(w).cycles).all()  # type: ignore[attr-defined]


def test_sums_that_a_store_pools_lie_in_one_bank() -> None:
    """On the hardware, a store waits for products only up to the end of its first bank."""
    target = make_target("gemmini")
    w = parse_workload("conv2d:n=1,c=16,h=40,w=40,o=64,k=1,s=1,p=0,mk=2,ms=2", ROUNDED)
    space, bank = target.space(w), 512
    lowered = target.lower(w, space.unravel(np.random.default_rng(1).integers(0, space.size, 24)))
    assert "accumulator" in set(lowered.failures)
    for row in np.flatnonzero(lowered.ok):
        result = 0
        for funct, rs1, rs2 in lowered.programs["commands"][row].tolist():
            if funct == 0 and rs1 & 3 == 2:
                result = (rs1 >> 48 & 255) * (rs1 >> 56 & 255)
            if funct == 3:
                first = rs2 & 1023
                assert first // bank == (first + result - 1) // bank


@pytest.mark.parametrize(
    ("sizes", "epilogue", "said"),
    [
        ("mk=4,ms=2", ROUNDED, "squares of at most 3 pixels"),
        ("mk=2x1,ms=2", ROUNDED, "squares of at most 3 pixels"),
        ("mk=3,ms=2,mp=1", SIGNED, "after a relu"),
    ],
)
def test_a_pool_that_no_store_computes_is_refused(sizes: str, epilogue: str, said: str) -> None:
    w = parse_workload(f"conv2d:n=1,c=16,h=12,w=12,o=16,k=1,s=1,p=0,{sizes}", epilogue)
    with pytest.raises(WorkloadError, match=said):
        make_target("gemmini").space(w)
