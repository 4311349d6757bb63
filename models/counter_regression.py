"""Regression of the latency on program counters, with a non-negative price in cycles per counter.

The model is also called the draft model. Its predictions are an input of Model A, which predicts
the latency of compiled programs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import unpack_arrays
from tilewright.core.lazy_module import lazy_module
from tilewright.models.base_model import FittedModel
from tilewright.targets.features import Feature, Features, Unit

optimize = lazy_module("scipy.optimize")

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

LOAD, COMPUTE, STORE, OPEN = range(4)
_MODULE: dict[Unit, int] = {"load": LOAD, "compute": COMPUTE, "store": STORE, "": OPEN}
_RIDGE = 1e-3  # makes the prices of collinear counters unique, and is the smallest initial price
_HOLD = 3e-3  # pulls every log price towards a twentieth of the median time
_SHARPEST = 5.0  # largest log(p - 1): there, the slowest module determines the time
_EVALUATIONS = 20  # limit of Levenberg-Marquardt, because a fit is repeated in every round
_TICKS = 10.0  # latencies below 1 (in seconds) are rescaled such that the lowest is 2**10


_SHARES = tuple(
    Feature(f"draft {unit}", text=f"{text} predicted by the counter regression")
    for unit, text in (
        ("load", "busy time of the load unit relative to the busiest unit,"),
        ("compute", "busy time of the compute unit relative to the busiest unit,"),
        ("store", "busy time of the store unit relative to the busiest unit,"),
        ("open", "share of the time in which no transfer is hidden,"),
    )
)


class CounterRegression(FittedModel):
    """Analytic latency model, which predicts log2 latency from the counters of a lowered program.

    Each counter has a non-negative price in cycles. The price of a counter times its count is time
    on one of three hardware modules (load, compute, store), or time that overlaps with nothing. The
    modules work in parallel, so their times t are combined as (Σ t^p)^(1/p). This value lies
    between their sum (p = 1) and the time of the slowest module (p → ∞). The time that overlaps
    with nothing is added.

    Prices and p are fitted to the relative error with Levenberg-Marquardt. The fit starts from the
    non-negative least squares solution for p = 1 (Lawson & Hanson, Solving Least Squares Problems,
    1974). A few training programs suffice. If the model is not built with `for_counters`, it does
    not know the modules of the counters and adds up the times of all counters. The model is saved
    as plain NPZ.
    """

    kind = "draft"
    suffix = ".npz"

    def __init__(self, seed: int, classify: bool, parameters: dict[str, float]) -> None:
        self.classify = False
        self.module: NDArray[np.int64] = np.empty(0, np.int64)
        self.prices: Vector = np.empty(0)
        self.exponent = 1.0
        self.shift = 0.0

    @classmethod
    def for_counters(cls, hidden: Features) -> CounterRegression:
        """Build an untrained model that knows the hardware module of each counter.

        Args:
            hidden: counters of compiled programs. Only their columns are used, not their values.
        """
        draft = cls(0, False, {})
        draft.module = np.array([_MODULE[column.unit] for column in hidden.columns], np.int64)
        return draft

    def fit(self, x: Features, y: Vector) -> None:
        """Fit a price per counter and the exponent p to measured latencies.

        Counters that are 0 in all rows get the price 0.

        Args:
            x: counters with n rows, one per program. NaN is treated as 0.
            y: log2 latencies of shape (n,), in cycles or seconds.
        """
        self.remember(x)
        counts, width = np.nan_to_num(x.matrix), len(x.columns)
        if len(self.module) != width:
            self.module = np.full(width, OPEN)
        self.prices, self.exponent = np.zeros(width), 1.0
        self.shift = 0.0 if not len(y) or y.min() >= 0.0 else _TICKS - float(y.min())
        y = y + self.shift
        seen = np.flatnonzero(counts.any(axis=0))
        if not len(y) or not len(seen):
            return
        scale = counts[:, seen].max(axis=0)
        rows, cycles = counts[:, seen] / scale, np.exp2(y)
        middle = float(np.median(cycles))
        small = _RIDGE * np.eye(len(seen)) / middle
        goal = np.concatenate([np.ones(len(rows)), np.zeros(len(seen))])
        prices = optimize.nnls(np.concatenate([rows / cycles[:, None], small]), goal)[0]
        if (self.module[seen] != OPEN).any():
            rest = np.log(middle / 20.0)
            start = np.append(np.log(np.maximum(prices, _RIDGE * middle)), 0.0)
            solution = optimize.least_squares(
                _residuals, start, _slopes, method="lm", max_nfev=_EVALUATIONS,
                args=(rows, y, self.module[seen], rest),
            ).x  # fmt: skip
            prices, self.exponent = np.exp(solution[:-1]), _exponent(solution[-1])
        self.prices[seen] = prices / scale

    def predict(self, x: Features) -> Vector:
        """Predict the log2 latency of programs.

        Args:
            x: counters with n rows, one per program.

        Returns:
            Array of shape (n,); zeros before the first fit.
        """
        self.check(x)
        counts = np.nan_to_num(x.matrix)
        if not len(self.prices):
            return np.zeros(len(counts))
        total, _, _ = _total(counts, self.prices, self.module, self.exponent)
        return np.asarray(np.log2(np.maximum(total, 1.0)) - self.shift)

    def shares(self, x: Features) -> Features:
        """Predict how busy the load, compute and store modules are while each program runs.

        Args:
            x: counters with one row per program.

        Returns:
            Features with one row per program and four columns. The first three are the busy times
            of the modules divided by that of the busiest module. The last is the fraction of time
            that overlaps with nothing, relative to this time plus the time of the busiest module.
        """
        self.check(x)
        counts = np.nan_to_num(x.matrix)
        if not len(self.prices):
            return Features(np.zeros((len(counts), len(_SHARES))), _SHARES)
        _, share, slowest = _total(counts, self.prices, self.module, self.exponent)
        bare = counts[:, self.module == OPEN] @ self.prices[self.module == OPEN]
        return Features(np.column_stack([*share, bare / (bare + slowest)]), _SHARES)

    def spread(self, x: Features) -> Vector:
        """Return zeros, because the model does not estimate its own errors."""
        return np.zeros(len(x))

    def save(self, path: Path) -> None:
        """Write the prices, the modules of the counters and the exponent as NPZ.

        Args:
            path: the file.
        """
        facts = {"prices": self.prices, "module": self.module, "exponent": self.exponent}
        facts |= {"shift": self.shift}
        np.savez(path, allow_pickle=False, **{name: np.asarray(v) for name, v in facts.items()})

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
        self.prices, self.module = arrays["prices"], arrays["module"]
        self.exponent, self.shift = float(arrays["exponent"]), float(arrays["shift"])


def _exponent(logarithm: float) -> float:
    return 1.0 + float(np.exp(min(logarithm, _SHARPEST)))


def _total(
    counts: Matrix, prices: Vector, module: NDArray[np.int64], exponent: float
) -> tuple[Vector, Matrix, Vector]:
    """Compute the run time of programs and the times of the hardware modules.

    Args:
        counts: counters, shape (n, counters).
        prices: cycles per count, shape (counters,).
        module: index of the module to which each counter belongs, shape (counters,).
        exponent: exponent p with which the modules' times are combined.

    Returns:
        Cycles of the whole programs, shape (n,); the modules' times divided by the time of the
        slowest module, shape (3, n); and the time of the slowest module, shape (n,).
    """
    times = np.array([counts[:, module == k] @ prices[module == k] for k in (LOAD, COMPUTE, STORE)])
    slowest = np.maximum(times.max(axis=0), 1e-9)
    share = times / slowest
    together = slowest * (share**exponent).sum(axis=0) ** (1.0 / exponent)
    return together + counts[:, module == OPEN] @ prices[module == OPEN], share, slowest


def _residuals(
    theta: Vector, rows: Matrix, y: Vector, module: NDArray[np.int64], rest: float
) -> Vector:
    """Compute the residuals that Levenberg-Marquardt minimises.

    These are the errors in log2 cycles, followed by regularisation terms.

    Args:
        theta: fitted parameters: log prices, followed by log(p - 1).
        rows: counters, shape (n, counters).
        y: log2 of the measured latencies, shape (n,).
        module: index of the module to which each counter belongs, shape (counters,).
        rest: log price towards which the regularisation pulls all log prices.
    """
    total, _, _ = _total(rows, np.exp(theta[:-1]), module, _exponent(theta[-1]))
    pull = np.append(_HOLD * (theta[:-1] - rest), _HOLD * theta[-1])
    return np.concatenate([np.log2(np.maximum(total, 1e-9)) - y, pull])


def _slopes(
    theta: Vector, rows: Matrix, y: Vector, module: NDArray[np.int64], rest: float
) -> Matrix:
    """Return the derivatives of `_residuals` with respect to `theta`.

    The arguments are those of `_residuals`.

    Returns:
        Array of shape (residuals, len(theta)).
    """
    prices, p = np.exp(theta[:-1]), _exponent(theta[-1])
    total, share, slowest = _total(rows, prices, module, p)
    powers = share**p
    sums = powers.sum(axis=0)
    sums[sums == 0.0] = 1.0  # avoids 0/0 for a program that keeps no module busy
    weight = np.ones((4, len(rows)))
    weight[:3] = sums ** (1.0 / p - 1.0) * share ** (p - 1.0)
    by_price = weight[module].T * rows * prices
    logs = np.log(np.maximum(share, 1e-12))
    by_p = slowest * sums ** (1.0 / p) * ((powers * logs).sum(axis=0) / (p * sums))
    by_p -= slowest * sums ** (1.0 / p) * np.log(sums) / p**2
    by_p *= (p - 1.0) * (theta[-1] < _SHARPEST)
    upper = np.column_stack([by_price, by_p]) / (np.maximum(total, 1e-9) * np.log(2.0))[:, None]
    return np.concatenate([upper, _HOLD * np.eye(len(theta))])
