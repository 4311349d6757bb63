"""Gaussian process regression for small training sets, with learned noise and feature relevance.

The kernel is the sum of a Matérn 5/2 kernel and a linear kernel, with one length scale per feature.
The length scales, the noise and the weight of the linear kernel maximise the marginal likelihood
times weak log-normal priors (Rasmussen & Williams, Gaussian Processes for Machine Learning, 2006,
chapter 5). Features should be on a common scale. If the noise of each target is known, it is used
per row, and learned noise is added to it (Goldberg, Williams & Bishop, Regression with
Input-dependent Noise, 1998).

scikit-learn's regressor gives the same predictions (`tests/models/test_gaussian.py`). We do not use
it, because one evaluation of its marginal likelihood and gradient takes 16 times as long (13 ms
instead of 0.8 ms for 128 points with 30 features), and because it has no priors on hyperparameters.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import unpack_arrays
from tilewright.core.lazy_module import lazy_module
from tilewright.models.base_model import FittedModel
from tilewright.search.acquisition import log_expected_improvement
from tilewright.targets.features import Features

linalg, optimize = lazy_module("scipy.linalg"), lazy_module("scipy.optimize")

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

_NOISE, _LINEAR = math.log(1e-2), math.log(0.3)  # prior medians, in units of the target's variance
_NOISE_SPREAD = 2.0  # prior standard deviation of the log noise; 1 for all other parameters
_JITTER = 1e-9  # smallest posterior variance: rounding errors can make a variance negative
_EXACT = 1500  # rows whose posterior variance is computed for a proposal


class GaussianProcess(FittedModel):
    """Gaussian process regressor with predictive standard deviations.

    `fit` uses at most `points` rows, and optimises the hyperparameters on at most `search_points`
    rows. If there are more rows, half of the chosen rows have the lowest targets, and the other
    half is spread evenly over the rest. The model is saved as plain NPZ.
    """

    kind = "gaussian"
    suffix = ".npz"

    def __init__(self, seed: int, classify: bool, parameters: dict[str, float]) -> None:
        self.classify = False
        self.points = int(parameters.get("points", 250))
        self.search_points = int(parameters.get("search_points", 128))
        self.steps = int(parameters.get("steps", 25))
        self.x: Matrix = np.empty((0, 1))
        self.weights: Vector = np.empty(0)
        self.factor: Matrix = np.empty((0, 0))
        self.lengths: Vector = np.ones(1)
        self.mean, self.scale, self.noise, self.linear = 0.0, 1.0, 1e-2, 0.3

    def fit(self, x: Features, y: Vector, variance: Vector | None = None) -> None:
        """Fit the model to rows of features and their targets.

        Args:
            x: features with n rows.
            y: targets of shape (n,).
            variance: noise variance of each target, shape (n,), if it is known from repeated
                measurements. Learned noise, which is the same for all rows, is added to it.
        """
        self.remember(x)
        rows = _choose_training_rows(y, self.points)
        points, y = np.nan_to_num(x.matrix[rows]), y[rows]
        known = None if variance is None else variance[rows]
        self.lengths = np.full(points.shape[1], math.sqrt(points.shape[1]))
        if not len(y):
            self.weights, self.factor, self.x = np.empty(0), np.empty((0, 0)), points
            return
        self.mean = float(y.mean())
        self.scale = max(float(y.std()), 1e-3)
        z = (y - self.mean) / self.scale
        known = None if known is None else known / self.scale**2
        self._search(points, z, known)
        self.x = points / self.lengths
        kernel = _kernel(self.x, self.x, self.linear)
        self.factor = linalg.cholesky(_noisy(kernel, self.noise, known), lower=True)
        self.weights = linalg.cho_solve((self.factor, True), z)
        if known is not None:  # `noise` becomes the expected noise of a new trial
            self.noise += float(np.median(known))

    def _search(self, x: Matrix, z: Vector, known: Vector | None) -> None:
        """Set the hyperparameters to those with the highest posterior density (see `_evidence`).

        Args:
            x: features, shape (points, columns).
            z: standardised targets, shape (points,).
            known: known noise variance of each target, shape (points,), or None.
        """
        width = x.shape[1]
        start = np.concatenate([np.log(self.lengths), [_NOISE, _LINEAR]])
        bounds = [(-2.0, 5.0)] * width + [(math.log(1e-4), -1.0), (math.log(1e-3), 2.0)]
        some = _choose_training_rows(z, self.search_points)
        optimum = optimize.minimize(
            _evidence, start, (x[some], z[some], None if known is None else known[some]),
            "L-BFGS-B", jac=True, bounds=bounds, options={"maxiter": self.steps},
        ).x  # fmt: skip
        self.lengths = np.exp(optimum[:-2])
        self.noise, self.linear = float(np.exp(optimum[-2])), float(np.exp(optimum[-1]))

    def predict(self, x: Features) -> Vector:
        """Predict targets by the posterior mean.

        Args:
            x: features with n rows.

        Returns:
            Array of shape (n,).
        """
        return self._mean(self._kernel_to(self._scale_inputs(x)))

    def spread(self, x: Features) -> Vector:
        """Return the posterior standard deviation of each prediction.

        Args:
            x: features with n rows.

        Returns:
            Array of shape (n,).
        """
        scaled = self._scale_inputs(x)
        known = self._explained_variance(self._kernel_to(scaled))
        return np.asarray(np.sqrt(self._variance(scaled, known)) * self.scale, dtype=np.float64)

    def propose(
        self, x: Features, offset: Vector, best: float, log_chance: Vector, n: int
    ) -> NDArray[np.int64]:
        """Choose a batch of rows to measure by log expected improvement.

        The rows are chosen one after the other. Each row maximises the log expected improvement
        over `best` plus `log_chance`, as if the rows chosen before had been measured with their
        predicted means as results (the kriging believer of Ginsbourger et al., 2010).

        Args:
            x: features of m candidates.
            offset: known part of each candidate's target, shape (m,). The model was fitted to
                targets minus this part, so the offset is added to its predictions.
            best: lowest target measured so far.
            log_chance: log probability that each candidate is valid, shape (m,).
            n: number of rows to choose.

        Returns:
            Indices of the chosen rows of `x`, in the order of choice, shape (min(n, m),).
        """
        scaled = self._scale_inputs(x)
        kernel = self._kernel_to(scaled)
        mean, rows = self._mean(kernel) + offset, np.arange(len(x))
        if len(x) > max(_EXACT, n):
            # Expected improvement grows with the spread, so the prior's spread gives an upper
            # bound. The posterior is expensive and computed only for the highest bounds.
            prior = np.sqrt(self._variance(scaled)) * self.scale
            bound = log_expected_improvement(mean, prior, best) + log_chance
            rows = np.sort(np.argsort(-bound, kind="stable")[: max(_EXACT, n)])
            scaled, kernel, mean = scaled[rows], kernel[:, rows], mean[rows]
            log_chance = log_chance[rows]
        norm = (scaled**2).sum(axis=1)
        first = self._explained_variance(kernel)
        variance = self._variance(scaled, first)
        known = np.empty((len(first) + min(n, len(rows)), len(rows)))
        known[: len(first)] = first
        chosen: list[int] = []
        for row_count in range(len(first), len(known)):
            spread = np.sqrt(variance) * self.scale
            value = log_expected_improvement(mean, spread, best) + log_chance
            value[chosen] = -np.inf
            row = int(np.argmax(value))
            one = slice(row, row + 1)
            shared = _covariance(norm, norm[one], scaled @ scaled[one].T, self.linear)[:, 0]
            shared -= known[:row_count].T @ known[:row_count, row]
            shared /= math.sqrt(variance[row] + self.noise)
            known[row_count] = shared
            variance = np.maximum(variance - shared**2, _JITTER)
            best = min(best, float(mean[row]))
            chosen.append(row)
        return rows[np.array(chosen, dtype=np.int64)]

    def save(self, path: Path) -> None:
        """Write the training points, their Cholesky factor and the hyperparameters as NPZ.

        Args:
            path: the file.
        """
        facts = np.array([self.mean, self.scale, self.noise, self.linear])
        arrays = {"x": self.x, "weights": self.weights, "factor": self.factor}
        np.savez(path, allow_pickle=False, lengths=self.lengths, facts=facts, **arrays)

    def load(self, path: Path) -> None:
        """Read the file that `save` wrote.

        Args:
            path: the file.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is damaged.
            KeyError: an array is missing in the file.
        """
        arrays = unpack_arrays(path.read_bytes())
        self.x, self.weights, self.factor = arrays["x"], arrays["weights"], arrays["factor"]
        self.lengths = arrays["lengths"]
        self.mean, self.scale, self.noise, self.linear = map(float, arrays["facts"])

    def _scale_inputs(self, x: Features) -> Matrix:
        self.check(x)
        return np.asarray(np.nan_to_num(x.matrix) / self.lengths, dtype=np.float64)

    def _kernel_to(self, scaled: Matrix) -> Matrix:
        """Return the covariances between the training points and other points.

        Args:
            scaled: the other points, divided by the length scales, shape (n, columns).

        Returns:
            Array of shape (points, n).
        """
        if not len(self.weights):
            return np.empty((0, len(scaled)))
        return _kernel(self.x, scaled, self.linear)

    def _mean(self, kernel: Matrix) -> Vector:
        return np.asarray(self.weights @ kernel * self.scale + self.mean, dtype=np.float64)

    def _explained_variance(self, kernel: Matrix) -> Matrix:
        """Return a matrix whose squared column sums are the explained variance of n points.

        Args:
            kernel: covariances between the training points and the n points, shape (points, n).

        Returns:
            Array of shape (points, n): the inverse Cholesky factor times `kernel`.
        """
        if not len(kernel):
            return kernel
        return np.asarray(linalg.solve_triangular(self.factor, kernel, lower=True))

    def _variance(self, scaled: Matrix, explained: Matrix | float = 0.0) -> Vector:
        prior = 1.0 + self.linear * (scaled**2).sum(axis=1)
        rest = prior - np.sum(np.square(explained), axis=0)
        return np.asarray(np.maximum(rest, _JITTER), dtype=np.float64)


def _kernel(a: Matrix, b: Matrix, linear: float) -> Matrix:
    return _covariance((a**2).sum(axis=1), (b**2).sum(axis=1), a @ b.T, linear)


def _covariance(one: Vector, other: Vector, inner: Matrix, linear: float) -> Matrix:
    """Compute covariances from squared norms and inner products of points.

    The points are divided by the length scales beforehand.

    Args:
        one: squared norms of the first points, shape (a,).
        other: squared norms of the second points, shape (b,).
        inner: inner products of first with second points, shape (a, b).
        linear: weight of the linear kernel.

    Returns:
        Covariances of shape (a, b).
    """
    square = one[:, None] + other[None, :] - 2.0 * inner
    distance = np.sqrt(5.0 * np.maximum(square, 0.0))
    matern = (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)
    return np.asarray(matern + linear * inner, dtype=np.float64)


def _noisy(kernel: Matrix, noise: float, known: Vector | None) -> Matrix:
    """Return a kernel matrix with noise variances added to its diagonal.

    Args:
        kernel: covariances of the noiseless targets, shape (n, n).
        noise: learned noise variance, the same for all rows.
        known: known noise variance of each row, shape (n,), or None.
    """
    covariance = kernel + noise * np.eye(len(kernel))
    return covariance if known is None else covariance + np.diag(known)


def _evidence(
    theta: Vector, x: Matrix, z: Vector, known: Vector | None = None
) -> tuple[float, Vector]:
    """Compute the negative log posterior density of the hyperparameters, and its gradient.

    Args:
        theta: log length scales, log of the learned noise (in addition to the known noise), and log
            weight of the linear kernel.
        x: features, shape (points, columns).
        z: standardised targets, shape (points,).
        known: known noise variance of each target, shape (points,), or None.
    """
    width = x.shape[1]
    noise, linear = math.exp(theta[-2]), math.exp(theta[-1])
    a = x * np.exp(-theta[:width])
    inner = a @ a.T
    norm = np.diag(inner)
    distance = np.sqrt(5.0 * np.maximum(norm[:, None] + norm[None, :] - 2.0 * inner, 0.0))
    decay = np.exp(-distance)
    kernel = (1.0 + distance + distance**2 / 3.0) * decay + linear * inner
    try:
        factor = linalg.cholesky(_noisy(kernel, noise, known), lower=True)
    except np.linalg.LinAlgError:
        return 1e10, np.zeros_like(theta)
    weights = linalg.cho_solve((factor, True), z)
    # The derivative of the negative log likelihood by the kernel matrix is half of this matrix.
    slope = linalg.cho_solve((factor, True), np.eye(len(z))) - np.outer(weights, weights)
    by_square = slope * (-5.0 / 6.0 * (1.0 + distance) * decay)
    by_lengths = by_square.sum(axis=1) @ a**2 - (a * (by_square @ a)).sum(axis=0)
    by_lengths = -2.0 * by_lengths - linear * (a * (slope @ a)).sum(axis=0)

    median = np.full(width, 0.5 * math.log(width))
    median = np.concatenate([median, [_NOISE, _LINEAR]])
    precision = np.ones(width + 2)
    precision[-2] = _NOISE_SPREAD**-2
    value = 0.5 * z @ weights + np.log(np.diag(factor)).sum()
    value += 0.5 * (precision * (theta - median) ** 2).sum()
    by_noise, by_linear = noise * np.trace(slope), linear * (slope * inner).sum()
    gradient = np.concatenate([by_lengths, [0.5 * by_noise, 0.5 * by_linear]])
    return float(value), gradient + precision * (theta - median)


def _choose_training_rows(y: Vector, points: int) -> NDArray[np.int64]:
    """Choose at most `points` rows of a training set, with a preference for low targets.

    If there are more rows, half of the chosen rows have the lowest targets, and the other half is
    spread evenly over the rest.

    Args:
        y: targets, shape (n,).
        points: maximum number of rows to choose.

    Returns:
        Indices of the chosen rows, ascending.
    """
    order = np.argsort(y, kind="stable")
    if len(order) <= points:
        return np.sort(order)
    lowest, rest = order[: points // 2], order[points // 2 :]
    even = rest[np.linspace(0, len(rest) - 1, points - points // 2).astype(np.int64)]
    return np.sort(np.concatenate([lowest, even]))
