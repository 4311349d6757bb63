"""Policy that proposes fusions: it predicts the probability that a fusion saves cycles.

The prediction uses features of the layers before and after fusing.
"""

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
"""Slope of the logistic function that converts log2(fused cycles / separate cycles) to a
probability. With this slope, saving 4 % of the cycles gives a probability of 0.9."""
_SEEN = 0.95
"""Probability of the better label of a unit (a group of fusion decisions) whose effect was
simulated."""
_ALIKE = {"log2 ratio": 0.1, "log2 cycles apart": 2.0}
"""Standard deviation of the Gaussian kernel that measures the similarity of units, by feature
column."""


class Policy:
    """Predicts which fusions save cycles, without simulating them.

    A decision unit is one fusion decision, or several that always have the same label. The
    prediction for a unit is the mean of two probabilities. The first is a logistic function of the
    estimated cycles with and without the fusion. The second comes from a trained model. Simulations
    of the current run correct the predictions for similar units.

    Args:
        seed: seed of the model.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._model: XGBoost | None = None

    def fit(self, x: Features, better: NDArray[np.bool_]) -> None:
        """Train the model on decision units of other networks.

        Args:
            x: features, one row per unit.
            better: True where fusing saved cycles, bool array of shape (rows,).
        """
        self._model = XGBoost(self.seed, True, dict(_SETTINGS))
        self._model.fit(x, better.astype(np.float64))

    def chances(
        self,
        problem: FusionProblem,
        figures: Figures,
        labels: Labelling,
        seen: dict[DecisionGroup, bool],
    ) -> NDArray[np.float64]:
        """Return for each decision unit the probability that fusing it saves cycles.

        All other decisions stay as in `labels`. A unit in `seen` gets 0.95 or 0.05.

        Args:
            problem: the possible fusions of a network.
            figures: features of the layers.
            labels: the labelling to start from: one bool per possible fusion.
            seen: for units whose effect is known from simulations of this run, whether fusing saved
                cycles.

        Returns:
            Float array of shape (units,).

        Raises:
            ModelError: the model was trained on other features.
        """
        x = unit_features(problem, figures, labels)
        ratio = x.matrix[:, x.names.index("log2 ratio")]
        result = 1.0 / (1.0 + np.exp(np.clip(_STEEP * ratio, -30, 30)))
        if self._model is not None:
            try:
                result = (result + self._model.predict(x)) / 2
            except WrongFeatures as error:
                raise ModelError(str(error)) from None
        told = np.array([seen.get(unit, np.nan) for unit in list_units(problem)], np.float64)
        return np.where(
            np.isnan(told), correct_chances(x, result, told), np.abs(told - (1.0 - _SEEN))
        )

    def labels(self, problem: FusionProblem, chances: NDArray[np.float64]) -> Labelling:
        """Return the labelling (one bool per fusion) that fuses units with a probability above 0.5.

        Args:
            problem: the possible fusions of a network.
            chances: probability that fusing saves cycles, float array of shape (units,).
        """
        return fuse_units(problem, chances > 0.5)

    def save(self, path: Path) -> None:
        """Write the model to a file.

        Raises:
            ModelError: the model is not trained.
            OSError: the file cannot be written.
        """
        if self._model is None:
            raise ModelError("this policy was not trained; fit it before saving it")
        self._model.save(path)

    def load(self, path: Path) -> None:
        """Read the model from a file.

        Raises:
            ModelError: the file does not contain such a model.
            OSError: the file cannot be read.
        """
        model = XGBoost(self.seed, True, {})
        try:
            model.load(path)
        except ValueError as error:
            raise ModelError(
                f"{path} does not contain such a policy: {error}; train it again"
            ) from None
        self._model = model


def correct_chances(
    x: Features, chances: NDArray[np.float64], told: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Correct predicted probabilities by the known outcomes of similar units of the same kind.

    Each unit with a known outcome contributes its own prediction error, weighted by similarity (a
    Gaussian kernel, 1 for identical features). The prediction itself counts like one more unit with
    error 0 and weight 1.

    Args:
        x: features of the units.
        chances: predicted probabilities that fusing saves cycles, float array of shape (units,).
        told: 1 if fusing saved cycles, 0 if it did not, NaN if unknown, float array of shape
            (units,).

    Returns:
        The corrected probabilities, float array of shape (units,).
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
    result: NDArray[np.float64] = np.clip(chances + near @ misjudged / (1 + near.sum(axis=1)), 0, 1)
    return result


def fuse_units(problem: FusionProblem, fused: NDArray[np.bool_]) -> Labelling:
    """Return the labelling (one bool per fusion) that fuses exactly the selected decision units.

    Args:
        problem: the possible fusions of a network.
        fused: whether each unit is fused, bool array of shape (units,).
    """
    labels = problem.none
    for unit, label in zip(list_units(problem), fused.tolist(), strict=True):
        labels = label_unit(labels, unit, label)
    return labels
