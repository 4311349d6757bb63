"""The champion: P, V and A of a comparison's best run, in MLflow's registry, to start from again.

Each workload on a target and space has one registered model a role, and the alias `champion` names
the version in force. What lies there are native files (XGBoost's UBJSON, LightGBM's text, NPZ);
they are read as such, and nothing in the registry chooses what code reads them. `tasks.crowning`
puts them there.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import mlflow.artifacts
import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.tracking import MlflowClient

from models import LEARNERS
from models.learners import build
from search import ExplorerState, Problem, problem_of
from search.explorer import ROLES
from search.learning import CostModel
from targets.base import Target
from targets.errors import TilewrightError
from targets.files import canonical, digest
from targets.workload import Workload
from tasks.flavours import file_of

ALIAS = "champion"
ABOUT = "tilewright"  # key of what the model's metadata say
CHAMPION_ROLES = ROLES | {"draft": "The draft that Model A builds on"}


class ChampionError(TilewrightError):
    """A champion that is missing or does not fit."""


def model_name(target: str, space: str, workload: Workload, role: str) -> str:
    """What a model is registered as."""
    return f"tilewright.{target}.{space}.{workload.id}.{role}"


def load_champion(
    target: Target, space: str, workload: Workload, tuner: str
) -> ExplorerState | None:
    """The champion's models for a workload; None if there is no champion. Raises `ChampionError`
    if it was learned by another tuner, or from other features than this code computes."""
    found = {}
    for role in CHAMPION_ROLES:
        model = _load(model_name(target.name, space, workload, role), target, workload, tuner)
        if model is not None:
            found[role] = model
    return ExplorerState(found) if found else None


def registered(target: str, space: str, workload: Workload) -> bool:
    """Whether a workload has a champion."""
    client = MlflowClient()
    names = (model_name(target, space, workload, role) for role in CHAMPION_ROLES)
    return any(_version(client, name) is not None for name in names)


def _load(name: str, target: Target, workload: Workload, tuner: str) -> CostModel | None:
    client = MlflowClient()
    version = _version(client, name)
    if version is None:
        return None
    uri = f"models:/{name}/{version}"
    about = dict(Model.load(uri).metadata or {}).get(ABOUT, {})
    if about.get("tuner") != tuner:
        raise ChampionError(
            f"the champion for {workload} was learned by '{about.get('tuner')}', whose models "
            f"'{tuner}' cannot use; add --tuner {about.get('tuner')}, or compare again"
        )
    if about.get("features") != features_of(target, problem_of(target, workload, 0)):
        raise ChampionError(
            f"the champion for {workload} was learned from other features than this version of "
            "tilewright computes; repeat 'tilewright compare', or leave out --warm-start"
        )
    model = build(str(about["kind"]), 0, bool(about["classify"]), {})
    with tempfile.TemporaryDirectory() as folder:
        local = mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=folder)
        model.load(Path(local) / file_of(model))
    model.columns = tuple(str(name) for name in about["columns"])
    return model


def _version(client: MlflowClient, name: str) -> str | None:
    try:
        return str(client.get_model_version_by_alias(name, ALIAS).version)
    except MlflowException:
        return None


def features_of(target: Target, problem: Problem) -> str:
    """Digest of the names of all columns a model of this problem may have."""
    space = problem.space
    flat = np.zeros(1, np.int64) if space.listed is None else np.array(space.listed[:1])
    config = space.unravel(flat)
    hidden = target.lower(problem.workload, config).hidden
    views = [
        LEARNERS.tree_features(problem, config),
        LEARNERS.gp_features(problem, config),
        hidden,
        LEARNERS.hidden_features(hidden),
    ]
    if problem.estimate is not None:
        views.append(problem.estimate(config))
    return digest(canonical([list(view.names) for view in views]))[:16]
