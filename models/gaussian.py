"""A small Gaussian process: few points, a calibrated spread, extrapolation along straight lines.

Kernel: Matérn 5/2 on the mean squared distance plus a linear part (features are expected to be on a
common scale); length and noise are chosen on a grid by marginal likelihood (Rasmussen & Williams,
Gaussian Processes for Machine Learning, 2006, algorithm 2.1).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular

from search.learning import Matrix

_LENGTHS = (1.0, 2.0, 4.0)
_NOISES = (1e-3, 1e-2, 1e-1)


class GaussianProcess:
    """A regressor with a spread. `fit` keeps at most `points` rows: the lowest targets and an even
    choice of the rest. Saved as NPZ without objects."""

    kind = "gaussian"
    suffix = ".npz"

    def __init__(self, seed: int, classify: bool, parameters: dict[str, float]) -> None:
        self.classify = False
        self.points = int(parameters.get("points", 400))
        self.linear = float(parameters.get("linear", 0.3))
        self.x = np.empty((0, 1))
        self.weights = np.empty(0)
        self.factor = np.empty((0, 0))
        self.mean, self.scale, self.length = 0.0, 1.0, 1.0

    def fit(self, x: Matrix, y: NDArray[np.float64]) -> None:
        rows = _thinned(y, self.points)
        self.x, y = np.nan_to_num(x[rows]), y[rows]
        if not len(y):
            self.weights, self.factor = np.empty(0), np.empty((0, 0))
            return
        self.mean = float(y.mean())
        self.scale = max(float(y.std()), 1e-3)
        z = (y - self.mean) / self.scale
        best = -math.inf
        for length in _LENGTHS:
            kernel = self._kernel(self.x, self.x, length)
            for noise in _NOISES:
                factor = cholesky(kernel + noise * np.eye(len(z)), lower=True)
                weights = cho_solve((factor, True), z)
                evidence = float(-0.5 * z @ weights - np.log(np.diag(factor)).sum())
                if evidence > best:
                    best, self.length, self.factor, self.weights = evidence, length, factor, weights

    def predict(self, x: Matrix) -> NDArray[np.float64]:
        if not len(self.weights):
            return np.full(len(x), self.mean)
        kernel = self._kernel(np.nan_to_num(x), self.x, self.length)
        return np.asarray(kernel @ self.weights * self.scale + self.mean, dtype=np.float64)

    def spread(self, x: Matrix) -> NDArray[np.float64]:
        prior = 1.0 + self.linear * (np.nan_to_num(x) ** 2).mean(axis=1)
        if not len(self.weights):
            return np.asarray(np.sqrt(prior) * self.scale, dtype=np.float64)
        kernel = self._kernel(np.nan_to_num(x), self.x, self.length)
        known = solve_triangular(self.factor, kernel.T, lower=True)
        variance = np.maximum(prior - (known**2).sum(axis=0), 1e-9)
        return np.asarray(np.sqrt(variance) * self.scale, dtype=np.float64)

    def save(self, path: Path) -> None:
        facts = np.array([self.mean, self.scale, self.length, self.linear])
        np.savez(
            path,
            allow_pickle=False,
            x=self.x,
            weights=self.weights,
            factor=self.factor,
            facts=facts,
        )

    def load(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as data:
            self.x, self.weights, self.factor = data["x"], data["weights"], data["factor"]
            self.mean, self.scale, self.length, self.linear = map(float, data["facts"])

    def _kernel(self, a: Matrix, b: Matrix, length: float) -> Matrix:
        width = a.shape[1]
        inner = a @ b.T / width
        square = (a**2).mean(axis=1)[:, None] + (b**2).mean(axis=1)[None, :] - 2.0 * inner
        distance = np.sqrt(5.0 * np.maximum(square, 0.0)) / length
        matern = (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)
        return np.asarray(matern + self.linear * inner, dtype=np.float64)


def _thinned(y: NDArray[np.float64], points: int) -> NDArray[np.int64]:
    """Rows to keep: half of them the lowest, the others spread evenly over the rest."""
    order = np.argsort(y, kind="stable")
    if len(order) <= points:
        return np.sort(order)
    lowest, rest = order[: points // 2], order[points // 2 :]
    even = rest[np.linspace(0, len(rest) - 1, points - points // 2).astype(np.int64)]
    return np.sort(np.concatenate([lowest, even]))
