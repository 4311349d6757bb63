"""MLflow loader of models that have no flavour of their own, from their file `<kind>.npz`.

MLflow calls `_load_pyfunc` of the loader module that a model names. No pickle is involved.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tilewright.models.model_registry import load_model
from tilewright.search.cost_model_protocols import CostModel
from tilewright.targets.features import Features


class NativePredictor:
    """A cost model with MLflow's prediction interface."""

    def __init__(self, model: CostModel) -> None:
        self.model = model

    def predict(
        self, model_input: pd.DataFrame, params: dict[str, object] | None = None
    ) -> NDArray[np.float64]:
        """Return the prediction of `CostModel.predict` for each row."""
        rows = model_input.to_numpy(dtype=np.float64)
        return self.model.predict(Features.from_names(rows, list(map(str, model_input.columns))))


def _load_pyfunc(path: str) -> NativePredictor:
    return NativePredictor(load_model(Path(path).stem, False, (), Path(path)))
