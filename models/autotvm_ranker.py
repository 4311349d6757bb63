"""Implements AutoTVM's cost model: XGBoost on normalised throughput.

Boosting stops when the recall of the best training rows stops growing (TVM 0.14,
autotvm/tuner/xgboost_cost_model.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xgboost as xgb
from numpy.typing import NDArray

from tilewright.models.trees import Matrix, XGBoost


class AutoTVMRanker(XGBoost):
    """XGBoost with AutoTVM's parameters and stopping rule. Parameter `plan`: the N of recall@N."""

    kind = "autotvm-ranker"

    def _train(self, x: Matrix, y: NDArray[np.float64]) -> xgb.Booster:
        settings = {
            "objective": "reg:squarederror", "base_score": 0.5, "max_depth": 3, "gamma": 1e-4,
            "min_child_weight": 1, "subsample": 1.0, "eta": 0.3, "lambda": 1.0, "alpha": 0,
            "tree_method": "exact", "nthread": 1, "seed": self.seed, "verbosity": 0,
        }  # fmt: skip
        data = xgb.DMatrix(x.astype(np.float32), y, nthread=1)
        stop = _StopAtRecall(data, y, int(self.parameters.get("plan", 64)))
        return xgb.train(settings, data, 8000, callbacks=[stop])


class _StopAtRecall(xgb.callback.TrainingCallback):  # type: ignore[misc]
    """Looks at every second round; stops when average recall@n has not grown for 20 rounds."""

    def __init__(self, data: xgb.DMatrix, y: NDArray[np.float64], n: int) -> None:
        super().__init__()
        self.data, self.n = data, n
        self.rank = np.empty(len(y), dtype=np.int64)
        self.rank[np.argsort(-y)] = np.arange(len(y))
        self.best, self.best_round = -1.0, 0

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        if epoch % 2 == 1:
            return False
        score = average_recall(self.rank[np.argsort(-model.predict(self.data))], self.n)
        if score > self.best:
            self.best, self.best_round = score, epoch
            return False
        return epoch - self.best_round >= 20


def average_recall(ranks: NDArray[np.int64], n: int) -> float:
    """Mean over k < n of the share of the k+1 truly best rows among the k rows predicted best.

    `ranks` are the true ranks in order of prediction (autotvm/tuner/metric.py, `recall_curve`)."""
    count = min(n, len(ranks))
    k = np.arange(count)
    found = (ranks[None, :count] <= k[:, None]) & (np.arange(count)[None, :] < k[:, None])
    return float((found.sum(axis=1) / (k + 1)).sum() / n)
