"""Predicts the cycles of fused networks with boosted trees, one layer at a time.

The trees are pretrained on other networks. A second set of trees corrects them with the networks
that the current run simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.fusion.model_features import GraphTable
from tilewright.models.base_model import WrongFeatures
from tilewright.models.trees import XGBoost
from tilewright.targets.features import Features

_LEARN = {"rounds": 100.0, "max_depth": 5.0, "eta": 0.12, "min_child_weight": 2.0}
_CORRECT = {"rounds": 60.0, "max_depth": 6.0, "eta": 0.3, "min_child_weight": 1.0}


class ModelError(TilewrightError):
    """Raised if a model file cannot be read, or a model was trained on other features."""


def layer_labels(graph: GraphTable) -> NDArray[np.float64]:
    """Return the values that the model learns to predict, one per layer, float array of shape (n,).

    A value is the log2 of a ratio. The numerator is the layer's cycles within its command stream,
    where layers overlap. The denominator is the cycles of the layer when it runs alone, exact or
    estimated.

    Args:
        graph: a simulated network with n layers.
    """
    return np.log2(np.maximum(graph.stream, 1.0) / np.maximum(graph.prior, 1.0))


class GraphModel:
    """Predicts the cycles of fused networks with boosted trees, one layer at a time.

    The first `fit` trains the base model, which `save` writes. After `load` or `freeze`, each `fit`
    trains a correction that is added to the unchanged base model.

    Args:
        seed: seed of the trees.
    """

    kind = "trees"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._first: XGBoost | None = None
        self._correction: XGBoost | None = None
        self._read = False

    def fit(self, graphs: Sequence[GraphTable]) -> None:
        """Train the model on simulated networks.

        If the model is frozen, only a correction is trained. It replaces an earlier correction.

        Args:
            graphs: networks whose `stream` cycles are known.
        """
        x, y = _rows(graphs), np.concatenate([layer_labels(graph) for graph in graphs])
        if self._first is None or not self._read:
            self._first = XGBoost(self.seed, False, dict(_LEARN))
            self._first.fit(x, y)
            self._correction = None
            return
        self._correction = XGBoost(self.seed, False, dict(_CORRECT))
        self._correction.fit(x, y - self._predict_uncorrected(x))

    def predict(self, graphs: Sequence[GraphTable]) -> NDArray[np.float64]:
        """Return the predicted cycles of each network, float array of shape (graphs,).

        Args:
            graphs: labelled networks, simulated or not.

        Raises:
            ModelError: the model was trained on other columns.
        """
        x = _rows(graphs)
        factor = np.exp2(
            self._predict_uncorrected(x) if self._first is not None else np.zeros(len(x))
        )
        if self._correction is not None:
            factor *= np.exp2(self._correction.predict(x))
        cycles = factor * np.concatenate([graph.prior for graph in graphs])
        sizes = np.array([len(graph.prior) for graph in graphs])
        which = np.repeat(np.arange(len(graphs)), sizes)
        return np.bincount(which, cycles, len(graphs)).astype(np.float64)

    def freeze(self) -> None:
        """Keep the trained model unchanged: further calls of `fit` only train a correction."""
        self._read = self._first is not None

    def save(self, path: Path) -> None:
        """Write the base model to a file, without the correction.

        Raises:
            ModelError: the model is not trained.
            OSError: the file cannot be written.
        """
        if self._first is None:
            raise ModelError("this model was not trained; fit it before saving it")
        self._first.save(path)

    def load(self, path: Path) -> None:
        """Read the base model from a file, and freeze it.

        Raises:
            ModelError: the file does not contain such a model.
            OSError: the file cannot be read.
        """
        try:
            model = XGBoost(self.seed, False, {})
            model.load(path)
        except ValueError as error:
            raise ModelError(
                f"{path} does not contain this kind of model: {error}; train it again"
            ) from None
        self._first, self._read = model, True

    def _predict_uncorrected(self, x: Features) -> NDArray[np.float64]:
        """Return the predictions of the base model, float array of shape (rows,).

        Args:
            x: features, one row per layer.
        """
        assert self._first is not None
        try:
            return self._first.predict(x)
        except WrongFeatures as error:
            raise ModelError(str(error)) from None


def _rows(graphs: Sequence[GraphTable]) -> Features:
    return Features.from_names(np.concatenate([graph.nodes for graph in graphs]), graphs[0].columns)
