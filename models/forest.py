"""Implements a random forest behind the `CostModel` protocol: XGBoost's, one round of trees."""

from __future__ import annotations

import numpy as np
import xgboost as xgb
from numpy.typing import NDArray

from tilewright.models.trees import Matrix, XGBoost


class Forest(XGBoost):
    """Bagged deep trees; the mean of their leaves is the prediction. Parameter `trees`."""

    kind = "forest"

    def _train(self, x: Matrix, y: NDArray[np.float64]) -> xgb.Booster:
        settings = self._fixed(y) | {
            "objective": "reg:squarederror",  # shares of a class, not margins, are averaged
            "num_parallel_tree": int(self.parameters.get("trees", 100)),
            "max_depth": 12, "eta": 1.0, "lambda": 1e-3, "min_child_weight": 1.0,
            "subsample": 0.63, "colsample_bynode": 0.6,
        }  # fmt: skip
        return xgb.train(settings, xgb.DMatrix(x, y, nthread=1), 1)

    def _predict(self, x: Matrix) -> NDArray[np.float64]:
        found = super()._predict(x)
        return np.clip(found, 0.0, 1.0) if self.classify else found
