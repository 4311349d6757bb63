"""Performs the steps of a tuning round as Prefect tasks, one for each of `search.round_steps`.

Tasks take and give records (`tasks.cached_task`). Each may run in another process than the one
before: its arguments are all it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

from tilewright.core.files import Json, digest
from tilewright.search import Batch, Candidates, ExplorerState, History, Known, round_steps
from tilewright.search.explorer import veto_threshold
from tilewright.targets.base import Measurements
from tilewright.tasks import codecs, round_log
from tilewright.tasks.cached_task import Key, Made, Record, Stage, say, stage
from tilewright.tuning.tuning_task import TuningTask

LEARNER_PACKAGES = ("xgboost-cpu", "lightgbm", "numpy")


def _begin_key(layer: str, study: TuningTask, state: Record[ExplorerState]) -> Key:
    inputs: dict[str, Json] = {"study": study.describe(), "state": state.key}
    return Key("begin", 1, study.target.fingerprint, inputs)


@stage("{layer}: begin", _begin_key, codecs.STATE)
def begin(layer: str, study: TuningTask, state: Record[ExplorerState]) -> Made[ExplorerState]:
    """What the tuner knows before the first round. Some tuners look at much of a space for it."""
    return Made(round_steps.begin(study.setting, state.value), {})


def _generate_key(
    layer: str, study: TuningTask, round_index: int,
    state: Record[ExplorerState], history: Record[History], n: int,
) -> Key:  # fmt: skip
    inputs: dict[str, Json] = {
        "study": study.describe(),
        "state": state.key,
        "history": history.key,
        "n": n,
    }
    return Key("generate_candidates", 2, study.target.fingerprint, inputs)


@stage(
    "{layer} round {round_index}: candidates", _generate_key, codecs.CANDIDATES,
    round_log.generated,
)  # fmt: skip
def generate_candidates(
    layer: str, study: TuningTask, round_index: int,
    state: Record[ExplorerState], history: Record[History], n: int,
) -> Made[Candidates]:  # fmt: skip
    """What the explorer would try next, best first."""
    named = round_steps.generate_candidates(study.setting, state.value, history.value, n)
    return Made(named, {"candidates": len(named)})


def _filter_key(
    layer: str, study: TuningTask, round_index: int, state: Record[ExplorerState],
    history: Record[History], named: Record[Candidates], n: int,
) -> Key:  # fmt: skip
    inputs: dict[str, Json] = {"study": study.describe(), "named": named.key, "n": n}
    return Key("filter_candidates", 3, study.target.fingerprint, inputs)


@stage("{layer} round {round_index}: filter", _filter_key, codecs.CANDIDATES, round_log.filtered)
def filter_candidates(
    layer: str, study: TuningTask, round_index: int, state: Record[ExplorerState],
    history: Record[History], named: Record[Candidates], n: int,
) -> Made[Candidates]:  # fmt: skip
    """Model V's veto."""
    kept = round_steps.filter_candidates(study.setting, state.value, history.value, named.value, n)
    facts: dict[str, Json] = {"kept": len(kept), "vetoed": kept.vetoed}
    if kept.vetoed:
        facts["below"] = veto_threshold(study.explorer, state.value)
    return Made(kept, facts)


def _lower_key(
    layer: str, study: TuningTask, round_index: int, state: Record[ExplorerState],
    history: Record[History], kept: Record[Candidates], n: int,
) -> Key:  # fmt: skip
    inputs: dict[str, Json] = {"study": study.describe(), "kept": kept.key, "n": n}
    if study.cluster:  # the workers have the programs
        inputs["programs"] = "elsewhere"
    return Key("lower_candidates", 3, study.target.fingerprint, inputs)


@stage("{layer} round {round_index}: lower", _lower_key, codecs.BATCH, round_log.lowered)
def lower_candidates(
    layer: str, study: TuningTask, round_index: int, state: Record[ExplorerState],
    history: Record[History], kept: Record[Candidates], n: int,
) -> Made[Batch]:  # fmt: skip
    """Compile what is left and let Model A choose the batch."""
    batch = round_steps.lower_candidates(study.setting, state.value, history.value, kept.value, n)
    facts: dict[str, Json] = {
        "lowered": batch.lowered,
        "chosen": len(batch.rows),
        "failures": round_log.reasons(np.array(batch.reasons, dtype=object)),
        "configs": digest(batch.rows.configs.tobytes()),
    }
    return Made(batch, facts)


def _simulate_key(
    layer: str, study: TuningTask, round_index: int, history: Record[History],
    batch: Record[Batch], known: Known,
) -> Key:  # fmt: skip
    target = study.target
    inputs: dict[str, Json] = {"workload": study.workload.id, "configs": batch.facts["configs"]}
    return Key("simulate_batch", 3, target.fingerprint, inputs, target.deterministic)


@stage(
    "{layer} round {round_index}: simulate", _simulate_key, codecs.MEASUREMENTS,
    round_log.simulated,
)  # fmt: skip
def simulate_batch(
    layer: str, study: TuningTask, round_index: int, history: Record[History],
    batch: Record[Batch], known: Known,
) -> Made[Measurements]:  # fmt: skip
    """Measure the batch; `known` measurements are not repeated, and neither are those of a batch
    of the same configs, unless its target gives other numbers each time."""
    measured = round_steps.simulate_batch(study.setting, history.value, batch.value, known)
    say(round_log.outcome(history.value, batch.value, measured))
    facts: dict[str, Json] = {
        "trials": len(measured),
        "valid": int(measured.valid.sum()),
        "failures": round_log.reasons(measured.reason[~measured.valid]),
    }
    return Made(measured, facts)


def _retrain_key(
    layer: str, study: TuningTask, round_index: int, state: Record[ExplorerState],
    history: Record[History],
) -> Key:  # fmt: skip
    inputs: dict[str, Json] = {
        "study": study.describe(),
        "state": state.key,
        "history": history.key,
        "learners": {name: version(name) for name in LEARNER_PACKAGES},
    }
    return Key("retrain_models", 2, study.target.fingerprint, inputs)


@stage("{layer} round {round_index}: retrain", _retrain_key, codecs.STATE, round_log.learned)
def retrain_models(
    layer: str, study: TuningTask, round_index: int, state: Record[ExplorerState],
    history: Record[History],
) -> Made[ExplorerState]:  # fmt: skip
    """P, V and A after this round."""
    learned = round_steps.retrain_models(study.setting, state.value, history.value)
    return Made(learned, {"models": list[Json](sorted(learned.models))})


TASKS: dict[Callable[..., object], Stage[..., Any]] = {
    round_steps.generate_candidates: generate_candidates,
    round_steps.filter_candidates: filter_candidates,
    round_steps.lower_candidates: lower_candidates,
    round_steps.simulate_batch: simulate_batch,
    round_steps.retrain_models: retrain_models,
}
"""By step its task."""
