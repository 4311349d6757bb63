"""Performs the two stages around the rounds of a workload: the baseline, and the verification of
the chosen schedule."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.core.files import Json
from tilewright.search.validation_records import ValidationMeasurement
from tilewright.tasks import codecs
from tilewright.tasks.cached_task import Key, Made, Record, stage, step
from tilewright.tasks.round_log import latency_text
from tilewright.tuning import final_validation, verification
from tilewright.tuning.results import Baselines, Schedule
from tilewright.tuning.tuning_task import TuningTask


def _baseline_key(layer: str, study: TuningTask) -> Key:
    target = study.target
    inputs: dict[str, Json] = {"workload": study.workload.id}
    return Key("measure_baseline", 4, target.fingerprint, inputs, target.deterministic)


def _told_baselines(record: Record[Baselines]) -> str:
    """`baseline 1,124 cycles, fallback 12,049 cycles`."""
    found, parts = record.value, []
    if found.baseline is not None:
        parts.append(f"baseline {latency_text(found.baseline.latency)}")
    if found.fallback is not None:
        parts.append(f"fallback {latency_text(found.fallback)}")
    return ", ".join(parts) or "the target has no baseline"


@stage("{layer}: baseline", _baseline_key, codecs.BASELINES, _told_baselines)
def measure_baseline(layer: str, study: TuningTask) -> Made[Baselines]:
    """The baseline and what the stock compiler does without a log, lowered and measured
    like every other."""
    return Made(verification.measure_baseline(study), {})


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


def _verify_key(layer: str, study: TuningTask, chosen: Schedule) -> Key:
    target = study.target
    inputs: dict[str, Json] = {
        "workload": study.workload.id,
        "space": chosen.space,
        "config": list(chosen.config),
    }
    return Key("verify_schedule", 1, target.fingerprint, inputs, target.deterministic)


def _told_mismatches(record: Record[int | None]) -> str:
    if record.value is None:
        return "the target cannot run a schedule on data"
    return f"{record.value} of its outputs differ from the integer reference"


@stage("{layer}: verify", _verify_key, codecs.MISMATCHES, _told_mismatches)
def verify_schedule(layer: str, study: TuningTask, chosen: Schedule) -> Made[int | None]:
    """Run the schedule's program on random tensors. Raises `WrongSchedule` if a bit differs from
    the integer reference."""
    return Made(verification.verify_schedule(study, chosen), {})
