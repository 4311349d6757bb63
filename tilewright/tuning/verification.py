"""Steps before and after the rounds of a workload: baseline measurement and verification.

Verification checks that the chosen schedule is as fast as recorded and computes correct results. It
is necessary because the trial store and the cache of finished steps are files, and whoever writes
to them could claim any latency. The target therefore measures the winner again before it is
reported. This measurement does not count as a trial.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from tilewright.core.errors import TilewrightError
from tilewright.search import History, Known, Trial
from tilewright.search.events import Listener, Note, StageBegan
from tilewright.search.round_steps import trial_at
from tilewright.search.rounds import latency_at
from tilewright.search.validation_records import TRIAL
from tilewright.targets.base import Lowered, Target
from tilewright.targets.capabilities import (
    Baseline,
    HasEnergy,
    Latency,
    Verifies,
    baseline_schedule,
    capability,
    fallback_schedule,
    picojoules_of,
)
from tilewright.tuning.results import Baselines, Schedule
from tilewright.tuning.tuning_task import TuningTask, state_of

NOISE = 2.0
"""Largest accepted ratio of a schedule's new latency to its recorded latency, on a target whose
measurements vary."""


class WrongSchedule(TilewrightError):
    """A schedule runs but computes wrong results."""


def measure_baseline(task: TuningTask) -> Baselines:
    """Measure the schedules that are available without tuning: the baseline and the fallback.

    The baseline is Tilewright's own rule schedule. The fallback is the schedule that the stock
    compiler uses for workloads for which it publishes none.

    Args:
        task: the workload and the target.
    """
    fallback = fallback_schedule(task.target, task.workload)
    return Baselines(schedule_of_baseline(task), None if fallback is None else fallback.latency)


def schedule_of_baseline(task: TuningTask) -> Schedule | None:
    """Measure the baseline schedule, which is used without tuning.

    Args:
        task: the workload and the target.

    Returns:
        The schedule, or None if the target has none or it does not run.
    """
    schedule = baseline_schedule(task.target, task.workload)
    if schedule is None:
        return None
    knobs = schedule.space.describe(schedule.config)
    compared = schedule.lowered.workload != task.workload
    return Schedule(
        schedule.source, schedule.space.name, schedule.config, knobs, schedule.latency, compared
    )


def verify_schedule(task: TuningTask, chosen: Schedule) -> int | None:
    """Run a schedule on random tensors, and compare its outputs with a reference implementation.

    Args:
        task: the workload and the target.
        chosen: the schedule to check.

    Returns:
        Number of wrong values, which is 0, or None if the target cannot run programs on data.

    Raises:
        WrongSchedule: some values are wrong.
    """
    verifies = capability(task.target, Verifies)
    if verifies is None:
        return None
    wrong = int(verifies.verify(lowered_of(task, chosen))[0])
    if wrong:
        raise WrongSchedule(
            f"{task.workload}: schedule {chosen.knobs} computes {wrong} wrong values; this is "
            "a defect of Tilewright, please report it with the seed and the target's "
            "specification"
        )
    return wrong


def baseline_again(task: TuningTask, baseline: Schedule, emit: Listener) -> Schedule | None:
    """Check the stored latency of a baseline that won the final choice, by measuring it again.

    Args:
        task: the workload, target and tuner.
        baseline: the schedule that is used without tuning, with its stored latency.
        emit: receives a note if the stored latency is wrong.

    Returns:
        The baseline, with the new latency if the stored latency is wrong; None if the baseline does
        not run.
    """
    again = schedule_of_baseline(task)
    if again is not None and reproduces(task.target, baseline.latency, again.latency):
        return baseline
    emit(
        Note(
            f"{task.workload}: the recorded baseline latency differs from what "
            f"{task.target_name} measures now; the new measurement is used"
        )
    )
    return again


def wrong_winners(
    task: TuningTask, history: History, timed: dict[int, Trial], emit: Listener
) -> Known:
    """Measure the fastest trials again, until one of them reproduces its recorded latency.

    The trial store is a file that anyone could have changed, so the winner is not reported without
    this check.

    Args:
        task: the workload, target and tuner.
        history: trials of the run.
        timed: measurements by flat index. New measurements are added, and existing ones are
            trusted.
        emit: receives a note if trials do not reproduce their latency.

    Returns:
        New measurements of the trials that did not reproduce their latency, by flat index. If there
        are any, the stored trials must be corrected and the session must be rebuilt from them.
    """
    emit(StageBegan("time_again"))
    wrong = _wrong_winners(task, history, timed)
    if wrong:
        many = "a trial" if len(wrong) == 1 else f"{len(wrong)} trials"
        emit(
            Note(
                f"{task.workload}: discarded {many}, because the recorded latency differs "
                f"from what {task.target_name} measures now; the new measurement is used"
            )
        )
    return wrong


def _wrong_winners(task: TuningTask, history: History, timed: dict[int, Trial]) -> Known:
    space, wrong = task.problem.space, {}
    for row in history.fastest(len(history)):
        config = history.configs[row : row + 1]
        flat = int(space.ravel(config)[0])
        if flat in timed:
            break
        measured = task.target.measure(task.target.lower(task.workload, config))
        timed[flat] = trial_at(measured, 0)
        claimed, latency = latency_at(history, int(row)), latency_of_trial(timed[flat])
        if (
            claimed is not None
            and latency is not None
            and reproduces(task.target, claimed, latency)
        ):
            break
        wrong[flat] = timed[flat]
    return wrong


def reproduces(target: Target, claimed: Latency, latency: Latency) -> bool:
    """Return whether a recorded latency agrees with a new measurement.

    On a deterministic target, both must be equal. On other targets, the new latency may be at most
    `NOISE` times the recorded latency.

    Args:
        target: the target.
        claimed: the recorded latency.
        latency: the newly measured latency.
    """
    if target.deterministic:
        near = math.isclose(claimed.seconds, latency.seconds, rel_tol=1e-9)
        return claimed.cycles == latency.cycles and near
    if claimed.cycles > 0 and latency.cycles > 0:
        return latency.cycles <= NOISE * claimed.cycles
    return latency.seconds <= NOISE * claimed.seconds


def latency_of_trial(trial: Trial) -> Latency | None:
    """Return the latency of a trial; None if the trial is not valid."""
    return Latency(trial.seconds, trial.cycles) if trial.status == "valid" else None


def microjoules_of(task: TuningTask, chosen: Schedule | None) -> float | None:
    """Estimate the energy consumption of one call of the chosen schedule in microjoules.

    Args:
        task: the workload and the target.
        chosen: the chosen schedule, if there is one.

    Returns:
        The energy, or None if there is no schedule or the target cannot estimate energy.
    """
    if chosen is None or capability(task.target, HasEnergy) is None:
        return None
    spent = picojoules_of(task.target, task.target.measure(lowered_of(task, chosen)))
    return None if spent is None or not np.isfinite(spent[0]) else 1e-6 * float(spent[0])


def lowered_of(task: TuningTask, chosen: Schedule) -> Lowered:
    """Lower a chosen schedule to a program.

    Args:
        task: the workload and the target.
        chosen: the schedule: a trial or the baseline.

    Returns:
        A batch with one program.
    """
    if chosen.source == TRIAL:
        configs = np.array([chosen.config], dtype=np.int32)
        return task.target.lower(task.workload, configs)
    return _baseline_program(task, state_of(task.target_name))


@lru_cache(maxsize=8)
def _baseline_program(task: TuningTask, state: tuple[int, int]) -> Lowered:
    """Return the lowered baseline from a cache, because looking it up measures the baseline.

    Args:
        task: the workload and the target.
        state: state of the target's file (`state_of`). It is used only as part of the cache key.
    """
    baseline = capability(task.target, Baseline)
    assert baseline is not None, "a schedule that is no trial came from there"
    return baseline.baseline(task.workload).lowered
