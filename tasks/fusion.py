"""Decides what is fused, as a stage in the flow, whose workloads have flows of their own. Caches
the result under what decides it, and records its curves in MLflow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.core.files import Json, as_int, as_list, as_object, as_text, read_json
from tilewright.fusion import decide_fusion as decide_fusion_now
from tilewright.tasks import tracking
from tilewright.tasks.artifact_store import CacheUse, Manifest
from tilewright.tasks.cached_task import Done, Key, Result, reuse_or_do, stage
from tilewright.tuning.fusion_interface import Decided, FusionDecision, ToDecide

if TYPE_CHECKING:
    from tilewright.fusion.evaluator import Evaluation

VERSION = 2
EVERY = "fusion/evaluations"
"""The metric that every step of the curves has."""


def decide_fusion(
    after: Sequence[object], cache: CacheUse, asked: ToDecide, model: str, run_id: str
) -> Done:
    """What is fused, decided behind the tasks `after`; from the cache if that was done under the
    same conditions, `model` being what the model was imported to. Raises as
    `tilewright.fusion.decide_fusion`."""
    key = _key(asked, model)
    decided = None
    if cache.refresh or cache.store.find(key.stage, key.text) is None:
        decided = _decided(asked, run_id)
    return _decide_fusion(after, cache, asked.network, key, decided)


def read_decided(manifest: Manifest) -> Decided:
    """What the stage gave."""
    values = manifest.values
    said = as_object(read_json(as_text(values["summary"])))
    rows = [as_object(each) for each in as_list(said["decisions"])]
    return Decided(
        {
            "mode": as_text(said["mode"]),
            "decisions": [_decision(row) for row in rows],
            "cycles": {k: as_int(v) for k, v in as_object(said["cycles"]).items()},
            "dram_bytes": {k: as_int(v) for k, v in as_object(said["dram_bytes"]).items()},
            "evaluations": as_int(said["evaluations"]),
            "tuned": as_int(said["tuned"]),
        },
        as_object(read_json(as_text(values["file"]))),
    )


def figures(decided: Decided) -> dict[str, float]:
    """What it came to, as metrics of the network's run."""
    said = decided.summary
    found = {f"fusion/{name}_cycles": float(n) for name, n in said["cycles"].items()}
    found |= {f"fusion/{name}_dram_bytes": float(n) for name, n in said["dram_bytes"].items()}
    fused = sum(row["fused"] for row in said["decisions"])
    return found | {"fusion/decisions": float(len(said["decisions"])), "fusion/fused": float(fused)}


@stage("what is fused in {network}")
def _decide_fusion(cache: CacheUse, network: str, key: Key, decided: Decided | None) -> Result:
    """Keep what was decided, or find what was decided before."""

    def work() -> tuple[dict[str, Json], dict[str, str]]:
        assert decided is not None, "what the cache has is not decided again"
        # As texts: the cache keeps no order of keys, and what a folder gets has one.
        return {"summary": json.dumps(decided.summary), "file": json.dumps(decided.file)}, {}

    return reuse_or_do(cache, key, work)


def _decided(asked: ToDecide, run_id: str) -> Decided:
    best = float("inf")
    with tracking.StepLog(run_id, every=EVERY) as log:

        def heard(found: Evaluation, count: int) -> None:
            nonlocal best
            best = min(best, found.cycles)
            log.add(
                count,
                {
                    EVERY: float(count), "fusion/cycles": float(found.cycles),
                    "fusion/best_cycles": best, "fusion/dram_bytes": float(found.dram_bytes),
                },
            )  # fmt: skip

        return decide_fusion_now(asked, heard)


def _key(asked: ToDecide, model: str) -> Key:
    """All that decides it: what was tuned and how what else it takes is tuned, from where on
    (`starts`), and, of a search, the models that guide it."""
    options = asked.options
    schedules: list[Json] = [
        [each.workload.id, each.chosen.space, list(each.chosen.config)]
        for each in asked.tuned if each.chosen is not None
    ]  # fmt: skip
    about: dict[str, Json] = {
        "model": model,
        "mode": options.fusion,
        "epilogue": options.epilogue,
        "seed": options.seed,
        "trials": options.trials,
        "stop_gain": options.stop_gain,
        "batch": options.batch,
        "tuner": options.tuner,
        "tuner_options": dict(options.tuner_options),
        "space": options.space,
        "starts": list[Json]([each.study.start for each in asked.tuned]),
        "models": _models(options.fusion),
        "schedules": schedules,
    }
    return Key("decide_fusion", VERSION, asked.target.fingerprint, about)


def _decision(row: dict[str, Json]) -> FusionDecision:
    cycles, size = row["cycles_saved"], row["dram_bytes_saved"]
    return {
        "name": as_text(row["name"]),
        "kind": as_text(row["kind"]),
        "fused": row["fused"] is True,
        "cycles_saved": None if cycles is None else as_int(cycles),
        "dram_bytes_saved": None if size is None else as_int(size),
        "estimated": row["estimated"] is True,
    }


def _models(mode: str) -> str:
    """The digest of the models that guide a search; "" of modes that have none."""
    if mode != "learned":
        return ""
    from tilewright.fusion.learned.pretrained import shipped_digest  # loads TVM

    return shipped_digest()
