"""Logs learned models with a run in MLflow, in the flavour of their library.

A logged model has a signature of named features, example rows, the predicted quantity with its
unit, and its training data. Boosted trees are saved in the format of their library, and all other
models as the file that they save themselves. No pickle is involved.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus
from mlflow.models import Model, ModelSignature
from mlflow.tracking import MlflowClient
from mlflow.types import ColSpec, DataType, Schema
from mlflow.utils import requirements_utils

from tilewright.core.files import Json
from tilewright.core.lazy_module import lazy_module
from tilewright.search import Session, Task
from tilewright.search.cost_model_protocols import Boosted, CostModel, VetoModel
from tilewright.search.explorer import ROLES
from tilewright.search.history import trials_of
from tilewright.targets.display_names import layer_name
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

EXAMPLES = 5
"""Number of feature rows that are logged as the model's input example."""
MODEL_ROLES = ROLES | {
    "draft": "Model P of this workload, which Model A corrects",
    "shared_draft": "Model P of other workloads of the run",
    "shared_A": "Model A of other workloads of the run",
    "compiles": "Part of Model V: probability that a config compiles",
    "runs": "Part of Model V: probability that a compiled program is valid",
}
_CHANCES = ("V", "compiles", "runs")
VERSION_TAG = "tilewright.version"
CHANCE, LATENCY = "probability of being valid", "log2 {unit}"
CORRECTION = "log2 ({unit} / estimate)"
OWN_SCORE = "score of the tuner's own model"
"""Quantities that models predict, with their units. The text becomes the name of the output column
in the signature of the MLflow model."""


@dataclass(frozen=True)
class LearnedModel:
    """A model that was trained in a run, with the information that is logged to MLflow.

    Attributes:
        role: role of the model in the tuner, such as "P".
        model: the model.
        predicts: predicted quantity with its unit.
        features: feature rows of the valid trials, from which example rows are taken; None if the
            tuner uses the model only within its own search.
    """

    role: str
    model: CostModel
    predicts: str
    features: Features | None = None

    @property
    def signature(self) -> ModelSignature:
        """MLflow signature: names of the feature columns, and the predicted quantity."""
        inputs, output = (
            Schema([*(ColSpec(DataType.double, name) for name in names)])
            for names in (self.model.columns, [self.predicts])
        )
        return ModelSignature(inputs, output)

    @property
    def example(self) -> pd.DataFrame | None:
        """First rows of the features as a data frame; None if there are no features."""
        if self.features is None or not len(self.features):
            return None
        rows = self.features.rows(np.arange(min(EXAMPLES, len(self.features))))
        return pd.DataFrame(rows.matrix, columns=list(rows.names))


def learned_models(task: Task, session: Session) -> list[LearnedModel]:
    """Return the models of a session in their present state.

    Args:
        task: the workload, target and tuner.
        session: the session.

    Returns:
        One entry per model, sorted by role, with features of the session's valid trials.
    """
    state, history, problem = session.models, session.history, task.problem
    asked = task.explorer.model_inputs(problem, state, history, trials_of(problem, history))
    unit = "cycles" if (history.cycles > 0).any() else "seconds"
    models = []
    for role, model in sorted(state.models.items()):
        features, text = None, OWN_SCORE
        if role in asked:
            features, offset = asked[role].features, asked[role].offset
            text = CHANCE if role in _CHANCES else CORRECTION if np.abs(offset).any() else LATENCY
        models.append(LearnedModel(role, model, text.format(unit=unit), features))
    return models


def model_name(role: str, names: tuple[str, ...], workload: Workload) -> str:
    """Return the name under which a model is logged, such as `P conv1 520d58bc76c3`.

    The name is unique within a run. Characters that MLflow does not allow, such as `/`, are
    replaced.

    Args:
        role: role of the model in the tuner.
        names: names of the layers with the workload.
        workload: the workload.
    """
    title = re.sub(r"[^\w×→@ +-]+", "-", layer_name(names, workload))
    return f"{role} {title} {workload.id}"


@dataclass(frozen=True)
class ModelEntry:
    """Name, run, version and tags under which a model is logged.

    Attributes:
        name: name of the logged model.
        run_id: MLflow run that it belongs to.
        version: identifies the training data, or "". A model with a version is not logged again if
            the same version is already logged.
        tags: tags of the logged model.
        metadata: metadata that is stored in the model's folder.
    """

    name: str
    run_id: str
    version: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Json] = field(default_factory=dict)


def log_model(client: MlflowClient, entry: ModelEntry, learned: LearnedModel) -> str:
    """Log a model to MLflow, unless the same version is already logged.

    Other versions with the same name in the run are deleted.

    Args:
        client: MLflow client.
        entry: name, run, version and tags of the logged model.
        learned: the model with examples of its features.

    Returns:
        The ID of the logged model.

    Raises:
        MlflowException: the server fails.
    """
    experiment = str(client.get_run(entry.run_id).info.experiment_id)
    wanted = f"source_run_id = '{entry.run_id}' AND name = '{entry.name}'"
    known = list(client.search_logged_models([experiment], filter_string=wanted))
    # If logging was interrupted, for example by a full disk, the model is known but not ready.
    for item in known:
        ready = item.status == LoggedModelStatus.READY
        if entry.version and ready and item.tags.get(VERSION_TAG) == entry.version:
            return str(item.model_id)
    model, example = learned.model, learned.example
    made = client.create_logged_model(
        experiment, name=entry.name, source_run_id=entry.run_id,
        tags={**entry.tags, VERSION_TAG: entry.version},
        params={
            "role": MODEL_ROLES[learned.role], "kind": model.kind, "predicts": learned.predicts,
            "features": str(len(model.columns)),
        },
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        what = choose_flavour(model, Path(folder))
        upload_model(
            client, made, what, input_example=example, signature=learned.signature,
            metadata=dict(entry.metadata),
        )  # fmt: skip
    for item in known:
        client.delete_logged_model(item.model_id)
    return str(made.model_id)


def upload_model(
    client: MlflowClient, entry: LoggedModel, what: Flavoured, **arguments: object
) -> None:
    """Save a model in its MLflow flavour, upload its files and mark its entry as ready.

    `mlflow.models.Model.log` takes five times as long, because it does more: it copies all metrics
    of the run to the model with one query per metric, and it loads the model again to predict the
    example.

    Args:
        client: MLflow client.
        entry: logged model without files.
        what: flavour of the model, with its arguments.
        arguments: further arguments of the flavour's `save_model`.

    Raises:
        MlflowException: the server fails.
    """
    survey_no_packages()
    run_id, model_id = str(entry.source_run_id), str(entry.model_id)
    described = Model(run_id=run_id, model_id=model_id, artifact_path=entry.artifact_location)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        what.flavour.save_model(
            path=str(path), mlflow_model=described, **what.arguments, **arguments
        )
        client.log_model_artifacts(model_id, str(path))
    client.log_outputs(run_id, [LoggedModelOutput(model_id, step=0)])
    client.finalize_logged_model(model_id, LoggedModelStatus.READY)


lightgbm, xgboost = lazy_module("lightgbm"), lazy_module("xgboost")

BOOSTER_FILES = {".ubj": "model.ubj", ".txt": "model.lgb"}
"""File name of a booster in an MLflow flavour, by the suffix of the file that Tilewright saves."""


@dataclass(frozen=True)
class Flavoured:
    """MLflow flavour of a model, with the arguments of the flavour's `save_model`.

    The arguments name the required packages explicitly. MLflow would need ten seconds to find the
    packages itself, by loading the model in a new process.

    Attributes:
        flavour: MLflow module of the model's library, or `mlflow.pyfunc` for models without such a
            module.
        arguments: arguments of `save_model` that hold the model and its requirements.
    """

    flavour: ModuleType
    arguments: dict[str, object]


def booster_of(model: CostModel) -> Any:
    """Return the XGBoost or LightGBM booster of a model; None if it has no boosted trees.

    Model V, which predicts validity, stores its rejection threshold in the booster. The threshold
    is therefore calibrated here if that was not done yet.
    """
    if isinstance(model, VetoModel):
        _ = model.threshold
    return model.booster if isinstance(model, Boosted) else None


def survey_no_packages() -> None:
    """Prevent MLflow from reading the file lists of all installed packages, which takes a second.

    MLflow reads them to find the distribution that provides a module. That is unnecessary here,
    because the requirements of logged models name distributions.
    """
    if requirements_utils._MODULES_TO_PACKAGES is None:
        requirements_utils._MODULES_TO_PACKAGES = {}  # type: ignore[assignment]


def choose_flavour(model: CostModel, folder: Path) -> Flavoured:
    """Choose the MLflow flavour of a model.

    Args:
        model: the model.
        folder: folder in which a model without a booster is saved. `tasks.native_flavor` reads its
            file.

    Returns:
        The flavour, with the arguments for logging the model.
    """
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
    """Return the path of a model's own file within the folder of the logged model.

    The path depends on the file suffix of the model's type.
    """
    return BOOSTER_FILES.get(model.suffix, f"data/{model.kind}{model.suffix}")
