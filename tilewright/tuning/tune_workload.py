"""Tuning one workload of a network: the order of its steps, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from tilewright.search import (
    ExplorerState,
    History,
    Known,
    LocalRunner,
    Record,
    Round,
    Session,
    Trial,
    rounds,
)
from tilewright.search.validation_records import ValidationMeasurement
from tilewright.tuning.events import (
    Listener,
    Note,
    RoundDone,
    RoundScheduled,
    StageBegan,
    WorkloadBegan,
    WorkloadTuned,
)
from tilewright.tuning.final_choice import ChoiceRecords
from tilewright.tuning.final_validation import FinalChoice
from tilewright.tuning.network import Subgraph
from tilewright.tuning.open_ledger import RecordOf
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.results import (
    Baselines,
    Schedule,
    TunedWorkload,
    choose_schedule,
    mean_errors,
)
from tilewright.tuning.tuning_task import TuningTask
from tilewright.tuning.turns import ScheduledTask, Stopped
from tilewright.tuning.verification import (
    baseline_schedule,
    bound_of,
    reproduces,
    roofline_of,
    wrong_winners,
)


@dataclass(frozen=True)
class WorkloadJob:
    """One workload of a run, and what all of them share; `scheduled` where rounds are shared."""

    options: TuningOptions
    subgraph: Subgraph
    study: TuningTask
    state: ExplorerState  # what the tuner starts from
    record_of: RecordOf
    emit: Listener
    stop: threading.Event = field(default_factory=threading.Event)
    scheduled: ScheduledTask | None = None


class WorkloadSteps(Protocol):
    """Performs what is done for one workload."""

    def baselines(self, study: TuningTask) -> Baselines:
        """What a user has without tuning (`tuning.verification`)."""
        ...

    def runner(self, study: TuningTask) -> LocalRunner:
        """What performs the steps of its rounds."""
        ...

    def measure_leaders(
        self, study: TuningTask, block: int, contenders: Sequence[Schedule], turns: int
    ) -> list[ValidationMeasurement]:
        """Measure schedules in turn (`tuning.final_validation`)."""
        ...

    def round_done(self, done: Round, trials: int) -> None:
        """Called after each round; `trials` are those of the run so far."""
        ...

    def verify(self, study: TuningTask, chosen: Schedule) -> None:
        """The proof (`tuning.verification`). Raises `WrongSchedule`."""
        ...

    def finish(self, tuned: TunedWorkload, session: Session) -> None:
        """Called last."""
        ...


def tune_workload(job: WorkloadJob, steps: WorkloadSteps) -> TunedWorkload:
    """Tune one workload: rounds until the trials are spent, the winner timed again, the proof.
    Raises as `tune_network`."""
    begin, study, subgraph = time.perf_counter(), job.study, job.subgraph
    before_tuning, roofline = steps.baselines(study), roofline_of(study)
    baseline = before_tuning.baseline
    before = None if baseline is None else baseline.latency
    job.emit(WorkloadBegan(study.workload.id, before, roofline))
    if job.scheduled is not None and baseline is not None and study.target.deterministic:
        _tell_baseline(job.scheduled, baseline)
    timed: dict[int, Trial] = {}
    session, done = _trials(job, steps)
    final = None if study.target.deterministic else _held_choice(job, session, baseline, timed)
    doubtful = study.target.deterministic or any(each.reused for each in done)
    while final is None and doubtful and (wrong := _wrong_winners(job, session, timed)):
        job.record_of(study, session.setting).correct(wrong)
        session, done = _trials(job, steps)
    if study.target.deterministic:
        chosen = choose_schedule(study, session.history, baseline)
        if chosen is not None and chosen is baseline:
            chosen = baseline = _timed_again(job, baseline)
    else:
        final = final or _final_choice(job, steps, session, baseline)
        chosen, baseline = final.chosen, final.baseline
    if chosen is not None:
        steps.verify(study, chosen)
    tuned = TunedWorkload(
        study=study,
        count=subgraph.count,
        names=subgraph.names,
        baseline=baseline,
        fallback=before_tuning.fallback,
        chosen=chosen,
        roofline=roofline,
        bound=bound_of(study),
        trials=len(session.history),
        invalid_trials=int((~session.history.valid).sum()),
        lowered=sum(each.lowered for each in done),
        failed_compiles=len(session.history.failed),
        reused_trials=sum(len(each.configs) for each in done if each.reused),
        timed_again=len(timed),
        wall_seconds=time.perf_counter() - begin - (job.scheduled.waited if job.scheduled else 0.0),
        validation=None if final is None else final.validation,
        model_errors=mean_errors(done),
    )
    steps.finish(tuned, session)
    job.emit(WorkloadTuned(tuned))
    return tuned


def _wrong_winners(job: WorkloadJob, session: Session, timed: dict[int, Trial]) -> Known:
    """Trials that were recorded faster than they are, by flat index; a session built on them is to
    be repeated, from a record that is put right. `timed` gathers all that was measured for it."""
    job.emit(StageBegan("time_again"))
    wrong = wrong_winners(job.study, session.history, timed)
    if wrong:
        many = "a trial was" if len(wrong) == 1 else f"{len(wrong)} trials were"
        job.emit(
            Note(
                f"{job.study.workload}: {many} recorded with another latency than "
                f"{job.study.target_name} gives now; set aside, and what it gives now recorded"
            )
        )
    return wrong


def _held_choice(
    job: WorkloadJob, session: Session, baseline: Schedule | None, timed: dict[int, Trial]
) -> FinalChoice | None:
    """The final choice of an earlier command, if it made one of the same trials that still holds;
    `timed` gathers what was measured to see that."""
    choice = _choice(job, session, baseline)
    held = choice.held()
    if held is None or choice.confirmed(held, timed):
        return held
    job.emit(
        Note(
            f"{job.study.workload}: the final choice was recorded with another latency than "
            f"{job.study.target_name} gives now; set aside, and made again"
        )
    )
    return None


def _final_choice(
    job: WorkloadJob, steps: WorkloadSteps, session: Session, baseline: Schedule | None
) -> FinalChoice:
    """Who is the best by validation measurements of all leaders, and what that one takes."""
    return _choice(job, session, baseline).make(partial(steps.measure_leaders, job.study))


def _choice(job: WorkloadJob, session: Session, baseline: Schedule | None) -> ChoiceRecords:
    record = job.record_of(job.study, session.setting)
    return ChoiceRecords(job.study, record, session.history, baseline, job.options.leaders)


def _timed_again(job: WorkloadJob, baseline: Schedule) -> Schedule | None:
    """The baseline, which won, as it is timed now: what was kept of it may be wrong."""
    again = baseline_schedule(job.study)
    if again is not None and reproduces(job.study, baseline.latency, again.latency):
        return baseline
    job.emit(
        Note(
            f"{job.study.workload}: the baseline was kept with another latency than "
            f"{job.study.target_name} gives now, which is taken instead"
        )
    )
    return again


def _trials(job: WorkloadJob, steps: WorkloadSteps) -> tuple[Session, list[Round]]:
    """All rounds of a workload: those of the record first."""
    setting = job.study.setting
    session = Session(setting, job.state, steps.runner(job.study))
    record = job.record_of(job.study, setting)
    done = _rounds(job, session, record, steps)
    for problem in record.problems:
        job.emit(Note(problem))
    return session, done


def _rounds(
    job: WorkloadJob, session: Session, record: Record, steps: WorkloadSteps
) -> list[Round]:
    options, task, trials, found = job.options, job.scheduled, 0, []
    most = options.trials if task is None else task.scheduler.most_trials
    more = None if task is None else partial(_more, job, task)
    for done in rounds(session, record, trials=most, batch=options.batch, more=more):
        found.append(done)
        trials += len(done.configs)
        steps.round_done(done, trials)
        valid = float(np.mean(session.history.valid[:trials]))
        job.emit(RoundDone(job.study.workload.id, done.index, trials, done.best, valid))
        if job.stop.is_set():
            raise Stopped("stopped; the same command goes on from here")
    if task is not None:
        task.rest()
    return found


def _more(job: WorkloadJob, task: ScheduledTask, history: History) -> int:
    """How many trials the next round may have, once the workload is given one."""
    granted = task.more(history)
    if granted:
        scheduler = task.scheduler
        job.emit(
            RoundScheduled(job.study.workload.id, scheduler.trials - granted, scheduler.most_trials)
        )
    return granted


def _tell_baseline(task: ScheduledTask, baseline: Schedule) -> None:
    """What trials have to beat, if it can be chosen; in the unit of `History.latency`."""
    latency = baseline.latency
    if not baseline.compared:
        task.tell_baseline(float(latency.cycles) if latency.cycles > 0 else latency.seconds)
