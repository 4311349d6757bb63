"""Computes digests of lowered schedules, simulated cycles and tuners' trials, for a golden file.

`python -m tests.search.golden_runs FILE` records the digests. Record them again only when results
change on purpose, and state the reason.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

from tilewright.core.errors import WorkloadError
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.targets import make_target
from tilewright.targets.workload import parse_workload

LAYERS = (
    "conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1",
    "conv2d:n=1,c=64,h=56,w=56,o=128,k=1,s=2,p=0",
    "conv2d:n=1,c=512,h=7,w=7,o=512,k=3,s=1,p=1",
    "dense:n=1,c=512,o=1000",
    "conv2d:n=2,c=48,h=13,w=9,o=80,k=5x3,s=2x1,p=2x1",
)
EPILOGUE = ">> 7, bias, add, relu, min 100"  # for the dense layer, if the space allows bias
TARGETS = tuple(
    (preset, space)
    for preset in ("vta-pynq", "huge")
    for space in ("extended", "template", "unchecked")
)
TUNERS = {
    "random": 40, "ga": 40, "tps": 40, "ml2tuner-published": 40, "autotvm": 72,
    "default": 40, "default-blind": 40, "baco": 40, "ml2tuner": 16,
}  # fmt: skip
LINEAR_ALGEBRA = ("default", "default-blind", "baco", "ml2tuner")
"""Tuners whose results depend, in the last bit, on the CPU kernels that BLAS selects."""


def processor() -> str:
    """Return the names of the CPU architectures that the BLAS libraries detected."""
    kinds = {
        str(info.get("architecture")) for info in threadpool_info() if "blas" in info["user_api"]
    }
    return ", ".join(sorted(kinds))


def lowered(preset: str, space: str, layer: int) -> str:
    """Return a digest of 200 random configs of a layer, lowered and timed."""
    target = make_target(preset, space)
    epilogue = EPILOGUE if layer == 3 and space != "unchecked" else None
    workload = parse_workload(LAYERS[layer], epilogue)
    try:
        knobs = target.space(workload)
    except WorkloadError:
        return "no space"
    flat = np.random.default_rng(5).integers(0, knobs.size, 200)
    batch = target.lower(workload, knobs.unravel(flat))
    measured = target.measure(batch)
    hidden = getattr(batch.hidden, "matrix", batch.hidden)
    numbers = (hidden, measured.cycles, measured.seconds)
    words = (batch.failures, batch.reasons, measured.status, measured.reason)
    return _digest(*(array.tobytes() for array in numbers), *("\0".join(w).encode() for w in words))


def tuned(tuner: str) -> str:
    """Return a digest of a tuner's trials on the second layer, in order."""
    target, workload = make_target("vta-pynq", "extended"), parse_workload(LAYERS[1])
    rounds = tune(target, workload, make_explorer(tuner), trials=TUNERS[tuner], batch=8, seed=3)
    parts = []
    for done in rounds:
        counts = np.array([done.lowered, done.failed_compiles])
        parts += [done.configs.tobytes(), done.measured.cycles.tobytes(), counts.tobytes()]
    return _digest(*parts)


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def record() -> dict[str, object]:
    """Return all digests."""
    return {
        "processor": processor(),
        "lowered": {
            f"{preset} {space} {layer}": lowered(preset, space, layer)
            for preset, space in TARGETS
            for layer in range(len(LAYERS))
        },
        "tuned": {tuner: tuned(tuner) for tuner in TUNERS},
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(record(), indent=1) + "\n")
