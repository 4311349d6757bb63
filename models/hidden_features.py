"""Hidden features: what lowering a config reveals, as columns a model learns well from.

Lowering counts things: bytes moved, micro-ops executed, instructions, and how many of the bytes
nothing hides. Latency follows from sums of them and from their proportions, so both are columns;
single counts are left to the draft, which has a price for each: as columns of a Gaussian process,
which knows few points, they cost more than they tell.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search.learning import Matrix

_SUMS = {
    "instructions": ("instructions",),
    "bytes": ("_bytes",),
    "exposed": ("_exposed",),
    "padding": ("padded",),
    "iterations": ("_iterations",),
}
"""Columns, and the ends of the names of the counts that each sums up."""
_LAST = "last_work"
_EXPOSURE = 16.0  # a byte that nothing hides counts as so many others
_SCALE = 0.5  # log2 counts are put on about the scale of the other columns


def hidden_features(hidden: Matrix, names: tuple[str, ...]) -> tuple[Matrix, tuple[str, ...]]:
    """log2 of sums of counts, of these sums per iteration, and of the whole work per iteration.
    Where nothing is known to be summed up, log2 of every count. `hidden` has shape (rows, names);
    NaN counts as 0."""
    sums = {label: ends for label, ends in _SUMS.items() if any(n.endswith(ends) for n in names)}
    if not sums:
        return _SCALE * np.log2(1.0 + np.nan_to_num(hidden)), tuple(f"hidden {n}" for n in names)
    columns = {label: np.log2(1.0 + _total(hidden, names, ends)) for label, ends in sums.items()}
    if "iterations" in columns:
        whole = {"work": work(hidden, names)}
        per = {k: v for k, v in (columns | whole).items() if k != "iterations"}
        columns |= {f"{k} per iteration": v - columns["iterations"] for k, v in per.items()}
    return _SCALE * np.column_stack([*columns.values()]), tuple(f"hidden {k}" for k in columns)


def work(hidden: Matrix, names: tuple[str, ...]) -> NDArray[np.float64]:
    """log2 of the iterations plus log2 of the bytes of each program, shape (rows,). Nothing is
    known of how long either takes; only that less of both is hardly ever slower, that bytes which
    nothing hides cost more than others, and that iterations after the last load hide nothing."""
    moved = _total(hidden, names, ("_bytes",)) + _EXPOSURE * _total(hidden, names, ("_exposed",))
    done = _total(hidden, names, ("_iterations", _LAST))
    return np.asarray(np.log2(1.0 + moved) + np.log2(1.0 + done))


def _total(hidden: Matrix, names: tuple[str, ...], ends: tuple[str, ...]) -> NDArray[np.float64]:
    rows = [k for k, name in enumerate(names) if name.endswith(ends)]
    return np.asarray(np.nan_to_num(hidden[:, rows]).sum(axis=1))
