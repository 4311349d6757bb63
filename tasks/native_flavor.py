"""MLflow loader of cost models that MLflow has no flavour for.

A model is stored as the file `<kind>.npz` that it saved itself. MLflow calls `_load_pyfunc` of the
loader module that a logged model names. No pickle is involved.
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
    """A cost model with the prediction interface of MLflow's `pyfunc` models."""

    def __init__(self, model: CostModel) -> None:
        self.model = model

    def predict(
        self, model_input: pd.DataFrame, params: dict[str, object] | None = None
    ) -> NDArray[np.float64]:
        """Predict each row of a data frame with the cost model.

        Args:
            model_input: features, one column per feature name.
            params: ignored; MLflow's interface requires the parameter.

        Returns:
            Predictions of `CostModel.predict`, float64, shape (rows,).
        """
        rows = model_input.to_numpy(dtype=np.float64)
        return self.model.predict(Features.from_names(rows, list(map(str, model_input.columns))))


def _load_pyfunc(path: str) -> NativePredictor:
    return NativePredictor(load_model(Path(path).stem, False, (), Path(path)))
