"""Feature matrices for tests, with numbered or named columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.targets.features import Feature, Features


def numbered(matrix: np.ndarray) -> Features:
    """Return features with the columns x0, x1 and so on."""
    return Features.from_names(matrix, [f"x{k}" for k in range(matrix.shape[1])])


KNOWN = {
    "inp_bytes": Feature("inp_bytes", "bytes", "load"),
    "wgt_bytes": Feature("wgt_bytes", "bytes", "load"),
    "gemm_iterations": Feature("gemm_iterations", "work", "compute"),
    "load_exposed": Feature("load_exposed", "waiting"),
    "instructions": Feature("instructions", "instructions"),
    "last_work": Feature("last_work", "last work"),
}


def counted(matrix: np.ndarray, names: Sequence[str]) -> Features:
    """Return features with the descriptions of known counters. Other names have no description."""
    return Features(matrix, tuple(KNOWN.get(name, Feature(name)) for name in names))
