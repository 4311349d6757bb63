"""Boosted trees that are trained within a time limit, and a classifier of valid programs.

Rows may contain unknown values. All kinds of transfer models use the classifier to predict, before
compilation, the probability that a program is valid.
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
"""Held-out rows, shape (rows, columns), and their labels, shape (rows,). They decide when the
training stops."""
PATIENCE = 60
"""Number of trees without a lower error on the held-out rows after which the training stops."""


class _Until(xgb.callback.TrainingCallback):  # type: ignore[misc]
    """XGBoost callback that ends the training once a given time has passed.

    Args:
        until: latest end of the training, in seconds of `time.monotonic`.
    """

    def __init__(self, until: float) -> None:
        super().__init__()
        self.until = until
        self.late = False

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self.late = time.monotonic() > self.until
        return self.late


class TimedTrees(XGBoost):
    """XGBoost histogram trees for rows in which NaN marks unknown values.

    Each split learns a default direction for unknown values.
    """

    kind = "transferred trees"

    def boost(
        self, x: Matrix, y: NDArray[np.float32], held: Validation | None, threads: int,
        until: float, start: TimedTrees | None = None,
    ) -> tuple[int, float, str]:  # fmt: skip
        """Train trees until a time limit, and store them in this object.

        Args:
            x: rows of shape (rows, columns).
            y: labels of shape (rows,).
            held: held-out rows that decide when to stop, or None.
            threads: number of threads.
            until: latest end of the training, in seconds of `time.monotonic`.
            start: trees to fine-tune, or None. New trees are appended to these trees. If the new
                trees do not significantly improve the predictions for `held`, they are dropped.

        Returns:
            The number of trained trees, the duration in seconds, and the reason for the end:
                "epochs" (all requested trees were trained), "minutes" (time limit) or "no gain".
        """
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
            # The trees of `start` are relative to their own base score, which is kept.
            del fixed["base_score"]
        data, *watched = _matrices(x, y, held, threads, exact=start is not None)
        clock = _Until(until)
        booster = xgb.train(
            fixed | settings, data, rounds, evals=[(item, "held") for item in watched],
            verbose_eval=False, callbacks=[clock],
            early_stopping_rounds=PATIENCE if watched else None,
            xgb_model=None if start is None else start.booster,
        )  # fmt: skip
        boosted_rounds = booster.num_boosted_rounds()
        grown = boosted_rounds - (0 if start is None else start.booster.num_boosted_rounds())
        self.booster = booster[
            : int(booster.attr("best_iteration")) + 1 if watched else boosted_rounds
        ]
        if (
            watched
            and held
            and start
            and not surely_less(self._squared_errors(*held), start._squared_errors(*held))
        ):
            self.booster = start.booster.copy()
        self.booster.set_param({"nthread": threads})
        early = "no gain" if grown < rounds else "epochs"
        return grown, time.monotonic() - begun, "minutes" if clock.late else early

    def _squared_errors(self, x: Matrix, y: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the squared error of the prediction for each row, shape (rows,).

        Args:
            x: rows of shape (rows, columns).
            y: labels of shape (rows,).
        """
        return np.asarray((self.ask(x) - y) ** 2)

    def ask(self, x: Matrix) -> NDArray[np.float64]:
        """Predict the labels of rows.

        Args:
            x: rows of shape (rows, columns).

        Returns:
            Labels of shape (rows,).
        """
        return np.asarray(self.booster.inplace_predict(x), dtype=np.float64)


def _matrices(
    x: Matrix, y: NDArray[np.float32], held: Validation | None, threads: int, exact: bool
) -> list[xgb.DMatrix]:
    """Convert the training rows and, if there are any, the held-out rows to XGBoost matrices.

    Args:
        x: rows of shape (rows, columns).
        y: labels of shape (rows,).
        held: held-out rows with labels, or None.
        threads: number of threads.
        exact: whether to keep exact values instead of quantiles. Fine-tuning needs exact values:
            the existing trees were trained on other rows, and the quantiles of a few rows lie far
            apart.

    Returns:
        The matrix of the training rows, followed by that of the held-out rows, if there are any.
    """
    parts = [(x, y)] + ([held] if held is not None and len(held[1]) else [])
    if exact:
        return [xgb.DMatrix(*part, nthread=threads) for part in parts]
    data = xgb.QuantileDMatrix(*parts[0], nthread=threads)
    return [data, *(xgb.QuantileDMatrix(*part, ref=data, nthread=threads) for part in parts[1:])]


_ROUNDS = 150
_MORE_ROUNDS = 40
_ROWS = 300_000  # maximum number of training rows; more rows hardly improve the classifier


class Chance:
    """Classifier that predicts the probability that a program is valid.

    It is saved in XGBoost's UBJSON format.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._trees = TimedTrees(seed, True, {})

    def refine(
        self, start: Chance, x: Matrix, valid: NDArray[np.bool_], held: Validation, threads: int,
        until: float,
    ) -> None:  # fmt: skip
        """Fine-tune an existing classifier, and store the result in this object.

        Trees are added that are fitted to rows of new hardware or workloads. If the result is not
        significantly better on the held-out rows, only the trees of `start` are used.

        Args:
            start: the classifier to fine-tune.
            x: rows of shape (rows, columns).
            valid: bool array of shape (rows,), True for valid programs.
            held: held-out rows and their labels.
            threads: number of threads.
            until: latest end of the training, in seconds of `time.monotonic`.
        """
        self._trees = TimedTrees(
            self.seed, True, {"rounds": _MORE_ROUNDS, "max_depth": 4, "eta": 0.1}
        )
        self._trees.boost(x, valid.astype(np.float32), held, threads, until, start._trees)

    def fit(self, x: Matrix, valid: NDArray[np.bool_], threads: int, until: float) -> None:
        """Train the classifier. A table with more than `_ROWS` rows is sampled at random.

        Args:
            x: rows of shape (rows, columns).
            valid: bool array of shape (rows,), True for valid programs.
            threads: number of threads.
            until: latest end of the training, in seconds of `time.monotonic`.
        """
        if len(x) > _ROWS:
            rows = np.random.default_rng(self.seed).choice(len(x), _ROWS, replace=False)
            x, valid = x[rows], valid[rows]
        self._trees = TimedTrees(self.seed, True, {"rounds": _ROUNDS, "max_depth": 6, "eta": 0.2})
        self._trees.boost(x, valid.astype(np.float32), None, threads, until)

    def predict(self, x: Matrix) -> NDArray[np.float64]:
        """Predict the probability that programs are valid.

        Args:
            x: rows of shape (rows, columns).

        Returns:
            Probabilities of shape (rows,).
        """
        return self._trees.ask(x)

    def to_bytes(self) -> bytes:
        """Serialise the classifier as UBJSON. `unpack` is the inverse."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "validity.ubj"
            self._trees.save(path)
            return path.read_bytes()

    def unpack(self, data: bytes) -> None:
        """Restore the classifier from the result of `to_bytes`.

        Raises:
            ValueError: the data is damaged.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "validity.ubj"
            path.write_bytes(data)
            self._trees.load(path)
