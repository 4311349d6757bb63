"""Performs the steps of a tuning round as Prefect tasks, one for each of `search.round_steps`.

Tasks take and give manifests; what these point to lies in the store. Each may run in another
process than the one before: its arguments are all it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np

from tilewright.core.files import Json, digest
from tilewright.search import Batch, Candidates, ExplorerState, History, Known, round_steps
from tilewright.search.explorer import veto_threshold
from tilewright.targets.base import Measurements
from tilewright.tasks import codecs, round_log
from tilewright.tasks.artifact_store import CacheUse, Manifest
from tilewright.tasks.cached_task import Key, Made, Result, Stage, reuse_or_do, say, stage
from tilewright.tuning.tuning_task import TuningTask

LEARNER_PACKAGES = ("xgboost-cpu", "lightgbm", "numpy")


@stage("{layer} round {round_index}: candidates")
def generate_candidates(
    cache: CacheUse,
    layer: str,
    study: TuningTask,
    round_index: int,
    state: Manifest,
    history: Manifest,
    n: int,
) -> Result:
    """What the explorer would try next, best first."""

    def work() -> Made:
        named = round_steps.generate_candidates(
            study.setting, read_state(cache, state), _history(cache, history), n
        )
        return {"candidates": len(named)}, {"candidates": _put_candidates(cache, named)}

    inputs: dict[str, Json] = {
        "study": study.describe(),
        "state": state.key,
        "history": history.key,
        "n": n,
    }
    key = Key("generate_candidates", 2, study.target.fingerprint, inputs)
    return reuse_or_do(cache, key, work, round_log.generated)


@stage("{layer} round {round_index}: filter")
def filter_candidates(
    cache: CacheUse, layer: str, study: TuningTask, round_index: int,
    state: Manifest, history: Manifest, named: Manifest, n: int,
) -> Result:  # fmt: skip
    """Model V's veto."""

    def work() -> Made:
        known = read_state(cache, state)
        kept = round_steps.filter_candidates(
            study.setting, known, _history(cache, history),
            read_candidates(cache, named), n,
        )  # fmt: skip
        values: dict[str, Json] = {"kept": len(kept), "vetoed": kept.vetoed}
        if kept.vetoed:
            values["below"] = veto_threshold(study.explorer, known)
        return values, {"candidates": _put_candidates(cache, kept)}

    inputs: dict[str, Json] = {"study": study.describe(), "named": named.key, "n": n}
    key = Key("filter_candidates", 3, study.target.fingerprint, inputs)
    return reuse_or_do(cache, key, work, round_log.filtered)


@stage("{layer} round {round_index}: lower")
def lower_candidates(
    cache: CacheUse, layer: str, study: TuningTask, round_index: int,
    state: Manifest, history: Manifest, kept: Manifest, n: int,
) -> Result:  # fmt: skip
    """Compile what is left and let Model A choose the batch."""

    def work() -> Made:
        batch = round_steps.lower_candidates(
            study.setting, read_state(cache, state), _history(cache, history),
            read_candidates(cache, kept), n,
        )  # fmt: skip
        return (
            {
                "lowered": batch.lowered,
                "chosen": len(batch.rows),
                "failures": round_log.reasons(np.array(batch.reasons, dtype=object)),
                "configs": digest(batch.rows.configs.tobytes()),
            },
            {"batch": cache.store.put(batch, codecs.encode_batch, ".npz")},
        )

    inputs: dict[str, Json] = {"study": study.describe(), "kept": kept.key, "n": n}
    if study.cluster:  # the workers have the programs
        inputs["programs"] = "elsewhere"
    key = Key("lower_candidates", 3, study.target.fingerprint, inputs)
    return reuse_or_do(cache, key, work, round_log.lowered)


@stage("{layer} round {round_index}: simulate")
def simulate_batch(
    cache: CacheUse,
    layer: str,
    study: TuningTask,
    round_index: int,
    history: Manifest,
    batch: Manifest,
    known: Known,
) -> Result:
    """Measure the batch; `known` measurements are not repeated, and neither are those of a batch
    of the same configs, unless its target gives other numbers each time."""

    def work() -> Made:
        past, chosen = _history(cache, history), read_batch(cache, study, batch)
        measured = round_steps.simulate_batch(study.setting, past, chosen, known)
        say(round_log.outcome(past, chosen, measured))
        return (
            {
                "trials": len(measured),
                "valid": int(measured.valid.sum()),
                "failures": round_log.reasons(measured.reason[~measured.valid]),
            },
            {"measurements": cache.store.put(measured, codecs.encode_measurements, ".npz")},
        )

    inputs: dict[str, Json] = {"workload": study.workload.id, "configs": batch.values["configs"]}
    key = Key("simulate_batch", 3, study.target.fingerprint, inputs)
    refresh = cache.refresh or not study.target.deterministic
    return reuse_or_do(replace(cache, refresh=refresh), key, work, round_log.simulated)


@stage("{layer} round {round_index}: retrain")
def retrain_models(
    cache: CacheUse,
    layer: str,
    study: TuningTask,
    round_index: int,
    state: Manifest,
    history: Manifest,
) -> Result:
    """P, V and A after this round."""

    def work() -> Made:
        learned = round_steps.retrain_models(
            study.setting, read_state(cache, state), _history(cache, history)
        )
        return {"models": sorted(learned.models)}, {"state": _put_state(cache, learned)}

    return reuse_or_do(cache, retrained(study, state, history), work, round_log.learned)


def retrained(study: TuningTask, state: Manifest, history: Manifest) -> Key:
    """What learned models depend on."""
    inputs: dict[str, Json] = {
        "study": study.describe(),
        "state": state.key,
        "history": history.key,
        "learners": {name: version(name) for name in LEARNER_PACKAGES},
    }
    return Key("retrain_models", 2, study.target.fingerprint, inputs)


# -- manifests that need no task ---------------------------------------------------------------


def keep_state(cache: CacheUse, state: ExplorerState) -> Manifest:
    """A state as a manifest; its key is the digest of its content."""
    return _of_content("state", _put_state(cache, state))


def keep_history(cache: CacheUse, history: History) -> Manifest:
    """The same of a history."""
    return _of_content("history", cache.store.put(history, codecs.encode_history, ".npz"))


def read_candidates(cache: CacheUse, manifest: Manifest) -> Candidates:
    """What `generate_candidates` and `filter_candidates` left. Raises `DamagedFile`."""
    return cache.store.get(manifest.files["candidates"], codecs.decode_candidates)


def read_batch(cache: CacheUse, study: TuningTask, manifest: Manifest) -> Batch:
    """What `lower_candidates` left. Raises `DamagedFile`."""
    return cache.store.get(
        manifest.files["batch"], lambda data: codecs.decode_batch(data, study.workload)
    )


def read_measurements(cache: CacheUse, manifest: Manifest) -> Measurements:
    """What `simulate_batch` left. Raises `DamagedFile`."""
    return cache.store.get(manifest.files["measurements"], codecs.decode_measurements)


def read_state(cache: CacheUse, manifest: Manifest) -> ExplorerState:
    """What `retrain_models` left. Raises `DamagedFile`."""
    return cache.store.get(manifest.files["state"], codecs.decode_state)


def _history(cache: CacheUse, manifest: Manifest) -> History:
    return cache.store.get(manifest.files["history"], codecs.decode_history)


def _put_candidates(cache: CacheUse, candidates: Candidates) -> str:
    return cache.store.put(candidates, codecs.encode_candidates, ".npz")


def _put_state(cache: CacheUse, state: ExplorerState) -> str:
    return cache.store.put(state, codecs.encode_state, ".zip")


def _of_content(role: str, name: str) -> Manifest:
    return Manifest(role, name.partition(".")[0][:32], files={role: name})


TASKS: dict[Callable[..., object], tuple[Stage[...], Callable[..., Any]]] = {
    round_steps.generate_candidates: (
        generate_candidates, lambda cache, _, manifest: read_candidates(cache, manifest)
    ),
    round_steps.filter_candidates: (
        filter_candidates, lambda cache, _, manifest: read_candidates(cache, manifest)
    ),
    round_steps.lower_candidates: (lower_candidates, read_batch),
    round_steps.simulate_batch: (
        simulate_batch, lambda cache, _, manifest: read_measurements(cache, manifest)
    ),
    round_steps.retrain_models: (
        retrain_models, lambda cache, _, manifest: read_state(cache, manifest)
    ),
}  # fmt: skip
"""By step its task, and what reads the result from (cache, study, manifest)."""
