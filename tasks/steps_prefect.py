"""Lists the steps whose results Prefect keeps: what each depends on, and how its task is shown.

The steps themselves are in `search.round_steps`, `tuning.network` and `tuning.verification`. The
runners of `tasks.runner_prefect` look here for the step that they are to run. Each stage may run in
another process than the one before: its arguments are all it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from tilewright.core.files import Json, digest
from tilewright.networks.epilogues import EpilogueMode
from tilewright.search import Batch, Candidates, Known, Session, round_steps
from tilewright.targets.base import Target
from tilewright.tasks import round_log
from tilewright.tasks.cached_task import Key, Stage
from tilewright.tasks.codecs import digest_of
from tilewright.tuning import network, verification
from tilewright.tuning.network import InputShapes, Model
from tilewright.tuning.results import Schedule
from tilewright.tuning.tuning_task import TuningTask

NO_TARGET = ""
LEARNER_PACKAGES = ("xgboost-cpu", "lightgbm", "numpy")


def _model_key(source: str, input_shapes: InputShapes) -> Key:
    """It changes with the content of the file."""
    shapes = {name: list(shape) for name, shape in input_shapes.items()}
    inputs: dict[str, Json] = {
        "source": source, "content": network.source_digest(source), "shapes": shapes,
    }  # fmt: skip
    return Key("import_model", 1, NO_TARGET, inputs)


def _extracted_key(
    model: Model, target: Target, epilogue: EpilogueMode, max_waste: float,
    input_shapes: InputShapes, calibration: str = "",
) -> Key:  # fmt: skip
    shapes = {name: list(shape) for name, shape in input_shapes.items()}
    inputs: dict[str, Json] = {
        "model": digest_of(model), "shapes": shapes, "epilogue": epilogue, "max_waste": max_waste,
        "calibration": network.calibration_digest(calibration),
        "weights": network.weights_digest(model.source),
    }  # fmt: skip
    return Key("extract_subgraphs", 5, target.fingerprint, inputs)


def _baseline_key(task: TuningTask) -> Key:
    target = task.target
    inputs: dict[str, Json] = {"workload": task.workload.id}
    return Key("measure_baseline", 4, target.fingerprint, inputs, target.deterministic)


def _verify_key(task: TuningTask, chosen: Schedule) -> Key:
    target = task.target
    inputs: dict[str, Json] = {
        "workload": task.workload.id,
        "space": chosen.space,
        "config": list(chosen.config),
    }
    return Key("verify_schedule", 1, target.fingerprint, inputs, target.deterministic)


def _begin_key(task: TuningTask, session: Session) -> Key:
    inputs: dict[str, Json] = {"task": task.describe(), "models": digest_of(session.models)}
    return Key("begin_models", 1, task.target.fingerprint, inputs)


def _retrain_key(task: TuningTask, session: Session) -> Key:
    inputs: dict[str, Json] = {
        "task": task.describe(),
        "models": digest_of(session.models),
        "history": digest_of(session.unlearned[0]),
        "learners": {name: version(name) for name in LEARNER_PACKAGES},
    }
    return Key("retrain_models", 3, task.target.fingerprint, inputs)


def _session_inputs(task: TuningTask, session: Session, n: int) -> dict[str, Json]:
    return {
        "task": task.describe(),
        "models": digest_of(session.models),
        "history": digest_of(session.history),
        "n": n,
    }


def _generate_key(task: TuningTask, session: Session, n: int) -> Key:
    inputs = _session_inputs(task, session, n)
    return Key("generate_candidates", 3, task.target.fingerprint, inputs)


def _filter_key(task: TuningTask, session: Session, candidates: Candidates, n: int) -> Key:
    inputs = _session_inputs(task, session, n) | {"candidates": digest_of(candidates)}
    return Key("filter_candidates", 4, task.target.fingerprint, inputs)


def _lower_key(task: TuningTask, session: Session, kept: Candidates, n: int) -> Key:
    inputs = _session_inputs(task, session, n) | {"kept": digest_of(kept)}
    if task.cluster:  # the workers have the programs
        inputs["programs"] = "elsewhere"
    return Key("lower_and_choose", 4, task.target.fingerprint, inputs)


def _measure_key(task: TuningTask, batch: Batch, known: Known) -> Key:
    """Measurements of the same configs are the same, unless the target gives other numbers each
    time."""
    target = task.target
    inputs: dict[str, Json] = {
        "workload": task.workload.id, "configs": digest(batch.rows.configs.tobytes()),
    }  # fmt: skip
    return Key("measure_batch", 4, target.fingerprint, inputs, target.deterministic)


_STAGES: tuple[Stage[..., Any], ...] = (
    Stage(network.import_model, "import {source}", _model_key, round_log.model),
    Stage(
        network.extract_subgraphs,
        "subgraphs of {model.name}",
        _extracted_key,
        round_log.extracted,
    ),
    Stage(verification.measure_baseline, "{layer}: baseline", _baseline_key, round_log.baselines),
    Stage(round_steps.begin_models, "{layer}: begin", _begin_key),
    Stage(
        round_steps.retrain_models,
        "{layer} round {round}: retrain",
        _retrain_key,
        round_log.learned,
    ),
    Stage(
        round_steps.generate_candidates,
        "{layer} round {round}: candidates",
        _generate_key,
        round_log.generated,
    ),
    Stage(
        round_steps.filter_candidates,
        "{layer} round {round}: filter",
        _filter_key,
        round_log.filtered,
    ),
    Stage(
        round_steps.lower_and_choose,
        "{layer} round {round}: lower",
        _lower_key,
        round_log.lowered,
    ),
    Stage(
        round_steps.measure_batch,
        "{layer} round {round}: simulate",
        _measure_key,
        round_log.simulated,
    ),
    Stage(verification.verify_schedule, "{layer}: verify", _verify_key, round_log.mismatches),
)
STAGES: Mapping[Callable[..., object], Stage[..., Any]] = {each.step: each for each in _STAGES}
"""The stage of each step whose result is kept."""
