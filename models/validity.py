"""Model V, which predicts the probability that a config is valid and vetoes unlikely configs.

The threshold of the veto is calibrated by cross-validation. It is a twentieth of the lowest
probability that was predicted out-of-fold for a measured valid config. Good configs that the model
has not seen are therefore rarely vetoed. Since the calibration takes four times as long as the fit,
it is computed only when a veto depends on it.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tilewright.models.trees import Matrix, XGBoost

_FOLDS = 4
# Fraction of the lowest cross-validated probability of a valid config that becomes the threshold of
# the veto. A threshold of half that probability vetoed one fast config in twenty.
_MARGIN = 0.05


class Validity(XGBoost):
    """XGBoost classifier with a veto threshold. Trees and threshold are saved in one UBJSON file.

    The model has one hyperparameter in addition to those of XGBoost: if `calibrate` is 0, the
    threshold stays 0, so that nothing is vetoed.
    """

    kind = "validity"
    defaults: ClassVar[dict[str, float]] = {
        "rounds": 60, "max_depth": 4, "eta": 0.2, "colsample_bynode": 0.2, "min_child_weight": 0.1,
        "lambda": 1.0,
    }  # fmt: skip

    def __init__(self, seed: int, classify: bool, parameters: dict[str, float]) -> None:
        self.calibrate = bool(parameters.get("calibrate", 1))
        rest = {k: v for k, v in parameters.items() if k != "calibrate"}
        super().__init__(seed, True, rest)
        self._uncalibrated: tuple[Matrix, NDArray[np.float64]] | None = None

    def _fit(self, x: Matrix, y: NDArray[np.float64]) -> None:
        super()._fit(x, y)
        self._uncalibrated = (x, y) if self.calibrate else None
        if not self.calibrate:
            self.booster.set_attr(threshold=repr(0.0))

    @property
    def threshold(self) -> float:
        """Probability of being valid below which a config may be vetoed.

        The threshold is calibrated on first use after a fit.
        """
        if self._uncalibrated is not None:
            self.booster.set_attr(threshold=repr(self._threshold(*self._uncalibrated)))
            self._uncalibrated = None
        return float(self.booster.attr("threshold") or 0.0)

    def accept(self, chance: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return for each config whether it must be kept, that is, must not be vetoed.

        Args:
            chance: predicted probability that each config is valid, shape (n,).

        Returns:
            Bool array of shape (n,); False for configs that may be vetoed.
        """
        if self._uncalibrated is not None and chance.min(initial=1.0) >= _MARGIN:
            return np.ones(len(chance), np.bool_)  # the threshold is at most _MARGIN
        return np.asarray(chance >= self.threshold)

    def save(self, path: Path) -> None:
        """Write the trees and the veto threshold, which is calibrated first, to one file.

        Args:
            path: the file.
        """
        _ = self.threshold  # calibrates the threshold, which is stored with the trees
        super().save(path)

    def _threshold(self, x: Matrix, y: NDArray[np.float64]) -> float:
        if min(y.sum(), len(y) - y.sum()) < _FOLDS:
            return 0.0
        fold = np.empty(len(y), dtype=np.int64)
        for label in (0.0, 1.0):
            rows = np.flatnonzero(y == label)
            fold[rows] = np.random.default_rng(self.seed).permutation(len(rows)) % _FOLDS
        chance = np.empty(len(y))
        for k in range(_FOLDS):
            part = XGBoost(self.seed, True, self.defaults | self.parameters)
            part._fit(x[fold != k], y[fold != k])
            chance[fold == k] = part._predict(x[fold == k])
        return float(min(_MARGIN * chance[y == 1].min(), 0.5))
