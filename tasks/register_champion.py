"""Registers champions, the models of a comparison's best tuner, in MLflow's model registry.

`tasks.champion_registry` loads these models.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlflow.artifacts
import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode
from mlflow.tracking import MlflowClient

from tilewright.core.files import Json
from tilewright.core.formats import CHAMPION
from tilewright.evaluation.compare.leaderboard import LeaderboardRow, Results
from tilewright.evaluation.compare.plan import ComparisonJob, ComparisonPlan
from tilewright.flows.tuning import learn, tune_session
from tilewright.search import LocalRunner, make_task, problem_of
from tilewright.search.cost_model_protocols import CostModel
from tilewright.targets.display_names import title
from tilewright.targets.workload import Workload
from tilewright.tasks.champion_registry import (
    ABOUT,
    ALIAS,
    DIGEST,
    ModelPlace,
    champion_file,
    champions,
    digest_of,
    features_of,
)
from tilewright.tasks.logged_models import (
    MODEL_ROLES,
    LearnedModel,
    ModelEntry,
    learned_models,
    log_model,
    model_name,
)


@dataclass(frozen=True)
class RegisteredModel:
    """A model of the best tuner that was added to MLflow's model registry.

    Attributes:
        role: role of the model, such as "P".
        workload: name of the workload in the comparison.
        name: name of the registered model.
        version: its version.
    """

    role: str
    workload: str
    name: str
    version: str


def register_champion(
    plan: ComparisonPlan,
    results: Results,
    rows: Sequence[LeaderboardRow],
    logged: Mapping[tuple[str, int], str],
    progress: Callable[[str], None] = lambda workload: None,
) -> list[RegisteredModel]:
    """Register the models of the best tuner for every workload of a comparison.

    The best tuner is the first one on the leaderboard that has Models P and V. For each workload,
    the models come from the tuner's best seed: the one with the lowest final regret or, among
    equals, the one that reached the goal after the fewest trials. The run with that seed is
    repeated to get its models.

    Args:
        plan: plan of the comparison.
        results: results of all runs.
        rows: the leaderboard, best tuner first.
        logged: MLflow run ID of each tuner and seed.
        progress: function that is called with the name of each workload.

    Returns:
        The registered models; empty if no tuner has both models.
    """
    registered: list[RegisteredModel] = []
    for row in rows:
        tuner_config = plan.tuner_configs[results.tuners.index(row.tuner)]
        for name, _ in plan.test_bed.workloads:
            progress(name)
            job = ComparisonJob(tuner_config, name, _best_seed(results, row.tuner, name))
            learned = _learned_models_of(plan, job)
            if not {"P", "V"} <= set(learned):
                break  # this tuner does not have both models; try the next one
            run_id = logged[tuner_config.label, job.seed]
            registered += _register(plan, job, learned, run_id)
        if registered:
            break
    return registered


def _best_seed(results: Results, tuner: str, workload: str) -> int:
    k, w = results.tuners.index(tuner), results.workloads.index(workload)
    regret, trials = results.regret[k, w, :, -1], results.trials_to_goal[k, w]
    return results.seeds[int(np.lexsort((trials, regret))[0])]


def _learned_models_of(plan: ComparisonPlan, job: ComparisonJob) -> dict[str, LearnedModel]:
    """Repeat a run of the comparison, and return its models by role.

    Models that the tuner uses without features of trials are left out.

    Args:
        plan: plan of the comparison.
        job: the run to repeat: a tuner, a workload and a seed.
    """
    workload = dict(plan.test_bed.workloads)[job.workload]
    explorer = job.tuner_config.explorer
    task = make_task(plan.test_bed.open(job.workload), workload, explorer, job.seed)
    session = learn(LocalRunner(), task, tune_session(task, plan.trials, plan.batch))
    return {
        model.role: model
        for model in learned_models(task, session)
        if model.features is not None and len(model.features)
    }


def _register(
    plan: ComparisonPlan,
    job: ComparisonJob,
    learned: dict[str, LearnedModel],
    run_id: str,
) -> list[RegisteredModel]:
    client, test_bed = MlflowClient(), plan.test_bed
    workload = dict(test_bed.workloads)[job.workload]
    target = test_bed.open(job.workload)
    about, tuner = _describe_model(plan, job, workload), job.tuner_config.tuner
    place = ModelPlace(target.name, test_bed.space, workload)
    _dethrone(client, place)
    registered = []
    for role, model in learned.items():
        name = place.name(tuner, role)
        described = about | {"version": CHAMPION.written, "role": role, **_kind(model.model)}
        metadata: dict[str, Json] = {ABOUT: described}
        entry = ModelEntry(model_name(role, (), workload), run_id, metadata=metadata)
        model_id = log_model(client, entry, model)
        text = (
            f"{MODEL_ROLES[role]}. Workload {title(job.workload, workload)} on {target.name}, "
            f"space {test_bed.space}, trained by tuner {tuner}."
        )
        provide(client, name, text, place.tags | {"tuner": tuner, "role": role})
        version = _new_version(client, name, model_id, run_id, _digest(model_id))
        registered.append(RegisteredModel(role, job.workload, name, version))
    return registered


def _dethrone(client: MlflowClient, place: ModelPlace) -> None:
    """Remove the alias `champion` from a workload's registered models, whose versions are kept."""
    for name in champions(place):
        client.delete_registered_model_alias(name, ALIAS)


def provide(client: MlflowClient, name: str, text: str, tags: dict[str, str]) -> None:
    """Create a registered model in MLflow, unless a registered model with this name exists.

    Args:
        client: MLflow client.
        name: name of the registered model.
        text: description.
        tags: tags.
    """
    try:
        client.create_registered_model(name, tags=tags, description=text)
    except MlflowException as error:
        if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS):
            raise


def _digest(model_id: str) -> str:
    """Compute the digest of a logged model with `champion_registry.digest_of`."""
    with tempfile.TemporaryDirectory() as folder:
        uri = f"models:/{model_id}"
        local = mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=folder)
        return digest_of(*champion_file(Path(local)))


def _new_version(client: MlflowClient, name: str, model_id: str, run_id: str, digest: str) -> str:
    """Add a logged model to the registry, mark it as the champion, and return its version.

    Args:
        client: MLflow client.
        name: name of the registered model.
        model_id: ID of the logged model.
        run_id: MLflow run that trained the model.
        digest: digest of the model's metadata and file, which is stored as a tag.
    """
    source, tags = f"models:/{model_id}", {DIGEST: digest}
    made = client.create_model_version(name, source, run_id=run_id, model_id=model_id, tags=tags)
    client.set_registered_model_alias(name, ALIAS, made.version)
    return str(made.version)


def _describe_model(
    plan: ComparisonPlan, job: ComparisonJob, workload: Workload
) -> dict[str, Json]:
    """Return metadata about the tuner, workload and target for which a model was trained.

    Args:
        plan: plan of the comparison.
        job: the run in which the model was trained.
        workload: workload of that run.
    """
    target, tuner_config = plan.test_bed.open(job.workload), job.tuner_config
    return {
        "tuner": tuner_config.tuner,
        "options": tuner_config.explorer.options.model_dump(mode="json"),
        "workload": str(workload),
        "target": target.name,
        "target_fingerprint": target.fingerprint,
        "features": features_of(target, problem_of(target, workload, 0)),
    }


def _kind(model: CostModel) -> dict[str, Json]:
    """Return the model's type, whether it classifies, and its columns, as entries of the metadata.

    `load_champion` creates an empty model from these entries before it loads the file.
    """
    return {
        "kind": model.kind,
        "classify": bool(getattr(model, "classify", False)),
        "columns": list(model.columns),
    }
