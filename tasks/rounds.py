"""The stages of a tuning round as Prefect tasks, one to one those of `search.stages`.

Tasks take and give manifests; what these point to lies in the store. Each may run in another
process than the one before.
"""

from __future__ import annotations

from importlib.metadata import version

from search import Batch, Candidates, ExplorerState, History, stages
from targets.base import Measurements
from targets.files import Json
from tasks import codecs
from tasks.session import store
from tasks.stage import reuse_or_do, stage
from tasks.store import Manifest
from tuning.study import Study

LEARNER_PACKAGES = ("xgboost-cpu", "lightgbm", "numpy")


@stage("round {round_index}: candidates")
def generate_candidates(
    study: Study, round_index: int, state: Manifest, history: Manifest, n: int
) -> Manifest:
    """What the explorer would try next, best first."""

    def work() -> tuple[dict[str, Json], dict[str, str]]:
        named = stages.generate_candidates(
            study.explorer, study.problem, _state(state), _history(history), n
        )
        return {"candidates": len(named)}, {"candidates": _put_candidates(named)}

    return reuse_or_do(
        "generate_candidates", 1, study.target.fingerprint,
        {"study": study.describe(), "memory": state.key, "history": history.key, "n": n}, work,
    )  # fmt: skip


@stage("round {round_index}: filter")
def filter_candidates(
    study: Study, round_index: int, state: Manifest, history: Manifest, named: Manifest, n: int
) -> Manifest:
    """Model V's veto."""

    def work() -> tuple[dict[str, Json], dict[str, str]]:
        kept = stages.filter_candidates(
            study.explorer, study.problem, _state(state), _history(history),
            _candidates(named), n,
        )  # fmt: skip
        return (
            {"kept": len(kept), "vetoed": kept.vetoed},
            {"candidates": _put_candidates(kept)},
        )

    return reuse_or_do(
        "filter_candidates", 1, study.target.fingerprint,
        {"study": study.describe(), "named": named.key, "n": n}, work,
    )  # fmt: skip


@stage("round {round_index}: lower")
def lower_candidates(
    study: Study, round_index: int, state: Manifest, history: Manifest, kept: Manifest, n: int
) -> Manifest:
    """Compile what is left and let Model A choose the batch."""

    def work() -> tuple[dict[str, Json], dict[str, str]]:
        lowered = stages.lower_candidates(study.target, study.problem, _candidates(kept))
        batch = stages.choose_candidates(
            study.explorer, study.problem, _state(state), _history(history), lowered, n
        )
        return (
            {"lowered": batch.lowered, "failed_compiles": len(batch.failed)},
            {"batch": store().put(batch, codecs.encode_batch, ".npz")},
        )

    return reuse_or_do(
        "lower_candidates", 1, study.target.fingerprint,
        {"study": study.describe(), "kept": kept.key, "n": n}, work,
    )  # fmt: skip


@stage("round {round_index}: simulate")
def simulate_batch(
    study: Study, round_index: int, batch: Manifest, known: stages.Known
) -> Manifest:
    """Measure the batch; `known` measurements are not repeated."""

    def work() -> tuple[dict[str, Json], dict[str, str]]:
        measured = stages.measure_batch(
            study.target, study.problem, read_batch(study, batch).rows, known
        )
        return (
            {"trials": len(measured), "valid": int(measured.valid.sum())},
            {"measurements": store().put(measured, codecs.encode_measurements, ".npz")},
        )

    return reuse_or_do(
        "simulate_batch", 1, study.target.fingerprint,
        {"workload": study.workload.id, "batch": batch.files["batch"]}, work,
    )  # fmt: skip


@stage("round {round_index}: retrain")
def retrain_models(study: Study, round_index: int, state: Manifest, history: Manifest) -> Manifest:
    """P, V and A after this round."""

    def work() -> tuple[dict[str, Json], dict[str, str]]:
        learned = stages.retrain(study.explorer, study.problem, _state(state), _history(history))
        return (
            {"models": sorted(learned.models)},
            {"memory": store().put(learned, codecs.encode_state, ".zip")},
        )

    return reuse_or_do(
        "retrain_models", 1, study.target.fingerprint, retrain_inputs(study, state, history), work
    )


def retrain_inputs(study: Study, state: Manifest, history: Manifest) -> dict[str, Json]:
    """What learned models depend on, beside the target."""
    return {
        "study": study.describe(),
        "memory": state.key,
        "history": history.key,
        "learners": {name: version(name) for name in LEARNER_PACKAGES},
    }


# -- manifests that need no task ---------------------------------------------------------------


def empty_state() -> Manifest:
    """What an explorer knows before the first round."""
    name = store().put(ExplorerState(), codecs.encode_state, ".zip")
    return Manifest("memory", "empty", files={"memory": name})


def keep_history(history: History) -> Manifest:
    """A history as a manifest; its key is the digest of its content."""
    name = store().put(history, codecs.encode_history, ".npz")
    return Manifest("history", name.partition(".")[0][:32], files={"history": name})


def read_batch(study: Study, manifest: Manifest) -> Batch:
    return store().get(
        manifest.files["batch"],
        lambda data: codecs.decode_batch(data, study.target, study.workload),
    )


def read_measurements(manifest: Manifest) -> Measurements:
    return store().get(manifest.files["measurements"], codecs.decode_measurements)


def read_state(manifest: Manifest) -> ExplorerState:
    return _state(manifest)


def _state(manifest: Manifest) -> ExplorerState:
    return store().get(manifest.files["memory"], codecs.decode_state)


def _history(manifest: Manifest) -> History:
    return store().get(manifest.files["history"], codecs.decode_history)


def _candidates(manifest: Manifest) -> Candidates:
    return store().get(manifest.files["candidates"], codecs.decode_candidates)


def _put_candidates(candidates: Candidates) -> str:
    return store().put(candidates, codecs.encode_candidates, ".npz")
