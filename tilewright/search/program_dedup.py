"""Finds which compiled programs are new, by their hidden features.

Knobs that do not matter to a workload make many equal programs of different configs; only compiling
tells.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.search.explorer import History
from tilewright.targets.features import Features


def new_programs(history: History, hidden: Features) -> NDArray[np.int64]:
    """Rows of compiled programs that no measured one and none before them equals in all that is
    seen of them, shape (new,), ascending; all rows if nothing is seen."""
    if not hidden.columns:
        return np.arange(len(hidden))
    seen = _measured(history, hidden)
    _, first = np.unique(np.concatenate([seen, hidden.matrix]), axis=0, return_index=True)
    return np.sort(first[first >= len(seen)]) - len(seen)


def _measured(history: History, hidden: Features) -> NDArray[np.float64]:
    seen = history.hidden.rows(history.valid)
    return seen.matrix if seen.columns == hidden.columns else np.empty((0, len(hidden.columns)))
