"""Predicts the chance that a program runs, before it is compiled.

Boosted trees do this for every kind of model.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.models.transfer.preprocessing import Matrix
from tilewright.models.transfer.timed_boosting import TimedTrees, Validation

_ROUNDS = 150
_MORE_ROUNDS = 40
_ROWS = 300_000  # more tell hardly more of what fits into a scratchpad


class Chance:
    """A classifier of what is valid; UBJSON of XGBoost."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._trees = TimedTrees(seed, True, {})

    def refine(
        self, start: Chance, x: Matrix, valid: NDArray[np.bool_], held: Validation, threads: int,
        until: float,
    ) -> None:  # fmt: skip
        """Learn behind what `start` has learned, from a few rows (rows, columns) and which of them
        run, (rows,); nothing, if that is no better on those kept back."""
        self._trees = TimedTrees(
            self.seed, True, {"rounds": _MORE_ROUNDS, "max_depth": 4, "eta": 0.1}
        )
        self._trees.boost(x, valid.astype(np.float32), held, threads, until, start._trees)

    def fit(self, x: Matrix, valid: NDArray[np.bool_], threads: int, until: float) -> None:
        """Learn from rows (rows, columns) which of them run, (rows,)."""
        if len(x) > _ROWS:
            rows = np.random.default_rng(self.seed).choice(len(x), _ROWS, replace=False)
            x, valid = x[rows], valid[rows]
        self._trees = TimedTrees(self.seed, True, {"rounds": _ROUNDS, "max_depth": 6, "eta": 0.2})
        self._trees.boost(x, valid.astype(np.float32), None, threads, until)

    def predict(self, x: Matrix) -> NDArray[np.float64]:
        """Chances, shape (rows,), of rows (rows, columns)."""
        return self._trees.ask(x)

    def packed(self) -> bytes:
        """UBJSON."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "validity.ubj"
            self._trees.save(path)
            return path.read_bytes()

    def unpack(self, data: bytes) -> None:
        """Read UBJSON. Raises `ValueError`."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "validity.ubj"
            path.write_bytes(data)
            self._trees.load(path)
