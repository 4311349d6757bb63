"""Policy: how likely a decision is better fused, from features of the layers around it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.fusion.learned.graph_model import ModelError
from tilewright.fusion.model_features import (
    KINDS,
    DecisionGroup,
    Figures,
    label_unit,
    list_units,
    unit_features,
)
from tilewright.fusion.problem import FusionProblem, Labelling
from tilewright.models.base_model import WrongFeatures
from tilewright.models.trees import XGBoost
from tilewright.targets.features import Features

_SETTINGS = {"rounds": 80.0, "max_depth": 4.0, "eta": 0.15, "min_child_weight": 2.0}
_STEEP = 40.0
"""How sure the figures are: at a gain of 4 % of the cycles, nine to one."""
_SEEN = 0.95
"""How sure it is of what was seen to help."""
_ALIKE = {"log2 ratio": 0.1, "log2 cycles apart": 2.0}
"""How far apart, by columns, units of a kind still tell of each other."""


class Policy:
    """Labels of units, of one network after the other. The figures say fused where the layers take
    fewer cycles together; what was learned has as much to say as they. What a run has seen corrects
    both where it turned out otherwise, for units like those it was seen of."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._model: XGBoost | None = None

    def fit(self, x: Features, better: NDArray[np.bool_]) -> None:
        """Learn from units (rows,) of other networks whether each was `better` fused, (rows,)."""
        self._model = XGBoost(self.seed, True, dict(_SETTINGS))
        self._model.fit(x, better.astype(np.float64))

    def chances(
        self,
        problem: FusionProblem,
        figures: Figures,
        labels: Labelling,
        seen: dict[DecisionGroup, bool],
    ) -> NDArray[np.float64]:
        """That each unit is better fused, shape (units,), all else as labelled. `seen` are those of
        which this run knows, and from which it learns about others. Raises `ModelError` for a model
        that learned from other figures."""
        x = unit_features(problem, figures, labels)
        ratio = x.matrix[:, x.names.index("log2 ratio")]
        found = 1.0 / (1.0 + np.exp(np.clip(_STEEP * ratio, -30, 30)))
        if self._model is not None:
            try:
                found = (found + self._model.predict(x)) / 2
            except WrongFeatures as error:
                raise ModelError(str(error)) from None
        told = np.array([seen.get(unit, np.nan) for unit in list_units(problem)], np.float64)
        return np.where(
            np.isnan(told), correct_chances(x, found, told), np.abs(told - (1.0 - _SEEN))
        )

    def labels(self, problem: FusionProblem, chances: NDArray[np.float64]) -> Labelling:
        """What is more likely than not, of chances (units,)."""
        return fuse_units(problem, chances > 0.5)

    def save(self, path: Path) -> None:
        """Write one file. Raises `ModelError` where nothing was learned, `OSError`."""
        if self._model is None:
            raise ModelError("this policy has learned nothing; fit it before it is saved")
        self._model.save(path)

    def load(self, path: Path) -> None:
        """Read it again. Raises `ModelError` for a file that holds no such model, `OSError`."""
        model = XGBoost(self.seed, True, {})
        try:
            model.load(path)
        except ValueError as error:
            raise ModelError(f"{path} holds no such policy: {error}; train it again") from None
        self._model = model


def correct_chances(
    x: Features, chances: NDArray[np.float64], told: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Correct the chances of units by what was seen of other units of their kind.

    Each seen unit adds the error of its own prediction, weighted by similarity. A unit that is
    exactly alike has as much weight as the prediction itself.

    Args:
        x: features of the units.
        chances: predicted chances that fusing helps, shape (units,).
        told: 1 where fusing helped, 0 where it did not, NaN where that is unknown, shape (units,).

    Returns:
        The corrected chances, shape (units,).
    """
    known = ~np.isnan(told)
    if not known.any():
        return chances
    kinds = x.matrix[:, [x.names.index(kind) for kind in KINDS]]
    near = (kinds @ kinds[known].T > 0).astype(np.float64)
    for name, scale in _ALIKE.items():
        column = x.matrix[:, x.names.index(name)] / scale
        near *= np.exp(-0.5 * (column[:, None] - column[known]) ** 2)
    misjudged = told[known] - chances[known]
    found: NDArray[np.float64] = np.clip(chances + near @ misjudged / (1 + near.sum(axis=1)), 0, 1)
    return found


def fuse_units(problem: FusionProblem, fused: NDArray[np.bool_]) -> Labelling:
    """Return the labelling that has these units fused, shape (units,), and no others."""
    labels = problem.none
    for unit, label in zip(list_units(problem), fused.tolist(), strict=True):
        labels = label_unit(labels, unit, label)
    return labels
