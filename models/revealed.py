"""Hidden features: what lowering a config reveals, as columns a model learns well from.

Lowering counts things: bytes moved, micro-ops executed, instructions. Latency follows from sums of
them and from their proportions, so both are columns of their own.
"""

from __future__ import annotations

import numpy as np

from search.learning import Matrix

_WORK, _TRAFFIC = "_iterations", "_bytes"
_SCALE = 0.5  # log2 counts are put on about the scale of the other columns


def revealed(hidden: Matrix, names: tuple[str, ...]) -> tuple[Matrix, tuple[str, ...]]:
    """log2 of every count, of the bytes and of the iterations together, and of every count per
    iteration. `hidden` has shape (rows, names); NaN counts as 0."""
    counts = np.nan_to_num(hidden)
    logs = np.log2(1.0 + counts)
    columns = [*logs.T]
    labels = [f"hidden {name}" for name in names]
    totals = {
        label: np.log2(1.0 + counts[:, rows].sum(axis=1))
        for label, end in (("bytes", _TRAFFIC), ("iterations", _WORK))
        if (rows := [k for k, name in enumerate(names) if name.endswith(end)])
    }
    columns += totals.values()
    labels += [f"hidden {label}" for label in totals]
    if "iterations" in totals:
        per = {name: log for name, log in zip(names, logs.T, strict=True) if _WORK not in name}
        per |= {label: log for label, log in totals.items() if label != "iterations"}
        columns += [log - totals["iterations"] for log in per.values()]
        labels += [f"hidden {name} per iteration" for name in per]
    return _SCALE * np.reshape(columns, (len(columns), len(hidden))).T, tuple(labels)
