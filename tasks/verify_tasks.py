"""Performs the two stages around the rounds of a workload: the baseline, and the verification of
the chosen schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.core.files import Json, as_int, as_object
from tilewright.search.validation_records import ValidationMeasurement
from tilewright.tasks.artifact_store import CacheUse, Manifest
from tilewright.tasks.cached_task import Key, Made, Result, reuse_or_do, stage, step
from tilewright.tasks.round_log import latency_text
from tilewright.tuning import final_validation, verification
from tilewright.tuning.results import (
    Baselines,
    Schedule,
    latency_from_json,
    latency_to_json,
    schedule_from_json,
    schedule_to_json,
)
from tilewright.tuning.tuning_task import TuningTask


@stage("{layer}: baseline")
def measure_baseline(cache: CacheUse, layer: str, study: TuningTask) -> Result:
    """The baseline and what the stock compiler does without a log, lowered and measured
    like every other."""

    def work() -> Made:
        found = verification.measure_baseline(study)
        baseline, fallback = found.baseline, found.fallback
        return {
            "schedule": None if baseline is None else schedule_to_json(baseline),
            "fallback": None if fallback is None else latency_to_json(fallback),
        }, {}

    key = Key("measure_baseline", 4, study.target.fingerprint, {"workload": study.workload.id})
    return reuse_or_do(_repeatable(cache, study), key, work, _told_baselines)


@step("{layer}: leaders, block {block}")
def measure_leaders(
    layer: str,
    study: TuningTask,
    block: int,
    contenders: Sequence[Schedule],
    turns: int,
) -> list[ValidationMeasurement]:
    """Measure a block of the final choice, or its report (`tuning.final_validation`). The result is
    kept in the trial store only."""
    return final_validation.measure_leaders(study, block, contenders, turns)


@stage("{layer}: verify")
def verify_schedule(cache: CacheUse, layer: str, study: TuningTask, chosen: Schedule) -> Result:
    """Run the schedule's program on random tensors. Raises `WrongSchedule` if a bit differs from
    the integer reference."""

    def work() -> Made:
        return {"mismatches": verification.verify_schedule(study, chosen)}, {}

    inputs: dict[str, Json] = {
        "workload": study.workload.id,
        "space": chosen.space,
        "config": list(chosen.config),
    }
    key = Key("verify_schedule", 1, study.target.fingerprint, inputs)
    return reuse_or_do(_repeatable(cache, study), key, work, _told_mismatches)


def read_baselines(manifest: Manifest) -> Baselines:
    """What `measure_baseline` found."""
    baseline, fallback = manifest.values["schedule"], manifest.values["fallback"]
    return Baselines(
        None if baseline is None else schedule_from_json(as_object(baseline)),
        None if fallback is None else latency_from_json(as_object(fallback)),
    )


def read_mismatches(manifest: Manifest) -> int | None:
    """What `verify_schedule` found."""
    count = manifest.values["mismatches"]
    return None if count is None else as_int(count)


def _told_baselines(values: Mapping[str, Json]) -> str:
    """`baseline 1,124 cycles, fallback 12,049 cycles`."""
    parts = []
    for name, role in (("baseline", "schedule"), ("fallback", "fallback")):
        if (found := values[role]) is not None:
            parts.append(f"{name} {latency_text(latency_from_json(as_object(found)))}")
    return ", ".join(parts) or "the target has no baseline"


def _told_mismatches(values: Mapping[str, Json]) -> str:
    count = values["mismatches"]
    if count is None:
        return "the target cannot run a schedule on data"
    return f"{as_int(count)} of its outputs differ from the integer reference"


def _repeatable(cache: CacheUse, study: TuningTask) -> CacheUse:
    """What a target does that does otherwise each time is not taken from an earlier run."""
    return replace(cache, refresh=cache.refresh or not study.target.deterministic)
