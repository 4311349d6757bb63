"""Hidden features: counters from the compilation of a config, transformed into model inputs.

Lowering counts moved bytes, executed micro-ops, instructions, and bytes whose transfer does not
overlap with any computation. The latency depends on sums and ratios of counters, so both become
columns. Single counters are used only by the counter regression, which fits a price to each. A
Gaussian process has too few training points to learn from so many columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.features import Feature, Features, Meaning

_SUMS: dict[str, Meaning] = {
    "instructions": "instructions",
    "bytes": "bytes",
    "exposed": "waiting",
    "padding": "padding",
    "iterations": "work",
}
"""Columns that sum counters: the name of each column, and the meaning of the counters that it
sums."""
_TEXTS = {
    "instructions": "instructions of the program",
    "bytes": "bytes moved",
    "exposed": "bytes moved while nothing else can run",
    "padding": "zeros written that no operation needs",
    "iterations": "operations executed",
    "work": "bytes moved times operations executed",
}
_EXPOSURE = 16.0  # weight of a byte whose transfer overlaps with nothing
_SCALE = 0.5  # puts log2 counts on about the scale of the other columns


def hidden_features(hidden: Features) -> Features:
    """Compute model inputs from the counters that lowering reports for each program.

    The columns are log2 sums of counters, the same sums per iteration, and the total work per
    iteration.

    Args:
        hidden: counters with one row per program. NaN is treated as 0.

    Returns:
        Features with one row per program. If no counter has a meaning that can be summed, the
        columns are log2 of every counter.
    """
    sums = {label: item for label, item in _SUMS.items() if len(hidden.column_indices(item))}
    if not sums:
        logs = _SCALE * np.log2(1.0 + np.nan_to_num(hidden.matrix))
        return Features(logs, hidden.columns).with_prefix("hidden")
    columns = {label: np.log2(1.0 + hidden.total(item)) for label, item in sums.items()}
    if "iterations" in columns:
        whole = {"work": work(hidden)}
        per = {k: v for k, v in (columns | whole).items() if k != "iterations"}
        columns |= {f"{k} per iteration": v - columns["iterations"] for k, v in per.items()}
    about = tuple(Feature(name, text=_text(name)) for name in columns)
    return Features(_SCALE * np.column_stack([*columns.values()]), about).with_prefix("hidden")


def relative_features(hidden: Features) -> Features:
    """Compute model inputs from counters that do not grow with the size of the workload.

    The columns are log2 sums of counters per iteration.

    Args:
        hidden: counters with one row per program.

    Returns:
        Features with one row per program. If no counter counts iterations, the sums are divided by
        the number of instructions. If instructions are not counted either, there are no columns.
    """
    sums = {
        label: 1.0 + hidden.total(m) for label, m in _SUMS.items() if len(hidden.column_indices(m))
    }
    by = next((label for label in ("iterations", "instructions") if label in sums), "")
    logs = {
        f"{label} by {by}": np.log2(total / sums[by])
        for label, total in sums.items()
        if by and label != by
    }
    about = tuple(Feature(name, text=f"{name} (log2)") for name in logs)
    matrix = _SCALE * np.array([*logs.values()]).reshape(len(logs), len(hidden)).T
    return Features(matrix, about).with_prefix("hidden")


def _text(name: str) -> str:
    label, per, _ = name.partition(" per iteration")
    return f"{_TEXTS[label]}{', an iteration' if per else ''} (log2)"


def work(hidden: Features) -> NDArray[np.float64]:
    """Estimate the work of programs as log2 of their iterations plus log2 of their bytes.

    The estimate ranks programs roughly, without any fitted price: a program with fewer iterations
    and fewer bytes is rarely slower. A byte whose transfer overlaps with nothing counts more than
    other bytes. Iterations after the last load, which hide no transfer, are counted in addition.

    Args:
        hidden: counters with one row per program.

    Returns:
        Estimates of shape (rows,).
    """
    moved = hidden.total("bytes") + _EXPOSURE * hidden.total("waiting")
    done = hidden.total("work", "last work")
    return np.asarray(np.log2(1.0 + moved) + np.log2(1.0 + done))
