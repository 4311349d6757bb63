"""Tuning a network from its file to its output folder: the order of the steps, and nothing else.

Who performs the steps is put in: this process (`tuning.plain`), or tasks of a workflow engine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np

from search import (
    ExplorerState,
    History,
    Known,
    Record,
    Round,
    Session,
    Setting,
    Stages,
    Trial,
    rounds,
)
from search.fresh import Fresh
from targets.base import Target
from targets.registry import kind_of, target_remarks
from tuning.afresh import FinalChoice
from tuning.at_once import each_of
from tuning.dealing import Rules, Standing, StopGain
from tuning.events import (
    Listener,
    NetworkFound,
    Note,
    RoundDealt,
    RoundDone,
    StageBegan,
    WorkloadBegan,
    WorkloadFound,
    WorkloadsAdded,
    WorkloadTuned,
)
from tuning.final_choice import Choice
from tuning.fitting import check_fits
from tuning.fusing import Decided, ToDecide
from tuning.ledgers import RecordOf, trials_of_folder
from tuning.network import Extracted, Model, Subgraph, lone_workload, those_of
from tuning.options import TuningOptions
from tuning.outcome import Schedule, TunedWorkload, Untuned, choose_schedule, mean_errors
from tuning.outputs import Part, Summary
from tuning.proof import bound_of, holds, roofline_of, untuned_schedule, wrong_winners
from tuning.run_file import replaced, write_run
from tuning.study import Study, one_owner, study_of, target_of
from tuning.turns import Dealer, Seat, Stopped
from tuning.workers import helping

MOST_AT_A_TIME = 64
"""Workloads in threads of one command that has a cluster."""


@dataclass(frozen=True)
class Network:
    """What is tuned: the network, the target, and what of the network suits the target; `part`
    where that is not all of it."""

    model: Model
    target: Target
    found: Extracted
    part: Part | None = None

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """The workloads, in order of first use."""
        return self.found.subgraphs


@dataclass(frozen=True)
class Job:
    """One workload of a run, and what all of them share; `seat` where rounds are dealt."""

    options: TuningOptions
    subgraph: Subgraph
    study: Study
    state: ExplorerState  # what the tuner starts from
    record_of: RecordOf
    emit: Listener
    stop: threading.Event = field(default_factory=threading.Event)
    seat: Seat | None = None


class WorkloadSteps(Protocol):
    """Performs what is done for one workload."""

    def untuned(self, study: Study) -> Untuned:
        """What a user has without tuning (`tuning.proof`)."""
        ...

    def stages(self, study: Study, setting: Setting) -> Stages:
        """Who performs the stages of its rounds."""
        ...

    def measure_afresh(
        self, study: Study, block: int, contenders: Sequence[Schedule], turns: int
    ) -> list[Fresh]:
        """Measure schedules in turn (`tuning.afresh`)."""
        ...

    def round_done(self, done: Round, trials: int) -> None:
        """Called after each round; `trials` are those of the run so far."""
        ...

    def verify(self, study: Study, chosen: Schedule) -> None:
        """The proof (`tuning.proof`). Raises `WrongSchedule`."""
        ...

    def finish(self, tuned: TunedWorkload, session: Session) -> None:
        """Called last."""
        ...


class NetworkSteps(Protocol):
    """Performs what is done once for a network."""

    def opened(self, options: TuningOptions) -> None:
        """Called first, once the output folder is this run's alone."""
        ...

    def import_model(self, options: TuningOptions) -> Model:
        """Read the network (`tuning.network`)."""
        ...

    def extract_subgraphs(self, options: TuningOptions, model: Model, target: Target) -> Extracted:
        """What there is to tune in it (`tuning.network`)."""
        ...

    def found(self, options: TuningOptions, network: Network) -> None:
        """Called before the first workload."""
        ...

    def start_of(self, study: Study) -> tuple[Study, ExplorerState]:
        """What the tuner knows of a workload, and the study that starts there: another than one
        that starts from nothing, with trials of its own."""
        ...

    def tune(self, job: Job) -> TunedWorkload:
        """One workload: `tune_workload`, with whatever is around it."""
        ...

    def decide_fusion(self, asked: ToDecide) -> Decided:
        """Decide what runs together, of a run that was asked to."""
        ...

    def write(
        self,
        options: TuningOptions,
        network: Network,
        tuned: Sequence[TunedWorkload],
        wall: float,
        dealt: StopGain | None,
        decided: Decided | None,
    ) -> Summary:
        """Write the output folder (`tuning.outputs`); `wall` is how many seconds it took, `dealt`
        what became of the trials if they were dealt, `decided` what runs together if that was
        asked for."""
        ...


def tune_network(options: TuningOptions, steps: NetworkSteps, emit: Listener) -> Summary:
    """Tune every workload of a network. Returns what `summary.json` holds.

    Raises a `TilewrightError`: of the model's file, of the target's kind, `LeaseHeld` if another
    command works on the folder, `FolderTaken` if it holds another run, `UnknownLayer`,
    `NothingFits`, `LedgerError`, `WrongSchedule`; `OSError` for a disk that is full.
    """
    begin = time.perf_counter()
    target = target_of(options)
    for remark in target_remarks(options.target):
        emit(Note(remark))
    with trials_of_folder(options, emit) as trials:
        steps.opened(options)
        network = _network(options, target, steps)
        for reason in check_fits(target, [each.workload for each in network.subgraphs]):
            emit(Note(reason))
        steps.found(options, network)
        stop, found = threading.Event(), network.subgraphs
        starts = [steps.start_of(study_of(options, subgraph.workload)) for subgraph in found]
        if note := replaced(options):
            emit(Note(note))
        write_run(options, found, [study for study, _ in starts])
        emit(_found(network))
        jobs = [
            Job(options, subgraph, study, state, trials.record_of, emit, stop)
            for subgraph, (study, state) in zip(found, starts, strict=True)
        ]
        with helping(options, [(job.study, job.state) for job in jobs], emit):
            tuned, dealt = _tuned(options, jobs, steps, stop)
        if options.stop_gain is None:
            trials.arrange([study.ledger_key for study, _ in starts])
        decided = None
        if options.fusion:
            more = partial(_more_workloads, jobs[0], steps)
            decided = steps.decide_fusion(
                ToDecide(options, target, network.model.name, tuned, more, emit)
            )
        wall = time.perf_counter() - begin
        return steps.write(options, network, tuned, wall, dealt, decided)


def _more_workloads(
    like: Job, steps: NetworkSteps, subgraphs: Sequence[Subgraph]
) -> list[TunedWorkload]:
    """Workloads that the network does not have as it is, tuned as those that it has."""
    starts = [steps.start_of(study_of(like.options, each.workload)) for each in subgraphs]
    like.emit(WorkloadsAdded(_named(subgraphs)))
    jobs = [
        replace(like, subgraph=subgraph, study=study, state=state, seat=None)
        for subgraph, (study, state) in zip(subgraphs, starts, strict=True)
    ]
    with helping(like.options, [(job.study, job.state) for job in jobs], like.emit):
        return each_of(steps.tune, jobs, like.options.jobs, like.stop.set)


def _network(options: TuningOptions, target: Target, steps: NetworkSteps) -> Network:
    """All workloads of the network, those of some layers, or one that is given as it is."""
    if options.workload:
        model, alone = lone_workload(options.workload, options.steps)
        part: Part = {"workload": str(alone.subgraphs[0].workload), "epilogue": options.steps}
        return Network(model, target, alone, part)
    model = steps.import_model(options)
    found = steps.extract_subgraphs(options, model, target)
    if not options.layers:
        return Network(model, target, found)
    part = {"layers": list(options.layers), "workloads_of_network": len(found.subgraphs)}
    return Network(model, target, those_of(found, options.layers), part)


def tune_workload(job: Job, steps: WorkloadSteps) -> TunedWorkload:
    """Tune one workload: rounds until the trials are spent, the winner timed again, the proof.
    Raises as `tune_network`."""
    begin, study, subgraph = time.perf_counter(), job.study, job.subgraph
    untuned, roofline = steps.untuned(study), roofline_of(study)
    default = untuned.default
    before = None if default is None else default.latency
    job.emit(WorkloadBegan(study.workload.id, before, roofline))
    if job.seat is not None and default is not None and study.target.deterministic:
        _tell_untuned(job.seat, default)
    timed: dict[int, Trial] = {}
    session, done = _trials(job, steps)
    final = None if study.target.deterministic else _held_choice(job, session, default, timed)
    doubtful = study.target.deterministic or any(each.reused for each in done)
    while final is None and doubtful and (wrong := _wrong_winners(job, session, timed)):
        job.record_of(study, session.setting).correct(wrong)
        session, done = _trials(job, steps)
    if study.target.deterministic:
        chosen = choose_schedule(study, session.history, default)
        if chosen is not None and chosen is default:
            chosen = default = _default_again(job, default)
    else:
        final = final or _final_choice(job, steps, session, default)
        chosen, default = final.chosen, final.default
    if chosen is not None:
        steps.verify(study, chosen)
    tuned = TunedWorkload(
        study=study,
        count=subgraph.count,
        names=subgraph.names,
        default=default,
        fallback=untuned.fallback,
        chosen=chosen,
        roofline=roofline,
        bound=bound_of(study),
        trials=len(session.history),
        invalid_trials=int((~session.history.valid).sum()),
        lowered=sum(each.lowered for each in done),
        failed_compiles=len(session.history.failed),
        reused_trials=sum(len(each.configs) for each in done if each.reused),
        timed_again=len(timed),
        wall_seconds=time.perf_counter() - begin - (job.seat.waited if job.seat else 0.0),
        afresh=None if final is None else final.afresh,
        model_errors=mean_errors(done),
    )
    steps.finish(tuned, session)
    job.emit(WorkloadTuned(tuned))
    return tuned


def _wrong_winners(job: Job, session: Session, timed: dict[int, Trial]) -> Known:
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
    job: Job, session: Session, default: Schedule | None, timed: dict[int, Trial]
) -> FinalChoice | None:
    """The final choice of an earlier command, if it made one of the same trials that still holds;
    `timed` gathers what was measured to see that."""
    choice = _choice(job, session, default)
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
    job: Job, steps: WorkloadSteps, session: Session, default: Schedule | None
) -> FinalChoice:
    """Who is the best when all leaders are measured afresh, and what that one takes."""
    return _choice(job, session, default).make(partial(steps.measure_afresh, job.study))


def _choice(job: Job, session: Session, default: Schedule | None) -> Choice:
    record = job.record_of(job.study, session.setting)
    return Choice(job.study, record, session.history, default, job.options.leaders)


def _default_again(job: Job, default: Schedule) -> Schedule | None:
    """The untuned schedule, which won, as it is timed now: what was kept of it may be wrong."""
    again = untuned_schedule(job.study)
    if again is not None and holds(job.study, default.latency, again.latency):
        return default
    job.emit(
        Note(
            f"{job.study.workload}: the untuned schedule was kept with another latency than "
            f"{job.study.target_name} gives now, which is taken instead"
        )
    )
    return again


def _trials(job: Job, steps: WorkloadSteps) -> tuple[Session, list[Round]]:
    """All rounds of a workload: those of the record first."""
    setting = job.study.setting
    session = Session(setting, job.state, steps.stages(job.study, setting))
    record = job.record_of(job.study, setting)
    done = _rounds(job, session, record, steps)
    for problem in record.problems:
        job.emit(Note(problem))
    return session, done


def _rounds(job: Job, session: Session, record: Record, steps: WorkloadSteps) -> list[Round]:
    options, seat, trials, found = job.options, job.seat, 0, []
    most = options.trials if seat is None else seat.dealer.most_trials
    more = None if seat is None else partial(_more, job, seat)
    for done in rounds(session, record, trials=most, batch=options.batch, more=more):
        found.append(done)
        trials += len(done.configs)
        steps.round_done(done, trials)
        valid = float(np.mean(session.history.valid[:trials]))
        job.emit(RoundDone(job.study.workload.id, done.index, trials, done.best, valid))
        if job.stop.is_set():
            raise Stopped("stopped; the same command goes on from here")
    if seat is not None:
        seat.rest()
    return found


def _more(job: Job, seat: Seat, history: History) -> int:
    """How many trials the next round may have, once the workload is dealt one."""
    granted = seat.more(history)
    if granted:
        dealer = seat.dealer
        job.emit(RoundDealt(job.study.workload.id, dealer.trials - granted, dealer.most_trials))
    return granted


def _tell_untuned(seat: Seat, default: Schedule) -> None:
    """What trials have to beat, if it can be chosen; in the unit of `History.latency`."""
    latency = default.latency
    if not default.compared:
        seat.tell_untuned(float(latency.cycles) if latency.cycles > 0 else latency.seconds)


def _tuned(
    options: TuningOptions, jobs: Sequence[Job], steps: NetworkSteps, stop: threading.Event
) -> tuple[list[TunedWorkload], StopGain | None]:
    """All workloads, each with its own trials; or with those that they are dealt, and what became
    of these."""
    if options.stop_gain is None:
        return each_of(steps.tune, jobs, _at_a_time(options), stop.set), None
    rules = Rules(options.trials, options.batch, options.stop_gain)
    standings = [Standing(job.subgraph.count, job.study.workload.macs) for job in jobs]
    dealer = Dealer(standings, rules, options.jobs, stop)
    seated = [replace(job, seat=seat) for job, seat in zip(jobs, dealer.seats, strict=True)]
    with one_owner() if options.jobs == 1 else nullcontext():
        tuned = each_of(partial(_in_turn, steps), seated, len(seated), dealer.stop)
    return tuned, dealer.outcome


def _at_a_time(options: TuningOptions) -> int:
    """How many workloads: as many as asked for, else what keeps the workers of a cluster busy. A
    board measures one program at a time."""
    if options.jobs > 1 or not options.cluster or kind_of(options.target)[0].make_on is not None:
        return options.jobs
    from targets.cluster.connection import connect

    return max(1, min(MOST_AT_A_TIME, connect(options.cluster).slots()))


def _in_turn(steps: NetworkSteps, job: Job) -> TunedWorkload:
    """A workload, from its first turn to its last."""
    assert job.seat is not None, "rounds are dealt"
    with job.seat:
        return steps.tune(job)


def _found(network: Network) -> NetworkFound:
    return NetworkFound(
        network.model.name,
        network.target.name,
        _named(network.subgraphs),
    )


def _named(subgraphs: Sequence[Subgraph]) -> tuple[WorkloadFound, ...]:
    return tuple(
        WorkloadFound(each.workload.id, str(each.workload), each.count) for each in subgraphs
    )
