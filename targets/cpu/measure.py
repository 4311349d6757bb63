"""Times compiled kernels in this process; `targets.isolated` puts a watched process around it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targets.base import Lowered, Measurements, Ragged
from targets.cpu.compile import FUNCTION
from targets.cpu.problem import Tensors
from targets.cpu.spec import CpuSpec

REPEATS = 10
TOLERANCE = 1e-4


def load(library: NDArray[np.uint8], path: Path) -> Any:
    """The function of a library's bytes, put into a new file: one that is in use must not change
    under its process."""
    import tvm

    path.write_bytes(library.tobytes())
    return tvm.runtime.load_module(str(path))[FUNCTION]


def measure(lowered: Lowered, spec: CpuSpec, tensors: Tensors) -> Measurements:
    """Every compiled row: checked against the reference, then timed."""
    found = Measurements.nothing(len(lowered))
    found.reason[:] = lowered.reasons
    repeats: list[NDArray[np.float64]] = [np.empty(0)] * len(lowered)
    space = tensors.values_of(lowered.configs)
    with tempfile.TemporaryDirectory() as name:
        for row in np.flatnonzero(lowered.ok):
            arguments = tensors.arguments(space[row])
            function = load(lowered.programs["library"][row], Path(name) / f"{row}.so")
            function(*arguments)
            if tensors.error(arguments[-1].numpy()) > TOLERANCE:
                found.status[row], found.reason[row] = "wrong_result", "run: wrong numbers"
                continue
            taken = []
            for _ in range(REPEATS):
                start = time.perf_counter()
                function(*arguments)
                taken.append(time.perf_counter() - start)
            repeats[row] = np.array(taken)
            found.status[row], found.reason[row] = "valid", ""
            found.seconds[row] = np.median(taken)
    return Measurements(
        found.status, found.reason, found.cycles, found.seconds, {}, Ragged.of(repeats)
    )
