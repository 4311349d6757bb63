"""Tree models as cost models: XGBoost, LightGBM, a random forest and AutoTVM's model.

XGBoost and LightGBM models are saved in their native formats. AutoTVM's model is XGBoost fitted to
normalised throughput. Its boosting stops when the recall of the best training rows no longer
improves (TVM 0.14, autotvm/tuner/xgboost_cost_model.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import xgboost as xgb
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.models.base_model import FittedModel
from tilewright.targets.features import Features

if TYPE_CHECKING:
    import lightgbm as lgb


Matrix = NDArray[np.float64]

_ONE_CLASS_MARGIN = 0.02  # probability of a class that does not occur in the training data


class _Boosted(FittedModel):
    """Base class of the XGBoost and LightGBM models.

    A classifier whose training labels are all of one class predicts the same probability for every
    row: 0.98 for class 1, 0.02 for class 0.

    Attributes:
        kind: name under which the kind of model is registered.
        suffix: file name suffix of the saved model, with the dot.
    """

    kind: str
    suffix: str

    def __init__(self, seed: int, classify: bool, parameters: dict[str, float]) -> None:
        self.seed = seed
        self.classify = classify
        self.parameters = parameters
        self.booster: Any = None

    def fit(self, x: Features, y: NDArray[np.float64]) -> None:
        self.remember(x)
        self._fit(x.matrix, y)

    def predict(self, x: Features) -> NDArray[np.float64]:
        self.check(x)
        return self._predict(x.matrix)

    def spread(self, x: Features) -> NDArray[np.float64]:
        return np.zeros(len(x))

    def _fit(self, x: Matrix, y: NDArray[np.float64]) -> None:
        if len(y) and (np.ptp(y) > 0 or not self.classify):
            self.booster = self._train(x, y)
            return
        # With a single class, fit a constant model that predicts a probability near 0 or 1.
        twice = np.concatenate([x, x]) if len(x) else np.zeros((2, x.shape[1]))
        share = float(y.mean()) if len(y) else 0.5
        certainty = _ONE_CLASS_MARGIN + (1 - 2 * _ONE_CLASS_MARGIN) * share
        self.booster = self._constant(twice, certainty)

    def _predict(self, x: Matrix) -> NDArray[np.float64]:
        raise NotImplementedError

    def _train(self, x: Matrix, y: NDArray[np.float64]) -> Any:
        raise NotImplementedError

    def _constant(self, x: Matrix, share: float) -> Any:
        raise NotImplementedError


class XGBoost(_Boosted):
    """XGBoost with histogram trees on one thread. It is saved as UBJSON."""

    kind = "xgboost"
    suffix = ".ubj"
    defaults: ClassVar[dict[str, float]] = {
        "rounds": 120, "max_depth": 6, "eta": 0.15, "subsample": 1.0, "colsample_bytree": 1.0,
        "min_child_weight": 1.0, "lambda": 1.0, "gamma": 0.0,
    }  # fmt: skip

    def _train(self, x: Matrix, y: NDArray[np.float64]) -> xgb.Booster:
        settings = self.defaults | self.parameters
        rounds = int(settings.pop("rounds"))
        settings["max_depth"] = int(settings["max_depth"])
        data = xgb.DMatrix(x, y, nthread=1)
        booster = xgb.Booster(self._fixed(y) | settings, [data])
        for number in range(rounds):  # the callbacks of `xgb.train` would take a fifth of the time
            booster.update(data, number)
        return booster

    def _constant(self, x: Matrix, share: float) -> xgb.Booster:
        data = xgb.DMatrix(x, np.full(len(x), share), nthread=1)
        return xgb.train(self._fixed(np.array([share])), data, 0)

    def _fixed(self, y: NDArray[np.float64]) -> dict[str, Any]:
        return {
            "objective": "binary:logistic" if self.classify else "reg:squarederror",
            "base_score": float(y.mean()),
            "tree_method": "hist",
            "nthread": 1,
            "seed": self.seed,
            "verbosity": 0,
        }

    def _predict(self, x: Matrix) -> NDArray[np.float64]:
        return np.asarray(self.booster.inplace_predict(x), dtype=np.float64)

    def save(self, path: Path) -> None:
        """Write the trained trees in XGBoost's UBJSON format.

        Args:
            path: the file.
        """
        self.booster.save_model(path)

    def load(self, path: Path) -> None:
        """Read trained trees in XGBoost's UBJSON format.

        Args:
            path: the file.

        Raises:
            OSError: the file cannot be read.
            ValueError: XGBoost cannot parse the file, or it is empty.
        """
        data = bytearray(path.read_bytes())
        if not data:  # XGBoost would abort the process
            raise ValueError("it is empty")
        try:
            self.booster = xgb.Booster(params={"nthread": 1}, model_file=data)
        except xgb.core.XGBoostError as error:
            raise ValueError(f"XGBoost cannot read it: {str(error)[:200]}") from None
        self.width = self.booster.num_features()


class LightGBM(_Boosted):
    """LightGBM on one thread. It is saved in LightGBM's text format."""

    kind = "lightgbm"
    suffix = ".txt"
    defaults: ClassVar[dict[str, float]] = {
        "rounds": 120, "num_leaves": 31, "learning_rate": 0.15, "min_data_in_leaf": 2,
        "lambda_l2": 1.0, "min_sum_hessian_in_leaf": 1e-3,
    }  # fmt: skip

    def _train(self, x: Matrix, y: NDArray[np.float64]) -> lgb.Booster:
        settings: dict[str, Any] = self.defaults | self.parameters
        rounds = int(settings.pop("rounds"))
        for name in ("num_leaves", "min_data_in_leaf"):
            settings[name] = int(settings[name])
        fixed = {
            "objective": "binary" if self.classify else "regression",
            "num_threads": 1,
            "deterministic": True,
            "force_row_wise": True,
            "seed": self.seed,
            "verbosity": -1,
        }
        lgb = _lightgbm()
        return lgb.train(fixed | settings, lgb.Dataset(x, y, params={"verbosity": -1}), rounds)

    def _constant(self, x: Matrix, share: float) -> lgb.Booster:
        fixed = {
            "objective": "cross_entropy", "num_threads": 1, "verbosity": -1, "seed": self.seed,
            "min_data_in_leaf": len(x), "feature_pre_filter": False,
        }  # fmt: skip
        lgb = _lightgbm()
        data = lgb.Dataset(x, np.full(len(x), share), params={"verbosity": -1})
        return lgb.train(fixed, data, 1)

    def _predict(self, x: Matrix) -> NDArray[np.float64]:
        return np.asarray(self.booster.predict(x, num_threads=1), dtype=np.float64)

    def save(self, path: Path) -> None:
        """Write the trained trees in LightGBM's text format.

        Args:
            path: the file.
        """
        path.write_text(self.booster.model_to_string())

    def load(self, path: Path) -> None:
        """Read trained trees in LightGBM's text format.

        Args:
            path: the file.

        Raises:
            OSError: the file cannot be read.
            ValueError: LightGBM cannot parse the file.
            TilewrightError: LightGBM cannot be imported.
        """
        lgb = _lightgbm()
        try:
            self.booster = lgb.Booster(model_str=path.read_text())
        except lgb.basic.LightGBMError as error:
            raise ValueError(f"LightGBM cannot read it: {str(error)[:200]}") from None
        self.width = self.booster.num_feature()


def _lightgbm() -> Any:
    """Import LightGBM and return the module.

    It is imported only when it is used, because its wheel needs libgomp, which minimal systems
    lack.

    Raises:
        TilewrightError: libgomp is missing.
    """
    try:
        import lightgbm
    except OSError as error:
        raise TilewrightError(
            f"LightGBM cannot be loaded ({error}); install libgomp (Debian: libgomp1), or choose "
            "the learner xgboost"
        ) from None
    return lightgbm


class Forest(XGBoost):
    """Random forest: the mean of deep trees that are fitted to random subsets of rows and columns.

    The hyperparameter `trees` is the number of trees.
    """

    kind = "forest"

    def _train(self, x: Matrix, y: NDArray[np.float64]) -> xgb.Booster:
        settings = self._fixed(y) | {
            "objective": "reg:squarederror",  # average probabilities instead of logits
            "num_parallel_tree": int(self.parameters.get("trees", 100)),
            "max_depth": 12, "eta": 1.0, "lambda": 1e-3, "min_child_weight": 1.0,
            "subsample": 0.63, "colsample_bynode": 0.6,
        }  # fmt: skip
        return xgb.train(settings, xgb.DMatrix(x, y, nthread=1), 1)

    def _predict(self, x: Matrix) -> NDArray[np.float64]:
        predictions = super()._predict(x)
        return np.clip(predictions, 0.0, 1.0) if self.classify else predictions


class AutoTVMRanker(XGBoost):
    """XGBoost with AutoTVM's hyperparameters and stopping rule.

    The hyperparameter `plan` is the n of the recall@n that the stopping rule uses.
    """

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
    """XGBoost callback that stops boosting when the average recall has not improved for 20 rounds.

    The average recall (`average_recall`) is computed in every second round, on the training rows.

    Args:
        data: the training rows.
        y: their targets; higher is better.
        n: number of best rows that count.
    """

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
    """Compute the average recall of the best rows, like AutoTVM's `recall_curve`.

    For each k < n, the recall is the fraction of the k+1 truly best rows that are among the k rows
    with the best predictions. The result is the mean over k (autotvm/tuner/metric.py).

    Args:
        ranks: true rank of each row, 0 for the best, int array of shape (rows,). The rows are
            ordered by their predictions, best first.
        n: number of values of k.
    """
    count = min(n, len(ranks))
    k = np.arange(count)
    is_recalled = (ranks[None, :count] <= k[:, None]) & (np.arange(count)[None, :] < k[:, None])
    return float((is_recalled.sum(axis=1) / (k + 1)).sum() / n)
