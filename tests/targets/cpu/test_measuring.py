"""Tests measuring on a CPU: a kernel that crashes, hangs or is wrong costs only its own config.

Measured times must be stable under background load.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tilewright.targets.base import Lowered, Ragged
from tilewright.targets.conformance import CHECKS
from tilewright.targets.cpu.assembly import c_compiler
from tilewright.targets.cpu.compile import FUNCTION
from tilewright.targets.cpu.measure import copy_streamed_weights
from tilewright.targets.cpu.sample_tensors import SampleTensors
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.cpu.timing import Timing
from tilewright.targets.workload import parse_workload

WORK = parse_workload("conv2d:n=1,c=16,h=8,w=8,o=16,k=3,p=1,dtype=float32", "bias, relu")
INT8 = parse_workload("conv2d:n=1,c=16,h=8,w=8,o=16,k=3,p=1", "bias, >> 8, min 127, max 0")
QUICK = Timing(cap=0.1, patience=0.4, warm_up=0.01, hang=5.0)
SHARED = CpuTarget(CpuSpec.parse(""), QUICK)
LOAD = len(os.sched_getaffinity(0))
"""Number of background processes that keep every core busy."""
ALONE = (pytest.mark.nightly(seconds=3), pytest.mark.alone)
BODIES = {
    "crash": "*(volatile int *)0 = 1; return 0;",
    "hang": 'for (;;) __asm__ volatile(""); return 0;',
    "nothing": "return 0;",
}


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[str], np.ndarray]:
    """Return a function that compiles a library whose kernel runs the given C code."""

    def made(body: str) -> np.ndarray:
        source, library = tmp_path / "broken.c", tmp_path / "broken.so"
        source.write_text(
            f"int __tvm_ffi_{FUNCTION}(void *self, void *args, int n, void *result) {{ {body} }}"
        )
        subprocess.run([c_compiler(), "-shared", "-fPIC", "-o", library, source], check=True)
        return np.frombuffer(library.read_bytes(), np.uint8)

    return made


MOST = 5
"""Maximum number of configs that one test uses."""


@cache
def _all_compiled() -> Lowered:
    """Return `MOST` configs that compile."""
    space = SHARED.space(WORK)
    flat = np.random.default_rng(0).permutation(space.size)
    tried = 2 * MOST
    while (lowered := SHARED.lower(WORK, space.unravel(flat[:tried]))).ok.sum() < MOST:
        tried *= 2
    return lowered.rows(np.flatnonzero(lowered.ok)[:MOST])


def _compiled(count: int) -> Lowered:
    """Return `count` configs that compile."""
    assert count <= MOST
    return _all_compiled().rows(np.arange(count))


@pytest.mark.slow(seconds=1.5)
@pytest.mark.parametrize(
    "check",
    [  # measured bounds hold only if no other test runs
        pytest.param(name, marks=ALONE if name == "measures_within_bounds" else ())
        for name in CHECKS
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_cpu_keeps_the_contract(check: str, dtype: str) -> None:
    if dtype not in SHARED.traits.dtypes:
        pytest.skip("this processor has no dot products of int8")
    CHECKS[check](lambda: SHARED, WORK if dtype == "float32" else INT8)


@pytest.mark.nightly(seconds=15)  # three processes that load TVM
def test_a_broken_kernel_costs_itself_alone(broken: Callable[[str], np.ndarray]) -> None:
    lowered = _compiled(5)
    libraries = [lowered.programs["library"][row] for row in range(5)]
    libraries[1], libraries[2] = broken(BODIES["crash"]), broken(BODIES["hang"])
    libraries[4] = broken(BODIES["nothing"])
    measured = SHARED.with_run_limit(3.0).measure(
        replace(lowered, programs={"library": Ragged.from_rows(libraries)})
    )
    assert list(measured.status) == ["valid", "run_error", "timeout", "valid", "wrong_result"]
    assert "SIGSEGV" in measured.reason[1]
    assert "3 s" in measured.reason[2]


def test_wrong_numbers_say_how_wrong() -> None:
    lowered = _compiled(1)
    other = replace(WORK, post=WORK.epilogue[:1])  # the same arguments, without the clip
    space = SHARED.space(other)
    wrong = SHARED.lower(other, lowered.configs)
    assert space == SHARED.space(WORK)
    measured = SHARED.measure(replace(wrong, workload=WORK))
    assert list(measured.status) == ["wrong_result"]
    assert "of its largest value" in measured.reason[0]
    counted = SHARED.verify(replace(wrong, workload=WORK))
    assert 0 < counted[0] < WORK.out_channels * 64


def test_repeats_are_what_the_median_is_of() -> None:
    measured = SHARED.measure(_compiled(2))
    assert measured.repeats is not None
    for row in range(2):
        assert measured.seconds[row] == np.median(measured.repeats[row])


@pytest.mark.alone
@pytest.mark.nightly(seconds=8)
def test_a_background_load_hardly_changes_a_time() -> None:
    """A naive timing would grow several times while another process runs on every core."""
    target, lowered = CpuTarget(SHARED.spec), _compiled(1)
    before = float(target.measure(lowered).seconds[0])
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOAD)]
    try:
        during = float(target.measure(lowered).seconds[0])
    finally:
        for process in busy:
            process.kill()
            process.wait()
    after = float(target.measure(lowered).seconds[0])
    assert during < 1.6 * max(before, after)
    assert during > min(before, after) / 1.6


def test_large_weights_come_from_memory_and_results_of_kernels_do_not() -> None:
    """Copies of large weights are used in turn. A product of two activations has no weights."""
    for text, size in (
        ("dense:n=1,c=512,o=256,dtype=float32", 512 * 256 * 4),
        ("dense:n=1,c=64,o=64,dtype=float32", 0),
        ("batch_matmul:n=1,h=512,c=512,o=256,dtype=float32", 0),
    ):
        work = parse_workload(text, "")
        space = SHARED.space(work)
        values = space.describe([0] * len(space.knobs))
        tensors = SampleTensors(work, SHARED.spec, space)
        arguments = tensors.arguments(values)
        turns = copy_streamed_weights(tensors, arguments, 1 << 22)
        assert len(turns) == 1 + ((1 << 22) // size if size else 0)
        places = {np.from_dlpack(turn[1]).ctypes.data for turn in turns}
        assert len(places) == len(turns)
        assert all(turn[0] is arguments[0] and turn[-1] is arguments[-1] for turn in turns)
