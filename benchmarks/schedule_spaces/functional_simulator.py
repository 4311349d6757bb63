"""Measures how fast the functional simulator runs whole programs, beside the peak of the machine.

    python -m benchmarks.schedule_spaces.functional_simulator [--schedules 12] [--target vta-pynq]

One core. A row is a ResNet-18 layer in the AutoTVM template's space: valid schedules are drawn at
random and the program of each — loads, GEMM, ALU, stores, tokens, with data — is run three times.
Its speed is the layer's multiply-accumulates over the best time. Schedules with tiny tiles are slow
because they move more than they multiply; "default" is what a user has without tuning. "tiles" is
the GEMM kernel alone on data in the first cache, "sgemm" a 1024³ float32 matrix product of numpy's
BLAS on one thread: what this core can do at its best with 8-bit values (as pairs of 16 bits) and
with floats.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

# BLAS reads these once, when numpy is imported.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numba as nb
import numpy as np
from numpy.typing import NDArray

from benchmarks.schedule_spaces.vta_programs import program_with_data
from tilewright.targets.vta.baseline import baseline_of
from tilewright.targets.vta.functional import FUNCTIONAL, allocate, clear, outcome, rules_of, run
from tilewright.targets.vta.functional.execution_order import QUEUES_OF_FLAGS
from tilewright.targets.vta.functional.vector import LANES, TILE, gemm_tile
from tilewright.targets.vta.instruction_format import layout_of
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.lowering.tensor_packing import random_tensors
from tilewright.targets.vta.numba_decorators import as_record
from tilewright.targets.vta.program import Program
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import Workload


def conv(channels: int, size: int, out: int, kernel: int, stride: int = 1) -> Workload:
    """A convolution of a square image by a square kernel, padded to keep its size."""
    pad = kernel // 2
    return Workload(
        "conv2d", 1, channels, size, size, out, kernel, kernel, stride, stride, pad, pad, pad, pad
    )


LAYERS = {
    "56×56 64→64 3×3": conv(64, 56, 64, 3),
    "28×28 128→128 3×3": conv(128, 28, 128, 3),
    "14×14 256→256 3×3": conv(256, 14, 256, 3),
    "7×7 512→512 3×3": conv(512, 7, 512, 3),
    "56×56 64→128 1×1 /2": conv(64, 56, 128, 1, 2),
}


def best_seconds(call: Callable[[], object], repeats: int = 3) -> float:
    """The shortest of some runs; others on the machine only ever add time."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


@nb.njit(nogil=True)
def _tiles(
    acc: NDArray[np.int32], inp: NDArray[np.int16], wgt: NDArray[np.int16], rounds: int
) -> None:
    for _ in range(rounds):
        gemm_tile(acc, 0, LANES, inp, 0, LANES, wgt, 0, 196)


def peak_of_tiles() -> float:
    """GMAC/s of the vector kernel on 196 rows and one weight block."""
    acc, inp = np.zeros(196 * LANES, np.int32), np.ones(196 * LANES, np.int16)
    wgt, rounds = np.ones(TILE, np.int16), 20_000
    _tiles(acc, inp, wgt, 1)
    return rounds * 196 * TILE / best_seconds(lambda: _tiles(acc, inp, wgt, rounds), 5) / 1e9


def peak_of_sgemm() -> float:
    """GMAC/s of a float32 matrix product."""
    matrix = np.random.default_rng(0).random((1024, 1024), np.float32)
    return float(1024**3 / best_seconds(lambda: matrix @ matrix, 5) / 1e9)


def speed_of(spec: VtaSpec, program: Program, macs: int) -> float:
    """GMAC/s of one program, scratchpads cleared before each run."""
    m = spec.machine
    rules = rules_of(FUNCTIONAL, m)
    pads = allocate(m, rules)
    numbers = as_record(m), as_record(layout_of(spec)), as_record(rules)
    insns, times = np.ascontiguousarray(program.insns), []
    for _ in range(3):
        clear(pads)
        image, result = program.dram.copy(), outcome()
        begin = time.perf_counter()
        code = run(insns, image, program.base, *numbers, pads, QUEUES_OF_FLAGS, result)
        times.append(time.perf_counter() - begin)
        assert code == 0
    return macs / min(times) / 1e9


def speeds(spec: VtaSpec, workload: Workload, schedules: int) -> list[float]:
    """GMAC/s of valid schedules drawn at random, slowest first."""
    lowering = Lowering.of(workload, spec, "template")
    space = lowering.space
    values = space.values(space.unravel(np.arange(space.size)))
    valid = np.flatnonzero(lowering.counts(values)[0] == 0)
    drawn = np.random.default_rng(0).choice(valid, min(schedules, len(valid)), replace=False)
    tensors = random_tensors(workload, spec.machine, 0)
    programs = [program_with_data(lowering, values[row], tensors) for row in drawn]
    return sorted(speed_of(spec, program, workload.macs) for program in programs if program)


def speed_of_baseline(spec: VtaSpec, workload: Workload) -> float:
    """GMAC/s of the schedule a user has without tuning (TopHub's, where it lists one)."""
    found = baseline_of(workload, spec)
    tensors = random_tensors(workload, spec.machine, 0)
    program = program_with_data(found.lowering, np.asarray(found.values), tensors)
    assert program is not None
    return speed_of(spec, program, workload.macs)


def main() -> None:
    """Print the peaks of the machine, then a row a layer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--schedules", type=int, default=12, help="schedules a layer")
    parser.add_argument("--target", default="vta-pynq")
    options = parser.parse_args()
    spec = VtaSpec.load(options.target)
    peak = peak_of_tiles()
    heads = " ".join(f"{head:>8}" for head in ("slowest", "median", "fastest", "default"))
    print(f"{'GMAC/s, one core':22} {heads} of peak")
    for name, workload in LAYERS.items():
        got = speeds(spec, workload, options.schedules)
        usual = speed_of_baseline(spec, workload)
        print(
            f"{name:22} {got[0]:8.1f} {float(np.median(got)):8.1f} {got[-1]:8.1f} {usual:8.1f} "
            f"{usual / peak:7.0%}"
        )
    print(f"{'peak: tiles':22} {'':8} {'':8} {peak:8.1f}")
    print(f"{'peak: sgemm':22} {'':8} {'':8} {peak_of_sgemm():8.1f}")


if __name__ == "__main__":
    main()
