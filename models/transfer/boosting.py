"""Boosted trees that learn until a time, from rows with unknown values."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import xgboost as xgb
from numpy.typing import NDArray

from models.transfer.prepared import Matrix
from models.trees import XGBoost

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
        self, x: Matrix, y: NDArray[np.float32], held: Validation | None, threads: int, until: float
    ) -> tuple[int, float, str]:
        """Learn labels (rows,) of rows (rows, columns) until `time.monotonic` is `until`. Returns
        how many trees were grown, in how many seconds, and by what that ended."""
        settings = dict(self.parameters)
        rounds = int(settings.pop("rounds"))
        settings["max_depth"] = int(settings["max_depth"])
        begun = time.monotonic()
        if self.classify and len(np.unique(y)) < 2:
            self._fit(x[:1].astype(np.float64), y[:1].astype(np.float64))
            return 0, 0.0, "epochs"
        fixed = self._fixed(np.asarray(y, dtype=np.float64)) | {"nthread": threads}
        data = xgb.QuantileDMatrix(x, y, nthread=threads)
        watched = []
        if held is not None and len(held[1]):
            watched = [(xgb.QuantileDMatrix(*held, ref=data, nthread=threads), "held")]
        clock = _Until(until)
        found = xgb.train(
            fixed | settings, data, rounds, evals=watched, verbose_eval=False, callbacks=[clock],
            early_stopping_rounds=PATIENCE if watched else None,
        )  # fmt: skip
        grown = found.num_boosted_rounds()
        best = int(found.attr("best_iteration") or grown - 1) + 1
        self.booster = found[:best]
        self.booster.set_param({"nthread": threads})
        early = "no gain" if grown < rounds else "epochs"
        return grown, time.monotonic() - begun, "minutes" if clock.late else early

    def ask(self, x: Matrix) -> NDArray[np.float64]:
        """What is expected of rows, (rows, columns) → (rows,)."""
        return np.asarray(self.booster.inplace_predict(x), dtype=np.float64)
