"""Which compiled programs are worth a measurement by what is seen of them: new ones, unlike ones.

Knobs that do not matter to a workload make many equal programs of different configs; only compiling
tells.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search.acquisition import farthest
from search.explorer import History
from search.learning import Learners
from targets.features import Features


def new_programs(history: History, hidden: Features) -> NDArray[np.int64]:
    """Rows of compiled programs that no measured one and none before them equals in all that is
    seen of them, shape (new,), ascending; all rows if nothing is seen."""
    if not hidden.columns:
        return np.arange(len(hidden))
    seen = _measured(history, hidden)
    _, first = np.unique(np.concatenate([seen, hidden.matrix]), axis=0, return_index=True)
    return np.sort(first[first >= len(seen)]) - len(seen)


def least_like(
    history: History, hidden: Features, chosen: NDArray[np.int64], rows: NDArray[np.int64],
    learners: Learners,
) -> NDArray[np.int64]:  # fmt: skip
    """Some `rows` (m,) of programs, always the one least like any that was measured, `chosen` (k,)
    or named before it."""
    seen = np.concatenate([_measured(history, hidden), hidden.matrix[chosen]])
    known = learners.hidden_features(Features(seen, hidden.columns))
    asked = learners.hidden_features(hidden.rows(rows))
    return rows[farthest(asked.matrix, known.matrix)]


def _measured(history: History, hidden: Features) -> NDArray[np.float64]:
    seen = history.hidden.rows(history.valid)
    return seen.matrix if seen.columns == hidden.columns else np.empty((0, len(hidden.columns)))
