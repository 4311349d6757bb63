"""Defines the stages of a tuning run: the steps whose results Prefect stores.

For each stage, the module defines the key of its result, the name of its task runs, and the line
that it logs. The steps themselves are in `search.round_steps`, `tuning.network` and
`tuning.verification`. The runners in `tasks.runner_prefect` look up stages here.

The arguments of a stage are its complete input, so each stage may run in a different process than
the previous one. The log line depends only on the result and the arguments, so a cached stage logs
the same line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any

from tilewright.core.files import Json, digest
from tilewright.networks.epilogues import EpilogueMode
from tilewright.reports.number_format import decimal, integer_text, milliseconds, percent, pluralise
from tilewright.search import Batch, Candidates, ExplorerState, Known, Round, Session, round_steps
from tilewright.search.explorer import veto_threshold
from tilewright.targets.base import Measurements, Target
from tilewright.targets.capabilities import Latency
from tilewright.tasks.cached_task import Key, Stage
from tilewright.tasks.codecs import digest_of
from tilewright.tuning import network, verification
from tilewright.tuning.network import Extracted, InputShapes, Model
from tilewright.tuning.results import Baselines, Schedule
from tilewright.tuning.tuning_task import TuningTask

NO_TARGET = ""
LEARNER_PACKAGES = ("xgboost-cpu", "lightgbm", "numpy")


def _model_key(source: str, input_shapes: InputShapes) -> Key:
    """Return the key of the stage that imports a model. It covers the digest of the model file.

    Args:
        source: path or name of the network.
        input_shapes: fixed shape of each dynamic input, by name.
    """
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
    if task.cluster:  # the batch has no programs, because they stay on the workers
        inputs["programs"] = "elsewhere"
    return Key("lower_and_choose", 4, task.target.fingerprint, inputs)


def _measure_key(task: TuningTask, batch: Batch, known: Known) -> Key:
    """Return the key of measuring a batch. The result is reused only on a deterministic target.

    Args:
        task: the workload, target and tuner.
        batch: the lowered configs to measure.
        known: trials that are already known; they do not affect the key.
    """
    target = task.target
    inputs: dict[str, Json] = {
        "workload": task.workload.id, "configs": digest(batch.rows.configs.tobytes()),
    }  # fmt: skip
    return Key("measure_batch", 4, target.fingerprint, inputs, target.deterministic)


ERRORS = {"P_rmse": "P {} log2", "A_rmse": "A {} log2", "V_brier": "V {} (Brier)"}
"""Display text for each error of `search.model_errors`."""


def _model_line(found: Model, *_: object) -> str:
    """Return a log line such as `digits_cnn, content 2c26b46b68ff`."""
    return f"{found.name}, content {found.digest[:12]}"


def _extracted_line(found: Extracted, *_: object) -> str:
    """Return a log line about the workloads and their share of the network's multiply-accumulates.

    Example: `12 workloads, 99.9 % of the network's 1,814,073,344 multiply-accumulates`.
    """
    share = found.macs["offloaded"] / max(found.macs["total"], 1)
    return (
        f"{_count(len(found.subgraphs), 'workload')}, {percent(share)} of the network's "
        f"{integer_text(found.macs['total'])} multiply-accumulates"
    )


def _baselines_line(found: Baselines, *_: object) -> str:
    """Return a log line such as `fallback 12,049 cycles, rule 1,124 cycles`."""
    parts = []
    if found.fallback is not None:
        parts.append(f"fallback {latency_text(found.fallback)}")
    if found.baseline is not None:
        parts.append(f"rule {latency_text(found.baseline.latency)}")
    return ", ".join(parts) or "the target has no rule schedule"


def _mismatches_line(count: int | None, *_: object) -> str:
    """Return a log line such as `0 of its outputs differ from the integer reference`.

    Args:
        count: number of wrong outputs; None if the target cannot run a schedule on data, which the
            line then says.
    """
    if count is None:
        return "not verified: the target cannot run a schedule on data"
    return f"{count} of its outputs differ from the integer reference"


def _generated_line(candidates: Candidates, *_: object) -> str:
    """Return a log line such as `1,500 candidates`."""
    return _count(len(candidates), "candidate")


def _filtered_line(kept: Candidates, task: TuningTask, session: Session, *_: object) -> str:
    """Return a log line about the candidates that were kept, and those that Model V rejected.

    Example: `kept 64 candidates, vetoed 12 with a probability of being valid below 0.31`.
    """
    text = f"kept {_count(len(kept), 'candidate')}, vetoed {integer_text(kept.vetoed)}"
    if not kept.vetoed:
        return text
    below = veto_threshold(task.explorer, session.models)
    return f"{text} with a probability of being valid below {below:.2g}"


def _lowered_line(batch: Batch, *_: object) -> str:
    """Return a log line about the configs that were lowered and the causes of failures.

    Example: `lowered 64 configs, chose 16; 7 failed to compile: 5 × …, 2 × …`.
    """
    chosen = len(batch.rows)
    text = (
        f"lowered {_count(batch.unmeasured_count + chosen, 'config')}, chose {integer_text(chosen)}"
    )
    return text + _failure_text(batch.reasons, "failed to compile")


def _simulated_line(measured: Measurements, *_: object) -> str:
    """Return a log line about the trials of a batch and the causes of failures.

    Example: `16 trials, 14 valid; 2 failed: 2 × input tiles exceed the scratchpad`.
    """
    valid = f"{_count(len(measured), 'trial')}, {integer_text(int(measured.valid.sum()))} valid"
    return valid + _failure_text(map(str, measured.reason[~measured.valid]), "failed")


def _learned_line(models: ExplorerState, *_: object) -> str:
    """Return a log line with the roles of the trained models, such as `models: A, P, V`.

    The line is "" if no model was trained.
    """
    return f"models: {', '.join(sorted(models.models))}" if models.models else ""


def round_line(done: Round) -> str:
    """Return a log line about a round: the best latency so far, and the errors of the models."""
    model_errors = done.model_errors
    errors = [
        form.format(decimal(model_errors[name]))
        for name, form in ERRORS.items()
        if name in model_errors
    ]
    text = "no valid schedule so far"
    if done.best is not None:
        text = f"best so far {latency_text(done.best)}"
    return text + (f"; errors of the models: {', '.join(errors)}" if errors else "")


def latency_text(latency: Latency) -> str:
    """Format a latency: `1,124 cycles`, or `0.850 ms` if the target does not count cycles."""
    if latency.cycles > 0:
        return f"{integer_text(latency.cycles)} cycles"
    return f"{milliseconds(latency.seconds)} ms"


def _failure_text(reasons: Iterable[str], how: str) -> str:
    """Count the reasons of failures, and return them as text with the most frequent reason first.

    Args:
        reasons: reason of each config; "" is ignored.
        how: words that introduce the reasons, such as "failed to compile".

    Returns:
        The text, which begins with a semicolon; "" if there are no failures.
    """
    counts = Counter(reason for reason in reasons if reason)
    if not counts:
        return ""
    message = ", ".join(f"{integer_text(n)} × {reason}" for reason, n in counts.most_common())
    return f"; {integer_text(counts.total())} {how}: {message}"


def _count(count: int, noun: str) -> str:
    return f"{integer_text(count)} {pluralise(count, noun)}"


_STAGES: tuple[Stage[..., Any], ...] = (
    Stage(network.import_model, "import {source}", _model_key, _model_line),
    Stage(
        network.extract_subgraphs,
        "subgraphs of {model.name}",
        _extracted_key,
        _extracted_line,
    ),
    Stage(
        verification.measure_baseline, "{layer}: rule and fallback", _baseline_key, _baselines_line
    ),
    Stage(round_steps.begin_models, "{layer}: begin", _begin_key),
    Stage(
        round_steps.retrain_models,
        "{layer} round {round}: retrain",
        _retrain_key,
        _learned_line,
    ),
    Stage(
        round_steps.generate_candidates,
        "{layer} round {round}: candidates",
        _generate_key,
        _generated_line,
    ),
    Stage(
        round_steps.filter_candidates,
        "{layer} round {round}: filter",
        _filter_key,
        _filtered_line,
    ),
    Stage(
        round_steps.lower_and_choose,
        "{layer} round {round}: lower",
        _lower_key,
        _lowered_line,
    ),
    Stage(
        round_steps.measure_batch,
        "{layer} round {round}: simulate",
        _measure_key,
        _simulated_line,
    ),
    Stage(verification.verify_schedule, "{layer}: verify", _verify_key, _mismatches_line),
)
STAGES: Mapping[Callable[..., object], Stage[..., Any]] = {stage.step: stage for stage in _STAGES}
"""The stage of each step whose result is cached, by step."""
