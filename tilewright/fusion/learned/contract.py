"""Defines the contract of a model of labelled graphs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.fusion.graph_tensors import GraphTable


class ModelError(TilewrightError):
    """A model that cannot be read, or learned from other numbers."""


class GraphModel(Protocol):
    """Says what labelled graphs take, layer by layer."""

    kind: str

    def fit(self, graphs: Sequence[GraphTable]) -> None:
        """Learn from graphs whose `stream` is known, anew unless the model is frozen."""

    def predict(self, graphs: Sequence[GraphTable]) -> NDArray[np.float64]:
        """Cycles of each graph, shape (graphs,). Raises `ModelError` for other columns than it was
        fitted on."""

    def freeze(self) -> None:
        """From now on what was learned is kept, and `fit` corrects it only."""

    def save(self, path: Path) -> None:
        """Write one file. Raises `OSError`."""

    def load(self, path: Path) -> None:
        """Read it again. Raises `ModelError` for a file that holds no such model, and `OSError`."""


def labels_of(graph: GraphTable) -> NDArray[np.float64]:
    """What a model learns of each layer, shape (n,): by which factor it takes more cycles in its
    stream than by itself or by estimate, log2."""
    return np.log2(np.maximum(graph.stream, 1.0) / np.maximum(graph.prior, 1.0))
