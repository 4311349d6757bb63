"""Saves learned models in MLflow's flavours: boosters in their library's own format, all others as
the file they save. No pickle is involved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow
import numpy as np
from mlflow.utils import requirements_utils

from tilewright.core.lazy_module import lazy_module
from tilewright.search.cost_model_protocols import Boosted, CostModel, VetoModel

lightgbm, xgboost = lazy_module("lightgbm"), lazy_module("xgboost")

BOOSTER_FILES = {".ubj": "model.ubj", ".txt": "model.lgb"}
"""Where a flavour keeps a booster, by the suffix of the model's own file."""


@dataclass(frozen=True)
class Flavoured:
    """What `mlflow.models.Model.log` takes: the flavour and its arguments. Requirements are named:
    inferring them would load the model in a new process for ten seconds."""

    flavour: ModuleType
    arguments: dict[str, object]


def booster_of(model: CostModel) -> Any:
    """The boosted trees of a model, an object of their library; None if it is of another kind.
    Those of a veto hold its threshold, which may not have been needed yet."""
    if isinstance(model, VetoModel):
        _ = model.threshold
    return model.booster if isinstance(model, Boosted) else None


def survey_no_packages() -> None:
    """MLflow reads the file lists of all installed packages, for a second, to find the modules of
    those that a model requires: here the names are the distributions' own."""
    if requirements_utils._MODULES_TO_PACKAGES is None:
        requirements_utils._MODULES_TO_PACKAGES = {}  # type: ignore[assignment]


def flavoured(model: CostModel, folder: Path) -> Flavoured:
    """Any model; one that is no booster is saved in `folder` and read by `tasks.native_flavor`."""
    survey_no_packages()
    booster = booster_of(model)
    if booster is not None and model.kind == "lightgbm":
        needs = [f"lightgbm=={lightgbm.__version__}"]
        return Flavoured(mlflow.lightgbm, {"lgb_model": booster, "pip_requirements": needs})
    if booster is not None:
        booster.feature_names = list(model.columns) or None
        needs = [f"xgboost-cpu=={xgboost.__version__}"]
        return Flavoured(
            mlflow.xgboost,
            {"xgb_model": booster, "model_format": "ubj", "pip_requirements": needs},
        )
    path = folder / f"{model.kind}{model.suffix}"
    model.save(path)
    return Flavoured(
        mlflow.pyfunc,
        {
            "loader_module": "tilewright.tasks.native_flavor", "data_path": str(path),
            "pip_requirements": [f"numpy=={np.__version__}"],
        },
    )  # fmt: skip


def file_of(model: CostModel) -> str:
    """Where a logged model keeps its file, below its folder."""
    return BOOSTER_FILES.get(model.suffix, f"data/{model.kind}{model.suffix}")
