"""MLflow loader of transfer models, which are stored as folders of their own format.

MLflow calls `_load_pyfunc` of the loader module that a logged model names. No pickle is involved.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from tilewright.models.transfer.model import Transferred
from tilewright.models.transfer.registry import load_model
from tilewright.targets.features import Features


class TransferPredictor:
    """A transfer model with the prediction interface of MLflow's `pyfunc` models."""

    def __init__(self, model: Transferred) -> None:
        self.model = model

    def predict(
        self, model_input: pd.DataFrame, params: dict[str, object] | None = None
    ) -> pd.DataFrame:
        """Predict each row of a data frame with the transfer model.

        Args:
            model_input: features, one column per feature name.
            params: ignored; MLflow's interface requires the parameter.

        Returns:
            The columns `log_latency`, `spread` and `chance` of `Transferred.predict`, one row per
            input row.
        """
        rows = model_input.to_numpy(dtype=np.float64)
        prediction = self.model.predict(
            Features.from_names(rows, list(map(str, model_input.columns)))
        )
        return pd.DataFrame(
            {
                "log_latency": prediction.log_latency,
                "spread": prediction.spread,
                "chance": prediction.chance,
            }
        )


def _load_pyfunc(path: str) -> TransferPredictor:
    return TransferPredictor(load_model(Path(path), trusted=True))  # from the user's own registry
