"""The champion: P, V and A of a comparison's best run, in MLflow's registry, to start from again.

Each workload on a target and space has one registered model a role, and the alias `champion` names
the version in force. What lies there are native files (XGBoost's UBJSON, LightGBM's text, NPZ);
they are read as such, and nothing in the registry chooses what code reads them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow.artifacts
import numpy as np
import pandas as pd
from mlflow.entities import LoggedModelStatus
from mlflow.exceptions import MlflowException
from mlflow.models import Model, infer_signature
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode
from mlflow.tracking import MlflowClient

from evaluation.compare.plan import ComparisonPlan, Job, TunerConfig
from evaluation.compare.standings import Results, Standing
from evaluation.compare.trace import ROLES, FitRecord, fit_records, hidden_names, plain, traced
from models import LEARNERS
from models.learners import build
from search import ExplorerState, Problem, problem_of
from search.learning import CostModel
from search.loop import Session
from targets.base import Target
from targets.errors import TilewrightError
from targets.files import Json, canonical, digest
from targets.titles import title
from targets.workload import Workload
from tasks.comparison_records import LoggedComparison

ALIAS = "champion"
ABOUT = "tilewright"  # key of what the model's metadata say
_EXAMPLES = 5
_ROLES = ROLES | {"draft": "The draft that Model A builds on"}
_DATA = {".ubj": "model.ubj", ".txt": "model.lgb"}  # where its flavour keeps a booster


class ChampionError(TilewrightError):
    """A champion that is missing or does not fit."""


@dataclass(frozen=True)
class Crowned:
    """A registered model of the best run."""

    role: str
    workload: str
    name: str
    version: str


def model_name(target: str, space: str, workload: Workload, role: str) -> str:
    """What a model is registered as."""
    return f"tilewright.{target}.{space}.{workload.id}.{role}"


# -- crowning ------------------------------------------------------------------------------------


def crown(
    plan: ComparisonPlan,
    results: Results,
    rows: Sequence[Standing],
    logged: LoggedComparison,
    progress: Callable[[str], None] = lambda workload: None,
) -> list[Crowned]:
    """Register the models of the best run on every workload: of the best tuner that learns P and
    V, the seed that came nearest the optimum, or there first. Runs are repeated to get at their
    models. Empty if no tuner learns both."""
    crowned: list[Crowned] = []
    for row in rows:
        tuner_config = plan.tuner_configs[results.tuners.index(row.tuner)]
        for name, _ in plan.test_bed.workloads:
            progress(name)
            job = Job(tuner_config, name, _best_seed(results, row.tuner, name))
            state, learned = _learned(plan, job)
            if not {"P", "V"} <= set(learned):
                break  # this tuner has no such models
            run_id = logged.seeds[tuner_config.label, job.seed]
            crowned += _register(plan, job, state, learned, logged, run_id)
        if crowned:
            break
    return crowned


def _best_seed(results: Results, tuner: str, workload: str) -> int:
    k, w = results.tuners.index(tuner), results.workloads.index(workload)
    regret, trials = results.regret[k, w, :, -1], results.trials_to_goal[k, w]
    return results.seeds[int(np.lexsort((trials, regret))[0])]


def _learned(plan: ComparisonPlan, job: Job) -> tuple[ExplorerState, dict[str, FitRecord]]:
    """A run's models and what they were fitted on, by running it again."""
    target = plan.test_bed.open(job.workload)
    workload = dict(plan.test_bed.workloads)[job.workload]
    problem = problem_of(target, workload, job.seed)
    explorer, _ = traced(job.tuner_config, target, problem)
    session = Session(target, problem, explorer, ExplorerState())
    while (left := plan.trials - len(session.history)) > 0:
        if session.advance(min(plan.batch, left)) is None:
            break
    learned = {role: each for role, each in fit_records(session.state).items() if role in _ROLES}
    return plain(session.state), {role: each for role, each in learned.items() if len(each.x)}


def _register(
    plan: ComparisonPlan,
    job: Job,
    state: ExplorerState,
    learned: dict[str, FitRecord],
    logged: LoggedComparison,
    run_id: str,
) -> list[Crowned]:
    client = MlflowClient()
    test_bed = plan.test_bed
    workload = dict(test_bed.workloads)[job.workload]
    target = test_bed.open(job.workload)
    about = _about(target, problem_of(target, workload, job.seed), job.tuner_config)
    crowned = []
    for role, fit_record in learned.items():
        name = model_name(target.name, test_bed.space, workload, role)
        model = state.models[role]
        entry = client.create_logged_model(
            logged.experiment_id, name=f"{role} {workload.id}", source_run_id=run_id
        )
        frame = pd.DataFrame(fit_record.x[:_EXAMPLES], columns=list(fit_record.names))
        with tempfile.TemporaryDirectory() as folder:
            flavour, arguments = _flavour(model, fit_record.names, Path(folder))
            Model.log(
                None, flavour, run_id=run_id, model_id=entry.model_id, name=entry.name,
                input_example=frame,
                signature=infer_signature(frame, model.predict(fit_record.x[:_EXAMPLES])),
                metadata={ABOUT: about | {"role": role, **_kind(model)}}, **arguments,
            )  # fmt: skip
        client.finalize_logged_model(entry.model_id, LoggedModelStatus.READY)
        text = f"{_ROLES[role]}. Workload {title(job.workload, workload)} on {target.name}."
        version = _new_version(client, name, text, entry.model_id, run_id)
        crowned.append(Crowned(role, job.workload, name, version))
    return crowned


def _new_version(client: MlflowClient, name: str, text: str, model_id: str, run_id: str) -> str:
    """Put a logged model into the registry, as the champion."""
    try:
        client.create_registered_model(name, description=text)
    except MlflowException as error:
        if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS):
            raise
    source = f"models:/{model_id}"
    made = client.create_model_version(name, source, run_id=run_id, model_id=model_id)
    client.set_registered_model_alias(name, ALIAS, made.version)
    return str(made.version)


def _flavour(
    model: CostModel, names: Sequence[str], folder: Path
) -> tuple[ModuleType, dict[str, Any]]:
    """MLflow's flavour for a model, and what to log. Requirements are named: inferring them would
    load the model in a new process for ten seconds."""
    booster = getattr(model, "booster", None)
    if booster is not None and model.suffix == ".ubj":
        import mlflow.xgboost
        import xgboost

        booster.feature_names = list(names)
        needs = [f"xgboost-cpu=={xgboost.__version__}"]
        return mlflow.xgboost, {
            "xgb_model": booster, "model_format": "ubj", "pip_requirements": needs,
        }  # fmt: skip
    if booster is not None:
        import lightgbm
        import mlflow.lightgbm

        needs = [f"lightgbm=={lightgbm.__version__}"]
        return mlflow.lightgbm, {"lgb_model": booster, "pip_requirements": needs}
    import mlflow.pyfunc

    path = folder / f"{model.kind}{model.suffix}"
    model.save(path)
    return mlflow.pyfunc, {
        "loader_module": "tasks.native_flavour", "data_path": str(path),
        "pip_requirements": [f"numpy=={np.__version__}"],
    }  # fmt: skip


# -- starting from one ---------------------------------------------------------------------------


def load_champion(
    target: Target, space: str, workload: Workload, tuner: str
) -> ExplorerState | None:
    """The champion's models for a workload; None if there is no champion. Raises `ChampionError`
    if it was learned by another tuner, or from other features than this code computes."""
    found = {}
    for role in _ROLES:
        model = _load(model_name(target.name, space, workload, role), target, workload, tuner)
        if model is not None:
            found[role] = model
    return ExplorerState(found) if found else None


def registered(target: str, space: str, workload: Workload) -> bool:
    """Whether a workload has a champion."""
    client = MlflowClient()
    return any(
        _version(client, model_name(target, space, workload, role)) is not None for role in _ROLES
    )


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
    if about.get("features") != _features(target, problem_of(target, workload, 0)):
        raise ChampionError(
            f"the champion for {workload} was learned from other features than this version of "
            "tilewright computes; repeat 'tilewright compare', or leave out --warm-start"
        )
    model = build(str(about["kind"]), 0, bool(about["classify"]), {})
    with tempfile.TemporaryDirectory() as folder:
        local = mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=folder)
        model.load(Path(local) / _DATA.get(model.suffix, f"data/{model.kind}{model.suffix}"))
    return model


def _version(client: MlflowClient, name: str) -> str | None:
    try:
        return str(client.get_model_version_by_alias(name, ALIAS).version)
    except MlflowException:
        return None


# -- what a model is for -------------------------------------------------------------------------


def _about(target: Target, problem: Problem, tuner_config: TunerConfig) -> dict[str, Json]:
    return {
        "tuner": tuner_config.tuner,
        "options": tuner_config.explorer.options.model_dump(mode="json"),
        "workload": str(problem.workload),
        "target": target.name,
        "target_fingerprint": target.fingerprint,
        "features": _features(target, problem),
    }


def _kind(model: CostModel) -> dict[str, Json]:
    return {"kind": model.kind, "classify": bool(getattr(model, "classify", False))}


def _features(target: Target, problem: Problem) -> str:
    """Digest of the names of all columns a model of this problem may have."""
    space = problem.space
    flat = np.zeros(1, np.int64) if space.listed is None else np.array(space.listed[:1])
    config = space.unravel(flat)
    names = [LEARNERS.tree_features(problem, config)[1], LEARNERS.gp_features(problem, config)[1]]
    counts = hidden_names(target, problem)
    names += [counts, LEARNERS.hidden_features(np.zeros((1, len(counts))), counts)[1]]
    if problem.estimate is not None:
        names.append(problem.estimate(config)[1])
    return digest(canonical([list(each) for each in names]))[:16]
