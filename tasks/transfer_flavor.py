"""Lets MLflow serve transferred models, from their own folder.

MLflow calls `_load_pyfunc` of the module a model names as its loader; no pickle is involved.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from tilewright.models.transfer.model import Transferred
from tilewright.models.transfer.registry import load_model
from tilewright.targets.features import Features


class TransferPredictor:
    """A transferred model that answers data frames."""

    def __init__(self, model: Transferred) -> None:
        self.model = model

    def predict(
        self, model_input: pd.DataFrame, params: dict[str, object] | None = None
    ) -> pd.DataFrame:
        """What `Transferred.predict` says of each row, a column each."""
        rows = model_input.to_numpy(dtype=np.float64)
        found = self.model.predict(Features.of(rows, list(map(str, model_input.columns))))
        return pd.DataFrame(
            {"log_latency": found.log_latency, "spread": found.spread, "chance": found.chance}
        )


def _load_pyfunc(path: str) -> TransferPredictor:
    return TransferPredictor(load_model(Path(path), trusted=True))  # from the user's own registry
