"""Loads champions, the models of the best tuner of a comparison, from MLflow's model registry.

For each workload on a target and space, a tuner has one registered model per role. A role such as
"P" (predicts latency) or "V" (predicts validity) is the purpose of a model in its tuner. The alias
`champion` marks the current version; only models of the best tuner have this alias. The files have
native formats (XGBoost's UBJSON, LightGBM's text, NPZ). Each version has a digest, which detects
damage.

The registry that a user chooses must be trusted, because XGBoost and LightGBM trust their files: a
crafted file can run code.

`tasks.register_champion` writes the models.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import mlflow.artifacts
import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.models.model import MLMODEL_FILE_NAME
from mlflow.tracking import MlflowClient
from mlflow.utils.yaml_utils import read_yaml
from pydantic import BaseModel, ConfigDict, Field

from tilewright.core.errors import TilewrightError, UnknownName
from tilewright.core.files import Json, canonical, digest
from tilewright.core.formats import CHAMPION
from tilewright.models import ModelLibrary
from tilewright.models.model_registry import build, load_model
from tilewright.search import ExplorerState, Problem, problem_of
from tilewright.search.cost_model_protocols import CostModel
from tilewright.targets.base import Target
from tilewright.targets.epilogue import DEFAULT_EPILOGUE
from tilewright.targets.workload import Workload
from tilewright.tasks import codecs
from tilewright.tasks.logged_models import file_of
from tilewright.tuning.tuning_task import TuningTask

ALIAS = "champion"
PREFIX = "tilewright"
ABOUT = "tilewright"  # key of our own entry in the model's metadata
DIGEST = "sha256"


class ChampionError(TilewrightError):
    """Raised if a champion is missing, damaged, or made for another tuner or other features."""


@dataclass(frozen=True)
class ModelPlace:
    """Target, schedule space and workload of registered models.

    The names of the models in MLflow's registry are derived from these three values.

    Attributes:
        target: name of the target.
        space: name of the schedule space.
        workload: the workload.
    """

    target: str
    space: str
    workload: Workload

    def name(self, tuner: str, role: str) -> str:
        """Return the name of a registered model.

        An example is `tilewright.vta-pynq.template.conv2d-n1-c16-….default.P`. If the workload's
        epilogue is not the default one, the beginning of the workload's ID is added to the name.

        Args:
            tuner: name of the tuner that trained the model.
            role: role of the model in the tuner, such as "P".
        """
        workload = re.sub("[^a-z0-9]+", "-", str(self.workload).replace("=", ""))
        if self.workload.epilogue != DEFAULT_EPILOGUE:
            workload += f"-{self.workload.id[:6]}"
        return ".".join(
            [PREFIX, *map(_name_part, (self.target, self.space)), workload, tuner, role]
        )

    @property
    def tags(self) -> dict[str, str]:
        """Tags of all registered models of the workload: target, space, workload and its ID."""
        return {
            "target": self.target,
            "space": self.space,
            "workload": str(self.workload),
            "workload_id": self.workload.id,
        }


def load_champion(
    target: Target, space: str, workload: Workload, tuner: str
) -> ExplorerState | None:
    """Load the models of a workload's champion, the best tuner of a comparison.

    Args:
        target: the target.
        space: name of the schedule space.
        workload: the workload.
        tuner: name of the tuner that will use the models.

    Returns:
        The models as a state of the tuner; None if there is no champion.

    Raises:
        ChampionError: the champion belongs to another tuner, has other features, or is damaged.
    """
    models = {}
    for name in champions(ModelPlace(target.name, space, workload)):
        role, model = _load(name, target, workload, tuner)
        models[role] = model
    return ExplorerState(models) if models else None


def has_champion(target: str, space: str, workload: Workload) -> bool:
    """Return whether the model registry has a champion for a workload.

    Args:
        target: name of the target.
        space: name of the schedule space.
        workload: the workload.
    """
    return bool(champions(ModelPlace(target, space, workload)))


def champions(place: ModelPlace) -> list[str]:
    """Return the names of a workload's registered models that have the alias `champion`.

    Args:
        place: target, schedule space and workload of the models.
    """
    of = f"tags.workload_id = '{place.workload.id}'"
    return [
        model.name
        for model in MlflowClient().search_registered_models(of)
        if ALIAS in model.aliases and place.tags.items() <= model.tags.items()
    ]


def _name_part(text: str) -> str:
    """Return a text without `/`, `:` and `.`, which a part of a model's name cannot contain.

    These characters are replaced. MLflow does not allow the first two; the dot separates the parts.
    """
    return re.sub(r"[^\w-]+", "-", text)


def _load(name: str, target: Target, workload: Workload, tuner: str) -> tuple[str, CostModel]:
    """Load a registered model, after checking that it fits the target, workload and tuner.

    Args:
        name: name of the registered model.
        target: the target.
        workload: the workload.
        tuner: name of the tuner that will use the model.

    Returns:
        The role of the model, such as "P", and the model.

    Raises:
        ChampionError: the model is damaged, belongs to another tuner or has other features.
    """
    registered = MlflowClient().get_model_version_by_alias(name, ALIAS)
    with tempfile.TemporaryDirectory() as folder:
        try:
            local = mlflow.artifacts.download_artifacts(
                artifact_uri=f"models:/{name}/{registered.version}", dst_path=folder
            )
            about, data = champion_file(Path(local))
        except (OSError, ValueError, MlflowException) as error:
            raise _damaged_error(workload, error) from None
        if registered.tags.get(DIGEST) != digest_of(about, data):
            raise _damaged_error(workload, "its content differs from the file that was registered")
        _check_meant_for(about, target, workload, tuner)
        path = Path(folder) / f"model{Path(about.file).suffix}"
        path.write_bytes(data)
        try:
            return about.role, load_model(about.kind, about.classify, about.columns, path)
        except (OSError, ValueError, KeyError, TilewrightError) as error:
            raise _damaged_error(workload, error) from None


def _damaged_error(workload: Workload, why: object) -> ChampionError:
    said = " ".join(str(why).split())[:200]
    return ChampionError(
        f"the champion for {workload} is damaged or was written by another version ({said}); "
        "repeat 'tilewright compare', or leave out --warm-start"
    )


def _check_meant_for(
    about: ChampionMetadata, target: Target, workload: Workload, tuner: str
) -> None:
    if about.tuner != tuner:
        raise ChampionError(
            f"the champion for {workload} was trained by the tuner '{about.tuner}', and "
            f"'{tuner}' cannot use its models; add --tuner {about.tuner}, or repeat "
            "'tilewright compare'"
        )
    if about.features != features_of(target, problem_of(target, workload, 0)):
        raise ChampionError(
            f"the champion for {workload} was trained on other features than this version of "
            "Tilewright computes; repeat 'tilewright compare', or leave out --warm-start"
        )


class ChampionMetadata(BaseModel):
    """Metadata file of a champion's model: its tuner, role, model type and feature columns."""

    model_config = ConfigDict(strict=True, extra="allow")

    tuner: Annotated[str, Field(max_length=200)]
    role: Literal["P", "V", "A", "draft", "compiles", "runs", "shared_draft", "shared_A"]
    kind: Annotated[str, Field(max_length=100)]
    classify: bool
    columns: list[str]
    features: Annotated[str, Field(max_length=100)]
    version: int = CHAMPION.written

    @property
    def file(self) -> str:
        """Path of the model's own file within the folder of the logged model.

        Raises:
            UnknownName: the kind of model is unknown.
        """
        return file_of(build(self.kind, 0, self.classify, {}))


def champion_file(folder: Path) -> tuple[ChampionMetadata, bytes]:
    """Read the metadata of a logged model and the bytes of its file.

    Args:
        folder: folder of the logged model.

    Returns:
        The metadata and the content of the model's own file.

    Raises:
        OSError: a file cannot be read.
        ValueError: the metadata is invalid or of an unsupported version.
    """
    try:
        # `Model.load` would look up the folder in the tracking store
        metadata = Model.from_dict(_yaml(folder)).metadata
    except Exception as error:  # YAML and MLflow raise errors of many classes
        raise ValueError(f"its metadata cannot be read: {error}") from None
    if not isinstance(metadata, dict):
        raise ValueError("it has no description")
    described = metadata.get(ABOUT)
    if isinstance(described, dict) and (
        why := CHAMPION.mismatch("it", CHAMPION.version_in(described))
    ):
        raise ValueError(why)
    try:
        about = ChampionMetadata.model_validate(described)
        return about, (folder / about.file).read_bytes()
    except UnknownName as error:
        raise ValueError(str(error)) from None


def _yaml(folder: Path) -> dict[str, Json]:
    result: dict[str, Json] = read_yaml(str(folder), MLMODEL_FILE_NAME)  # type: ignore[no-untyped-call]
    return result


def digest_of(about: ChampionMetadata, data: bytes) -> str:
    """Return the digest of a champion's metadata and file, which the registry stores as a tag.

    The digest detects damage. It does not detect forgery, because no secret is involved.

    Args:
        about: the metadata.
        data: content of the model's file.
    """
    return digest(canonical([about.model_dump(mode="json", exclude_unset=True), digest(data)]))


def features_of(target: Target, problem: Problem) -> str:
    """Return a digest of the names of all feature columns that a model may use.

    Models whose digest differs from that of a tuning problem cannot be used for it.

    Args:
        target: the target.
        problem: the tuning problem for which the model is trained.
    """
    space = problem.space
    flat = np.zeros(1, np.int64) if space.listed is None else np.array(space.listed[:1])
    config = space.unravel(flat)
    hidden = target.lower(problem.workload, config).hidden
    learners = ModelLibrary()
    views = [
        learners.tree_features(problem, config),
        learners.gp_features(problem, config),
        hidden,
        learners.hidden_features(hidden),
    ]
    if problem.estimate is not None:
        views.append(problem.estimate(config))
    return digest(canonical([list(view.names) for view in views]))[:16]


def champion_state(task: TuningTask) -> tuple[TuningTask, ExplorerState] | None:
    """Prepare a tuning task to start from the champion of its workload.

    The key of a task includes the models from which it starts. Its trials are therefore stored
    separately from the trials of the same task without a champion.

    Args:
        task: the task of a workload.

    Returns:
        The task that starts from the champion, and a state with the champion's models. None if
        there is no champion.

    Raises:
        ChampionError: the champion does not fit the task.
    """
    state = load_champion(task.target, task.space_name, task.workload, task.tuner)
    if state is None:
        return None
    return replace(task, start=codecs.digest_of(state)[:32]), state


def check_champions(tasks: Sequence[TuningTask]) -> None:
    """Check that at least one of the tasks has a champion for its workload.

    Args:
        tasks: the tasks, at least one.

    Raises:
        ChampionError: no workload has a champion.
    """
    if any(has_champion(s.target.name, s.space_name, s.workload) for s in tasks):
        return
    first = tasks[0]
    raise ChampionError(
        f"none of these workloads has a champion on {first.target.name} in the space "
        f"{first.space_name}; create champions with 'tilewright compare', or leave out "
        "--warm-start"
    )
