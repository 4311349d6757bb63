"""Fits boosted trees within a time limit, from rows with unknown values; and predicts with them the
chance that a program runs, before it is compiled, for every kind of model.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import xgboost as xgb
from numpy.typing import NDArray

from tilewright.models.transfer.training_data import Matrix, surely_less
from tilewright.models.trees import XGBoost

Validation = tuple[Matrix, NDArray[np.float32]]
"""Rows that tell when to stop, (rows, columns), and their labels, (rows,)."""
PATIENCE = 60
"""Trees without a gain on the rows kept back after which training stops."""


class _Until(xgb.callback.TrainingCallback):  # type: ignore[misc]
    """Ends training when it is time."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self.until = until
        self.late = False

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self.late = time.monotonic() > self.until
        return self.late


class TimedTrees(XGBoost):
    """XGBoost's histogram trees over rows whose unknown values are NaN; each cut has learned which
    way these go."""

    kind = "transferred trees"

    def boost(
        self, x: Matrix, y: NDArray[np.float32], held: Validation | None, threads: int,
        until: float, start: TimedTrees | None = None,
    ) -> tuple[int, float, str]:  # fmt: skip
        """Learn labels (rows,) of rows (rows, columns) until `time.monotonic` is `until`. With
        `start` the trees stand behind its own, or it stays as it is if they are not surely better
        on `held`. Returns how many were grown, in how many seconds, and by what that ended."""
        settings = dict(self.parameters)
        rounds = int(settings.pop("rounds"))
        settings["max_depth"] = int(settings["max_depth"])
        begun = time.monotonic()
        if self.classify and len(np.unique(y)) < 2:
            if start is not None:
                self.booster = start.booster
                return 0, 0.0, "no gain"
            self._fit(x[:1].astype(np.float64), y[:1].astype(np.float64))
            return 0, 0.0, "epochs"
        fixed = self._fixed(np.asarray(y, dtype=np.float64)) | {"nthread": threads}
        if start is not None:
            del fixed["base_score"]  # its trees are the difference to their own
        data, *watched = _matrices(x, y, held, threads, exact=start is not None)
        clock = _Until(until)
        found = xgb.train(
            fixed | settings, data, rounds, evals=[(each, "held") for each in watched],
            verbose_eval=False, callbacks=[clock],
            early_stopping_rounds=PATIENCE if watched else None,
            xgb_model=None if start is None else start.booster,
        )  # fmt: skip
        every = found.num_boosted_rounds()
        grown = every - (0 if start is None else start.booster.num_boosted_rounds())
        self.booster = found[: int(found.attr("best_iteration")) + 1 if watched else every]
        if watched and held and start and not surely_less(self._off(*held), start._off(*held)):
            self.booster = start.booster.copy()
        self.booster.set_param({"nthread": threads})
        early = "no gain" if grown < rounds else "epochs"
        return grown, time.monotonic() - begun, "minutes" if clock.late else early

    def _off(self, x: Matrix, y: NDArray[np.float32]) -> NDArray[np.float64]:
        """Squared errors (rows,), of a chance as of any other number."""
        return np.asarray((self.ask(x) - y) ** 2)

    def ask(self, x: Matrix) -> NDArray[np.float64]:
        """What is expected of rows, (rows, columns) → (rows,)."""
        return np.asarray(self.booster.inplace_predict(x), dtype=np.float64)


def _matrices(
    x: Matrix, y: NDArray[np.float32], held: Validation | None, threads: int, exact: bool
) -> list[xgb.DMatrix]:
    """The rows to learn from, and those that tell when to stop if there are some. Only `exact` ones
    can be asked of trees that were grown on others: quantiles of few rows lie far apart."""
    parts = [(x, y)] + ([held] if held is not None and len(held[1]) else [])
    if exact:
        return [xgb.DMatrix(*each, nthread=threads) for each in parts]
    data = xgb.QuantileDMatrix(*parts[0], nthread=threads)
    return [data, *(xgb.QuantileDMatrix(*each, ref=data, nthread=threads) for each in parts[1:])]


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
