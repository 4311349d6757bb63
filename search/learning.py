"""What explorers ask of learned models, so that `search` need not know how anything is learned.

`models` implements these protocols and hands a `Learners` to the explorers that want one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from targets.base import Configs

if TYPE_CHECKING:
    from search.explorer import Problem

Matrix = NDArray[np.float64]
"""Shape (rows, features)."""


class CostModel(Protocol):
    """A regressor or a classifier over feature rows; saved in a native format, never pickled."""

    kind: str  # the name `Learners.regressor` / `.classifier` knows it by
    suffix: str  # of the file it is saved to, with the dot

    def fit(self, x: Matrix, y: NDArray[np.float64]) -> None:
        """Learn from rows (n, features) and targets (n,). A classifier's targets are 0 and 1; one
        class alone, one row alone or NaN features are no errors."""
        ...

    def predict(self, x: Matrix) -> NDArray[np.float64]:
        """Shape (n,): the expected target, for a classifier the probability of 1."""
        ...

    def spread(self, x: Matrix) -> NDArray[np.float64]:
        """Shape (n,): standard deviation of the prediction; zeros if the model knows none."""
        ...

    def save(self, path: Path) -> None: ...

    def load(self, path: Path) -> None: ...


class Surrogate(CostModel, Protocol):
    """A regressor that knows its uncertainty, and so which rows to measure together."""

    def propose(
        self,
        x: Matrix,
        offset: NDArray[np.float64],
        best: float,
        log_chance: NDArray[np.float64],
        n: int,
    ) -> NDArray[np.int64]:
        """`n` row numbers of `x`, by expected improvement on `best` (lower is better) plus the log
        chance of being valid; `offset` is added to the predictions."""
        ...


class VetoModel(CostModel, Protocol):
    """A classifier of validity that knows below which chance a config may be passed over."""

    @property
    def threshold(self) -> float: ...


class Learners(Protocol):
    """Where an explorer gets features and untrained models from."""

    def tree_features(self, problem: Problem, configs: Configs) -> tuple[Matrix, tuple[str, ...]]:
        """Features known before compiling, shape (configs, names), and their names: for trees."""
        ...

    def gp_features(self, problem: Problem, configs: Configs) -> tuple[Matrix, tuple[str, ...]]:
        """The same on a common scale, for models that go by distances."""
        ...

    def hidden_features(
        self, hidden: Matrix, names: tuple[str, ...]
    ) -> tuple[Matrix, tuple[str, ...]]:
        """Columns made of hidden features (rows, names), and their names."""
        ...

    def work(self, hidden: Matrix, names: tuple[str, ...]) -> NDArray[np.float64]:
        """How much a program has to do by its hidden features, shape (rows,): a log2 that ranks,
        before anything was measured."""
        ...

    def draft(self, names: tuple[str, ...]) -> CostModel:
        """A model of latency on hidden features of these names, for few points."""
        ...

    def regressor(self, kind: str, seed: int, **parameters: float) -> CostModel: ...

    def classifier(self, kind: str, seed: int, **parameters: float) -> CostModel: ...

    def validity(self, seed: int, **parameters: float) -> VetoModel: ...

    def surrogate(self, seed: int, **parameters: float) -> Surrogate: ...
