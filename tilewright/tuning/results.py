"""Types that hold the result of tuning a workload, and their entries in the output files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NotRequired, TypedDict

from tilewright.core.files import Json, as_int, as_list, as_number, as_object, as_text
from tilewright.search import History, Round
from tilewright.search.rounds import latency_at
from tilewright.search.run_record import ERROR_DIGITS
from tilewright.search.validation_records import TRIAL
from tilewright.targets.capabilities import Latency
from tilewright.targets.workload import Workload
from tilewright.tuning.gains import LatencyFigures
from tilewright.tuning.intervals import Interval, ValidationRow, ValidationStats
from tilewright.tuning.tuning_task import TuningTask


class ScheduleRow(TypedDict):
    """Entry of a workload in `schedules.json`.

    `config` contains knob indices of the space `space`; it is None if no schedule runs. If the
    target does not count cycles, `cycles` is None and `seconds` is present. If measurements vary,
    `seconds_interval` is a 95 % confidence interval.
    """

    id: str
    workload: str
    epilogue: str
    names: list[str]
    source: str | None
    space: str | None
    config: list[int] | None
    knobs: dict[str, int] | None
    cycles: int | None
    seconds: NotRequired[float]
    seconds_interval: NotRequired[Interval]


class FoundBy(TypedDict):
    """Description of the run that found a schedule.

    Attributes:
        tuner: tuner of the run; None if an earlier version of Tilewright made the run.
        seed: seed of the run; None if an earlier version of Tilewright made the run.
        trials: number of trials of the workload in this run.
    """

    tuner: str | None
    seed: int | None
    trials: int


class WorkloadRow(LatencyFigures):
    """Entry of a workload in `summary.json`, with latencies of one call.

    Unknown latencies are None. The following fields are optional:

    - `found_by` is present if an earlier run in the same output directory found the tuned schedule.
    - `stopped_by_time` is present if a time limit ended the tuning early.
    - `validation` is present if measurements vary.
    - `model_errors` is present if the tuner has models. It contains means over rounds of
      `search.round_steps.model_errors`.
    """

    id: str
    operator: str
    workload: str
    epilogue: str
    names: list[str]
    count: int
    macs: int
    tuned_source: str | None
    trials: int
    invalid_trials: int
    lowered: int
    failed_compiles: int
    reused_trials: int
    timed_again: int
    wall_seconds: float
    tuned_microjoules: NotRequired[float]
    found_by: NotRequired[FoundBy]
    stopped_by_time: NotRequired[bool]
    validation: NotRequired[ValidationRow]
    model_errors: NotRequired[dict[str, float]]


@dataclass(frozen=True)
class Schedule:
    """A schedule of a workload, with its latency.

    Attributes:
        source: origin of the schedule: `trial`, or the source of the baseline.
        space: name of its schedule space.
        config: knob indices in that space.
        knobs: knob values by name.
        latency: latency of one call.
        compared: True if the schedule computes the workload in a different form. It then serves
            only for comparison and cannot be chosen.
    """

    source: str
    space: str
    config: tuple[int, ...]
    knobs: dict[str, int]
    latency: Latency
    compared: bool = False


@dataclass(frozen=True)
class Baselines:
    """Schedules that are available without tuning.

    Attributes:
        baseline: the schedule that Tilewright uses without a trial, whose latency is reported as
            `rule`. None if the target has no such schedule or the schedule does not run.
        fallback: latency of the schedule that the stock compiler uses for workloads for which it
            publishes none; None if there is no such schedule.
    """

    baseline: Schedule | None
    fallback: Latency | None


@dataclass(frozen=True)
class TunedWorkload:
    """Result of tuning a workload.

    Attributes:
        task: the workload, target and tuner.
        count: number of calls per inference.
        names: names of the layers with this workload.
        baseline: the schedule that is used without tuning, if the target has one.
        fallback: latency of the stock compiler's fallback schedule, if the target has one.
        chosen: the chosen schedule; None if neither a trial nor the baseline is valid.
        roofline: lower bound of the latency from the peak rate of multiply-accumulates, if known.
        bound: latency that no schedule can beat, if the target knows it.
        trials: number of trials.
        invalid_trials: number of trials without a valid measurement.
        lowered: number of configs that were lowered but not measured.
        failed_compiles: number of configs among `lowered` that did not compile.
        reused_trials: number of trials that were read from the trial store.
        timed_again: number of measurements that checked the winner.
        wall_seconds: duration of tuning in seconds.
        history: the trials; models of other workloads may learn from them.
        validation: validation measurements, if measurements vary.
        model_errors: mean errors of the tuner's models.
        microjoules: estimated energy consumption of one call in microjoules, if known.
        found_by: run that found the chosen schedule, if it is not this run.
        stopped_by_time: whether a time limit ended the run before its last trial.
    """

    task: TuningTask
    count: int
    names: tuple[str, ...]
    baseline: Schedule | None
    fallback: Latency | None
    chosen: Schedule | None
    roofline: Latency | None
    bound: Latency | None
    trials: int
    invalid_trials: int
    lowered: int
    failed_compiles: int
    reused_trials: int
    timed_again: int
    wall_seconds: float
    history: History = field(repr=False, compare=False)
    validation: ValidationStats | None = None
    model_errors: Mapping[str, float] = field(default_factory=dict)
    microjoules: float | None = None
    found_by: FoundBy | None = None
    stopped_by_time: bool = False

    @property
    def workload(self) -> Workload:
        """The workload that was tuned."""
        return self.task.workload

    def summary(self) -> WorkloadRow:
        """Return the entry of the workload in `summary.json`."""
        baseline, chosen = self.baseline, self.chosen
        before = baseline.latency if baseline else None
        after = chosen.latency if chosen else None
        row: WorkloadRow = {
            "id": self.workload.id,
            "operator": self.workload.operator,
            "workload": str(self.workload),
            "epilogue": self.workload.epilogue_text,
            "names": list(self.names),
            "count": self.count,
            "macs": self.workload.macs,
            "rule_cycles": cycles_of(before),
            "rule_seconds": seconds_of(before),
            "rule_source": baseline.source if baseline else None,
            "fallback_cycles": cycles_of(self.fallback),
            "fallback_seconds": seconds_of(self.fallback),
            "tuned_cycles": cycles_of(after),
            "tuned_seconds": seconds_of(after),
            "tuned_source": chosen.source if chosen else None,
            "roofline_cycles": cycles_of(self.roofline),
            "roofline_seconds": seconds_of(self.roofline),
            "bound_cycles": cycles_of(self.bound),
            "bound_seconds": seconds_of(self.bound),
            "trials": self.trials,
            "invalid_trials": self.invalid_trials,
            "lowered": self.lowered,
            "failed_compiles": self.failed_compiles,
            "reused_trials": self.reused_trials,
            "timed_again": self.timed_again,
            "wall_seconds": round(self.wall_seconds, 3),
        }
        if self.validation is not None:
            row["validation"] = self.validation.row()
        if self.microjoules is not None:
            row["tuned_microjoules"] = round(self.microjoules, 6)
        if self.found_by is not None:
            row["found_by"] = self.found_by
        if self.stopped_by_time:
            row["stopped_by_time"] = True
        if self.model_errors:
            row["model_errors"] = dict(self.model_errors)
        return row

    def schedule(self) -> ScheduleRow:
        """Return the entry of the workload in `schedules.json`."""
        chosen = self.chosen
        row: ScheduleRow = {
            "id": self.workload.id,
            "workload": str(self.workload),
            "epilogue": self.workload.epilogue_text,
            "names": list(self.names),
            "source": chosen.source if chosen else None,
            "space": chosen.space if chosen else None,
            "config": list(chosen.config) if chosen else None,
            "knobs": chosen.knobs if chosen else None,
            "cycles": cycles_of(chosen.latency if chosen else None),
        }
        if chosen and row["cycles"] is None:
            row["seconds"] = chosen.latency.seconds
        if self.validation is not None and self.validation.tuned_interval is not None:
            row["seconds_interval"] = self.validation.tuned_interval
        return row


def mean_errors(rounds: Sequence[Round]) -> dict[str, float]:
    """Return the mean of each model error over the rounds that have this error.

    Args:
        rounds: rounds of a workload, with errors as in `search.round_steps.model_errors`.

    Returns:
        Mean errors by name.
    """
    names = sorted({name for round_ in rounds for name in round_.model_errors})
    known = ([r.model_errors[name] for r in rounds if name in r.model_errors] for name in names)
    means = (float(f"{fmean(errors):.{ERROR_DIGITS}g}") for errors in known)
    return dict(zip(names, means, strict=True))


def choose_schedule(
    task: TuningTask, history: History, baseline: Schedule | None
) -> Schedule | None:
    """Return the fastest valid trial as a schedule, or the baseline if it is faster.

    Args:
        task: the workload, target and tuner.
        history: trials of the workload.
        baseline: the schedule that is used without tuning, if there is one.

    Returns:
        The schedule; None if no trial is valid and there is no baseline that can be chosen.
    """
    if baseline is not None and baseline.compared:
        baseline = None
    best = history.best
    latency = latency_at(history, best)
    if best is None or latency is None:
        return baseline
    if baseline is not None and faster(baseline.latency, latency):
        return baseline
    return trial_schedule(task, history, best)


def trial_schedule(task: TuningTask, history: History, row: int) -> Schedule:
    """Convert one valid trial to a schedule.

    Args:
        task: the workload, target and tuner.
        history: trials of the workload.
        row: row of the trial in `history`.
    """
    config = tuple(int(index) for index in history.configs[row])
    space, latency = task.problem.space, latency_at(history, row)
    assert latency is not None, "a row has a latency"
    return Schedule(TRIAL, task.space_name or space.name, config, space.describe(config), latency)


def latency_to_beat(task: TuningTask, baseline: Schedule | None) -> float | None:
    """Return the latency of one call with the schedule that is used without tuning.

    Args:
        task: the workload, target and tuner.
        baseline: the schedule that is used without tuning, if there is one.

    Returns:
        Latency in the unit of `History.latency`. None if the baseline does not exist, cannot be
        chosen, or has a latency that varies between measurements.
    """
    if baseline is None or baseline.compared or not task.target.deterministic:
        return None
    latency = baseline.latency
    return float(latency.cycles) if latency.cycles > 0 else latency.seconds


def faster(one: Latency, other: Latency) -> bool:
    """Return whether one latency is lower than another.

    Cycles are compared if both latencies have them, otherwise seconds.

    Args:
        one: the latency that may be lower.
        other: the latency to compare it with.
    """
    if one.cycles > 0 and other.cycles > 0:
        return one.cycles < other.cycles
    return one.seconds < other.seconds


def cycles_of(latency: Latency | None) -> int | None:
    """Return the cycles of a latency; None if the latency is unknown or has no cycles."""
    return None if latency is None or latency.cycles < 0 else latency.cycles


def seconds_of(latency: Latency | None) -> float | None:
    """Return the seconds of a latency; None if the latency is unknown or has no finite seconds."""
    return None if latency is None or not math.isfinite(latency.seconds) else latency.seconds


def latency_to_json(latency: Latency) -> dict[str, Json]:
    """Convert a latency to JSON, from which `latency_from_json` restores it."""
    return {"cycles": latency.cycles, "seconds": latency.seconds}


def latency_from_json(values: dict[str, Json]) -> Latency:
    """Restore a latency from the result of `latency_to_json`.

    Raises:
        KeyError: a value is missing.
        ValueError: a value is invalid.
    """
    return Latency(as_number(values["seconds"]), as_int(values["cycles"]))


def schedule_to_json(schedule: Schedule) -> dict[str, Json]:
    """Convert a schedule to JSON, from which `schedule_from_json` restores it."""
    return {
        "source": schedule.source, "space": schedule.space, "config": list(schedule.config),
        "knobs": schedule.knobs, "compared": schedule.compared,
        **latency_to_json(schedule.latency),
    }  # fmt: skip


def schedule_from_json(values: dict[str, Json]) -> Schedule:
    """Restore a schedule from the result of `schedule_to_json`.

    Raises:
        KeyError: a value is missing.
        ValueError: a value is invalid.
    """
    return Schedule(
        as_text(values["source"]),
        as_text(values["space"]),
        tuple(map(as_int, as_list(values["config"]))),
        {name: as_int(value) for name, value in as_object(values["knobs"]).items()},
        latency_from_json(values),
        values["compared"] is True,
    )
