"""The champion: P, V and A of a comparison's best run, in MLflow's registry, to start from again.

Each tuner has one registered model a role of a workload on a target and space; the alias `champion`
names the version in force, on the models of the best tuner alone. What lies there are native files
(XGBoost's UBJSON, LightGBM's text, NPZ); they are read as such, and nothing in the registry chooses
what code reads them. `tasks.crowning` puts them there.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import mlflow.artifacts
import numpy as np
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
from targets.workload import DEFAULT_EPILOGUE, Workload
from tasks.flavours import file_of

ALIAS = "champion"
PREFIX = "tilewright"
ABOUT = "tilewright"  # key of what the model's metadata say
CHAMPION_ROLES = ROLES | {"draft": "The draft that Model A builds on"}


class ChampionError(TilewrightError):
    """A champion that is missing or does not fit."""


@dataclass(frozen=True)
class ModelPlace:
    """Where in the registry the models of a workload are, those of all tuners and roles."""

    target: str
    space: str
    workload: Workload

    def name(self, tuner: str, role: str) -> str:
        """What a model is registered as: `tilewright.vta-pynq.template.conv2d-n1-c16-….default.P`,
        with the beginning of the workload's id where its epilogue is not the usual one."""
        workload = re.sub("[^a-z0-9]+", "-", str(self.workload).replace("=", ""))
        if self.workload.epilogue != DEFAULT_EPILOGUE:
            workload += f"-{self.workload.id[:6]}"
        return ".".join([PREFIX, *map(_plain, (self.target, self.space)), workload, tuner, role])

    @property
    def tags(self) -> dict[str, str]:
        """What is found again by: equal for all models of this place."""
        return {
            "target": self.target,
            "space": self.space,
            "workload": str(self.workload),
            "workload_id": self.workload.id,
        }


def load_champion(
    target: Target, space: str, workload: Workload, tuner: str
) -> ExplorerState | None:
    """The champion's models for a workload; None if there is no champion. Raises `ChampionError`
    if it was learned by another tuner, or from other features than this code computes."""
    found = {}
    for name in champions(ModelPlace(target.name, space, workload)):
        role, model = _load(name, target, workload, tuner)
        found[role] = model
    return ExplorerState(found) if found else None


def registered(target: str, space: str, workload: Workload) -> bool:
    """Whether a workload has a champion."""
    return bool(champions(ModelPlace(target, space, workload)))


def champions(place: ModelPlace) -> list[str]:
    """The names of the models there that have a champion."""
    of = f"tags.workload_id = '{place.workload.id}'"
    return [
        model.name
        for model in MlflowClient().search_registered_models(of)
        if ALIAS in model.aliases and place.tags.items() <= model.tags.items()
    ]


def _plain(text: str) -> str:
    """A part of a model's name: `/` and `:` are not allowed, and `.` parts them."""
    return re.sub(r"[^\w-]+", "-", text)


def _load(name: str, target: Target, workload: Workload, tuner: str) -> tuple[str, CostModel]:
    """A model and its role."""
    version = MlflowClient().get_model_version_by_alias(name, ALIAS).version
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
    return str(about["role"]), model


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
