"""A first model of latency on what lowering counts: every counted thing has a price."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from search.learning import Matrix

_RIDGE = 1e-3


class Draft:
    """log2 cycles of programs from their counts: cycles are a sum of counts times prices that are
    not negative, fitted to the least relative error (non-negative least squares; Lawson & Hanson,
    Solving Least Squares Problems, 1974). A few points suffice. Saved as plain NPZ."""

    kind = "draft"
    suffix = ".npz"

    def __init__(self, seed: int, classify: bool, parameters: dict[str, float]) -> None:
        self.classify = False
        self.prices: NDArray[np.float64] = np.empty(0)

    def fit(self, x: Matrix, y: NDArray[np.float64]) -> None:
        counts, cycles = np.nan_to_num(x), np.exp2(y)
        if not len(y):
            self.prices = np.zeros(x.shape[1])
            return
        scale = np.maximum(counts.max(axis=0), 1.0)
        rows = counts / scale / cycles[:, None]
        small = _RIDGE * np.eye(counts.shape[1]) / np.median(cycles)
        goal = np.concatenate([np.ones(len(rows)), np.zeros(len(scale))])
        self.prices = nnls(np.concatenate([rows, small]), goal)[0] / scale

    def predict(self, x: Matrix) -> NDArray[np.float64]:
        return np.asarray(np.log2(np.maximum(np.nan_to_num(x) @ self.prices, 1.0)))

    def spread(self, x: Matrix) -> NDArray[np.float64]:
        return np.zeros(len(x))

    def save(self, path: Path) -> None:
        np.savez(path, allow_pickle=False, prices=self.prices)

    def load(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as data:
            self.prices = data["prices"]
