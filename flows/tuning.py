"""Tunes a network, a workload of it, a round of that: the pipeline, as consecutive steps.

    a network    import_model → extract_subgraphs → its workloads → log_network
    a workload   measure_baseline → rounds → the choice → verify_schedule → log_workload
    a round      retrain_models → generate_candidates → filter_candidates → lower_candidates
                 → simulate_batch → log_round

`run(step, …)` performs a step. `search.runner.LocalRunner` calls it here and now; the runners of
`tasks.runner` make a Prefect task of it, look into the cache, and log to MLflow. `--bare`, the
library call and the Prefect flow execute these lines. On a cluster, the target sends its batches to
workers.

A round first trains on the trials of earlier rounds, so nothing is trained after the last round.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from tilewright.core.blas_threads import BLAS_ON_ONE_THREAD
from tilewright.core.errors import TilewrightError
from tilewright.fusion.step import decide_fusion
from tilewright.search import (
    Explorer,
    ExplorerState,
    Known,
    LocalRunner,
    Proposal,
    Result,
    Round,
    RunInUse,
    RunRecord,
    Session,
    StoredRun,
    Trial,
    TrialRequest,
    TrialStore,
    run_id,
    setting_of,
    shared_key,
)
from tilewright.search.round_steps import (
    filter_candidates,
    generate_candidates,
    lower_candidates,
    retrain_models,
    simulate_batch,
)
from tilewright.search.session import Stopwatch, rows_of_batch
from tilewright.search.validation_records import ValidationMeasurement
from tilewright.targets.base import Configs, Measurements, Target
from tilewright.targets.capabilities import bound_of, roofline_of
from tilewright.targets.cluster.connection import connect
from tilewright.targets.registry import kind_of, target_remarks
from tilewright.targets.workload import Workload
from tilewright.tuning.events import Note, RoundScheduled, WorkloadBegan
from tilewright.tuning.final_choice import ChoiceRecords, held_choice
from tilewright.tuning.final_validation import measure_leaders
from tilewright.tuning.fusion_interface import Decided, ToDecide
from tilewright.tuning.log_steps import (
    Start,
    load_starts,
    log_network,
    log_parameters,
    log_round,
    log_workload,
    log_workloads_added,
)
from tilewright.tuning.network import (
    NetworkPart,
    Subgraph,
    TuningNetwork,
    extract_subgraphs,
    import_model,
    lone_workload,
    those_of,
)
from tilewright.tuning.open_trials import record_of, trials_of_folder
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.outputs import TunedNetwork
from tilewright.tuning.results import (
    Schedule,
    TunedWorkload,
    choose_schedule,
    latency_to_beat,
    mean_errors,
)
from tilewright.tuning.schedulability import check_fits
from tilewright.tuning.task_scheduler import Flow, SharingRules, StopGain, TaskScheduler, TaskState
from tilewright.tuning.tuning_task import TuningTask, target_of, tuning_task_of
from tilewright.tuning.verification import (
    baseline_again,
    measure_baseline,
    microjoules_of,
    verify_schedule,
    wrong_winners,
)
from tilewright.tuning.workload_job import WorkloadJob

MOST_AT_A_TIME = 64
"""Workloads in threads of one command that has a cluster."""
OWNER_SECONDS = 1.0
"""How often a command that shares a run looks whether the owner of the run has ended."""
POLL_SECONDS = 0.05
"""How often a run looks again while all there is left to try is being measured by others."""


# -- a network ---------------------------------------------------------------------------------


def tune_network(run: LocalRunner, options: TuningOptions) -> TunedNetwork:
    """Tune every workload of a network into `options.folder`.

    Raises a `TilewrightError`: of the model's file, of the target's kind, `RunInUse` if another
    command works on the folder, `FolderTaken` if it holds another run, `UnknownLayer`,
    `NothingFits`, `TrialStoreError`, `WrongSchedule`; `OSError` for a disk that is full.
    """
    begin, target = time.perf_counter(), target_of(options)
    for remark in target_remarks(options.target):
        run.emit(Note(remark))
    with _trials_of_run(run, options) as store:
        network = import_network(run, options, target)
        for reason in check_fits(target, [each.workload for each in network.subgraphs]):
            run.emit(Note(reason))
        tasks = [tuning_task_of(options, each.workload) for each in network.subgraphs]
        starts = run.call(load_starts, options, network, tasks)
        run.call(log_parameters, options, network, [task for task, _ in starts], run.emit)
        tuned, sharing = tune_workloads(
            run, options, network.subgraphs, starts, store, options.stop_gain
        )
        decided = fuse_network(run, options, network, tuned, store) if options.fusion else None
        wall = time.perf_counter() - begin
        return run.call(log_network, options, network, tuned, wall, sharing, decided)


@contextmanager
def _trials_of_run(run: LocalRunner, options: TuningOptions) -> Iterator[TrialStore]:
    """Own the trials of a run. While another command owns those of a shared run, make trials beside
    it. Raises as `trials_of_folder`."""
    helped = False
    with ExitStack() as opened:
        while True:
            try:
                store = opened.enter_context(trials_of_folder(options, run.emit))
                break
            except RunInUse:
                if not options.shared:
                    raise
            if helped:
                time.sleep(OWNER_SECONDS)
            else:
                _help_owner(run, options)
                helped = True
        yield store


def _help_owner(run: LocalRunner, options: TuningOptions) -> None:
    """Make the trials of a shared run beside the command that owns it, until there are enough.
    Commands begin at different workloads. The owner writes the results; if it dies before, this
    command does."""
    here = LocalRunner(run.emit)
    run.emit(Note(f"another command owns {options.folder}; this one makes trials beside it"))
    with trials_of_folder(options, run.emit, own=False) as store:
        network = import_network(here, options, target_of(options))
        tasks = [tuning_task_of(options, each.workload) for each in network.subgraphs]
        starts = run.call(load_starts, options, network, tasks)
        first = os.getpid() % len(starts)
        for task, state in [*starts[first:], *starts[:first]]:
            session = Session(task.setting, state, here)
            record = record_of(store, task)
            for _ in tune_rounds(session, record, trials=options.trials, batch=options.batch):
                pass


def import_network(run: LocalRunner, options: TuningOptions, target: Target) -> TuningNetwork:
    """Read a network and find what there is to tune: all of it, some layers, or one workload that
    is given as it is. Raises as `tune_network`."""
    if options.workload:
        model, found = lone_workload(options.workload, options.steps)
        alone: NetworkPart = {
            "workload": str(found.subgraphs[0].workload), "epilogue": options.steps,
        }  # fmt: skip
        return TuningNetwork(model, target, found, alone)
    imported = run(import_model, options.model, options.input_shapes)
    found = run(
        extract_subgraphs, imported, target, options.epilogue_mode, options.max_waste,
        options.input_shapes, options.calibration,
    ).value  # fmt: skip
    if not options.layers:
        return TuningNetwork(imported.value, target, found)
    part: NetworkPart = {
        "layers": list(options.layers), "workloads_of_network": len(found.subgraphs),
    }  # fmt: skip
    return TuningNetwork(imported.value, target, those_of(found, options.layers), part)


def tune_workloads(
    run: LocalRunner,
    options: TuningOptions,
    subgraphs: Sequence[Subgraph],
    starts: Sequence[Start],
    store: TrialStore,
    share: float | None,
) -> tuple[list[TunedWorkload], StopGain | None]:
    """Tune workloads, each with its own trials; or, with the `share` of the latency that a round
    has to save, with part of all trials, and what became of these. Raises as `tune_network`."""
    rules = None if share is None else SharingRules(options.trials, options.batch, share)
    most = options.trials * (len(subgraphs) if rules else 1)
    jobs = [
        WorkloadJob(options, subgraph, task, state, store, most, rules is not None)
        for subgraph, (task, state) in zip(subgraphs, starts, strict=True)
    ]
    scheduler = TaskScheduler(
        [run.workload(tune_workload, job) for job in jobs],
        [TaskState(job.subgraph.count, job.study.workload.macs) for job in jobs],
        at_a_time(options) if rules is None else options.jobs,
        rules,
    )
    store.add_runs([task.store_key for task, _ in starts])
    tuned = scheduler.run()
    return tuned, scheduler.outcome


def fuse_network(
    run: LocalRunner,
    options: TuningOptions,
    network: TuningNetwork,
    tuned: Sequence[TunedWorkload],
    store: TrialStore,
) -> Decided:
    """Decide what runs together. Workloads that come of it are tuned as those before. Raises as
    `tune_network`, and `FusionError`."""

    def tune_more(subgraphs: Sequence[Subgraph]) -> list[TunedWorkload]:
        tasks = [tuning_task_of(options, each.workload) for each in subgraphs]
        starts = run.call(load_starts, options, network, tasks)
        run.call(log_workloads_added, subgraphs, run.emit)
        return tune_workloads(run, options, subgraphs, starts, store, None)[0]

    asked = ToDecide(options, network.target, network.model.name, tuned, tune_more, run.emit)
    return run(decide_fusion, asked).value


def at_a_time(options: TuningOptions) -> int:
    """How many workloads: as many as asked for, else what keeps the workers of a cluster busy. A
    board measures one program at a time."""
    if options.jobs > 1 or not options.cluster or kind_of(options.target)[0].make_on is not None:
        return options.jobs
    return max(1, min(MOST_AT_A_TIME, connect(options.cluster).slots()))


# -- a workload --------------------------------------------------------------------------------


def tune_workload(run: LocalRunner, job: WorkloadJob) -> Flow[TunedWorkload]:
    """Tune one workload: rounds until the trials are spent, the winner timed again, the proof.
    Raises as `tune_network`."""
    begin, task, subgraph = time.perf_counter(), job.study, job.subgraph
    target, workload = task.target, task.workload
    repeats, waits = target.deterministic, list[float]()
    found, roofline = run(measure_baseline, task).value, roofline_of(target, workload)
    baseline = found.baseline
    run.emit(WorkloadBegan(workload.id, found.before, roofline))
    timed: dict[int, Trial] = {}
    session, done = yield from _rounds(run, job, baseline, waits)
    final = None if repeats else held_choice(_choice(job, session, baseline), timed, run.emit)
    if repeats or any(each.reused for each in done):
        while final is None and (wrong := wrong_winners(task, session.history, timed, run.emit)):
            job.record().correct(wrong)
            session, done = yield from _rounds(run, job, baseline, waits)
    if repeats:
        chosen = choose_schedule(task, session.history, baseline)
        if chosen is not None and chosen is baseline:
            chosen = baseline = baseline_again(task, baseline, run.emit)
    else:
        measure = partial(_measure_leaders, run, task)
        final = final or _choice(job, session, baseline).make(measure)
        chosen, baseline = final.chosen, final.baseline
    if chosen is not None:
        run(verify_schedule, task, chosen)
    tuned = TunedWorkload(
        study=task,
        count=subgraph.count,
        names=subgraph.names,
        baseline=baseline,
        fallback=found.fallback,
        chosen=chosen,
        roofline=roofline,
        bound=bound_of(target, workload),
        trials=len(session.history),
        invalid_trials=int((~session.history.valid).sum()),
        lowered=sum(each.lowered for each in done),
        failed_compiles=len(session.history.failed),
        reused_trials=sum(len(each.configs) for each in done if each.reused),
        timed_again=len(timed),
        wall_seconds=time.perf_counter() - begin - sum(waits),
        validation=None if final is None else final.validation,
        model_errors=mean_errors(done),
        microjoules=microjoules_of(task, chosen),
    )
    run.call(log_workload, job, tuned, session, run.emit)
    return tuned


def _rounds(
    run: LocalRunner, job: WorkloadJob, baseline: Schedule | None, waits: list[float]
) -> Flow[tuple[Session, list[Round]]]:
    """All rounds of a workload, those of the record first; adds to `waits` the seconds in which
    others had theirs."""
    options, task = job.options, job.study
    setting = task.setting
    session, record = Session(setting, job.state, run), job.record()
    done: list[Round] = []
    for each in rounds(
        session, record, trials=job.most_trials, batch=options.batch, shared=job.shared
    ):
        if isinstance(each, TrialRequest):
            each.baseline, begin = latency_to_beat(task, baseline), time.perf_counter()
            yield each
            waits.append(time.perf_counter() - begin)
            if each.granted:
                run.emit(RoundScheduled(task.workload.id, each.made, job.most_trials))
            continue
        done.append(each)
        trials = sum(len(one.configs) for one in done)
        valid = float(np.mean(session.history.valid[:trials]))
        run.call(log_round, task, each, trials, valid, run.emit)
        yield None
    for problem in record.problems:
        run.emit(Note(problem))
    return session, done


def _choice(job: WorkloadJob, session: Session, baseline: Schedule | None) -> ChoiceRecords:
    return ChoiceRecords(job.study, job.record(), session.history, baseline, job.options.leaders)


def _measure_leaders(
    run: LocalRunner, task: TuningTask, block: int, contenders: Sequence[Schedule], turns: int
) -> list[ValidationMeasurement]:
    return run(measure_leaders, task, block, contenders, turns).value


# -- rounds ------------------------------------------------------------------------------------


def tune(
    target: Target, workload: Workload, explorer: Explorer, *, trials: int, batch: int = 8,
    seed: int = 0, store: TrialStore | None = None, state: ExplorerState | None = None,
    shared: bool = False,
) -> Iterator[Round]:  # fmt: skip
    """Tune one workload; yields each round when it is done, those that a store already holds first.

    Args:
        target: what compiles and measures.
        workload: what is tuned.
        explorer: proposes configs.
        trials: stop after so many measurements, or when the explorer has nothing left.
        batch: measurements per round.
        seed: the same seed gives the same trials, unless they are `shared`.
        store: where trials are kept.
        state: what the explorer knows before the first trial.
        shared: make the trials together with other processes that call this with the same
            arguments and a store, each opened with `own=False`, of the same file or database. Every
            trial is made once. Rounds of all processes are yielded, in order. Which trials are made
            depends on who is faster.

    Raises:
        TilewrightError: `trials` or `batch` is below 1.
        WorkloadError: the target has no schedule for the workload.
        TrialStoreError, RunInUse: as `TrialStore`.
    """
    setting = setting_of(target, workload, explorer, seed)
    key = (workload.id, target.fingerprint, run_id(explorer, seed, batch))
    record = RunRecord()
    if store is not None:
        record = StoredRun(
            store, shared_key(key) if shared else key, setting.problem.space,
            other_runs=target.deterministic, shared=shared,
        )  # fmt: skip
    yield from tune_rounds(Session(setting, state), record, trials=trials, batch=batch)


def tune_rounds(session: Session, record: RunRecord, *, trials: int, batch: int) -> Iterator[Round]:
    """Tune until the record holds `trials` or the explorer has nothing left; yields each round when
    it is done, those the record already holds first. Raises `TilewrightError` if `trials` or
    `batch` is below 1, and what the record raises."""
    for each in rounds(session, record, trials=trials, batch=batch):
        assert isinstance(each, Round), "only shared trials are asked for"
        yield each


def rounds(
    session: Session, record: RunRecord, *, trials: int, batch: int, shared: bool = False
) -> Iterator[Round | TrialRequest]:
    """As `tune_rounds`. Where trials are `shared`, yields a `TrialRequest` before each further
    round, and one that says so when nothing is left to try; in no turn of the record. Raises
    `TilewrightError` if `trials` or `batch` is below 1."""
    if trials < 1 or batch < 1:
        raise TilewrightError(f"trials ({trials}) and batch ({batch}) must be at least 1")
    allowed = 0 if shared else trials
    while True:
        if session.unlearned and allowed > len(session.history):
            learn(session)  # not while others wait for their turn
        with record.turn():
            news = record.news(session.history.round, trials - len(session.history))
            if not news:
                pending = record.pending()
                busy = 0 if pending is None else len(pending)
                n = min(batch, allowed - len(session.history) - busy)
                proposal = propose_batch(session, n, pending) if n > 0 else None
                known = {} if proposal is None else record.known()
                if proposal is not None:
                    record.claim(proposal.batch)
        if news:
            yield from session.take_up(news)
        elif proposal is not None:
            yield from _measured(session, record, proposal, known)
        elif busy:
            time.sleep(POLL_SECONDS)
        elif n > 0 or not shared:
            if shared:
                yield TrialRequest(session.history, exhausted=True)
            return
        else:
            request = TrialRequest(session.history)
            yield request
            if request.granted < 1:
                return
            allowed = min(len(session.history) + request.granted, trials)


def tune_round(session: Session, n: int) -> Round | None:
    """One round of up to `n` trials without a record; None if there is nothing to propose."""
    proposal = propose_batch(session, n)
    if proposal is None:
        return None
    return session.finish(*measure_batch(session, proposal, {}))


def propose_batch(session: Session, n: int, pending: Configs | None = None) -> Proposal | None:
    """What to measure next, at most `n` configs, none of them tried or `pending` (p, knobs); None
    if there is nothing left."""
    with BLAS_ON_ONE_THREAD:
        run, setting, state = session.run, session.setting, learn(session)
        clock, session.learning = Stopwatch({"retrain": session.learning}), 0.0
        history = session.history_for_steps(pending)
        with clock.of("generate"):
            candidates = run(generate_candidates, setting, state, history, n)
        with clock.of("filter"):
            kept = run(filter_candidates, setting, state, history, candidates, n)  # Model V
        if not len(kept.value):
            return None
        with clock.of("lower"):
            batch = run(lower_candidates, setting, state, history, kept, n)  # Model A
    return Proposal(batch, len(candidates.value), kept.value.vetoed, clock.seconds)


def measure_batch(
    session: Session, proposal: Proposal, known: Known
) -> tuple[Proposal, Measurements]:
    """Simulate a batch, but for what is `known`."""
    clock, history = Stopwatch(proposal.stage_seconds), session.history_for_steps()
    flat = session.setting.problem.space.ravel(proposal.batch.rows.configs)
    held = {int(i): known[int(i)] for i in flat if int(i) in known}
    with clock.of("measure"):
        measured = session.run(simulate_batch, session.setting, history, proposal.result, held)
    return replace(proposal, stage_seconds=clock.seconds), measured.value


def learn(session: Session) -> Result[ExplorerState]:
    """What the tuner knows after the rounds so far: Models P, V and A, retrained on those that they
    have not seen (`retrain_models`)."""
    run, begun = session.run, time.perf_counter()
    state = session.state or run.begin(session.setting, session.start)
    histories = [run.keep(history) for history in session.unlearned]
    if histories:
        state = run.after_each(retrain_models, session.setting, state, histories)
        session.learning += time.perf_counter() - begun
    session.learned(state, histories)
    return state


def _measured(
    session: Session, record: RunRecord, proposal: Proposal, known: Known
) -> Iterator[Round]:
    """Measure a batch and record it; no round where others had claimed all of it."""
    proposal, measured = measure_batch(session, proposal, known)
    clock = Stopwatch(proposal.stage_seconds)
    with record.turn(), clock.of("record"):
        index, kept = record.settle(session.history.round, proposal.batch, measured)
    if not len(kept):
        return
    counted = Result(rows_of_batch(proposal.batch, kept))
    proposal = replace(proposal, result=counted, stage_seconds=clock.seconds)
    if index == session.history.round:
        yield session.finish(proposal, measured.rows(kept))
    else:
        session.settled(index, proposal, measured.rows(kept))
