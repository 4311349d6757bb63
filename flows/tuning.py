"""Tuning of a network, a workload or a single round, as a pipeline of steps.

- A network: import_model → extract_subgraphs → its workloads → log_network
- A workload: measure_baseline → rounds → choice of the best schedule → verify_schedule →
  log_workload
- A round: retrain_models → generate_candidates → filter_candidates → lower_and_choose →
  measure_batch → record.settle (stores the trials) → log_round (shows the round)

`run(step, …)` executes a step through a runner. `search.runner.LocalRunner` calls the step
immediately. The runners of `tasks.runner_prefect` turn it into a Prefect task, whose result Prefect
caches, and log to MLflow. `tilewright tune --bare` (`cli/commands/tune.py`), the library function
and the Prefect flow all execute the code in this module.

On a cluster, the target sends its batches to the workers. A round begins by training the models on
the trials of earlier rounds, so no model is trained after the last round.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from tilewright.core.errors import TilewrightError
from tilewright.core.thread_pools import BLAS_ON_ONE_THREAD
from tilewright.fusion import decide_fusion
from tilewright.search import (
    Batch,
    Explorer,
    ExplorerState,
    Known,
    LocalRunner,
    Round,
    RunInUse,
    Session,
    StoredRun,
    Task,
    Trial,
    TrialRequest,
    TrialStore,
    make_task,
    recorded_batch,
    run_id,
    shared_key,
)
from tilewright.search.round_steps import (
    begin_models,
    filter_candidates,
    generate_candidates,
    lower_and_choose,
    measure_batch,
    retrain_models,
)
from tilewright.search.rounds import Stopwatch, describe_round
from tilewright.targets.base import Configs, Target
from tilewright.targets.capabilities import bound_of, roofline_of
from tilewright.targets.cluster.connection import connect
from tilewright.targets.registry import kind_of, target_remarks
from tilewright.targets.workload import Workload
from tilewright.tuning.best_known import (
    best_known,
    describe_run,
    earlier_winners,
    run_that_found,
)
from tilewright.tuning.events import Note, RoundScheduled, WorkloadBegan
from tilewright.tuning.final_validation import ChoiceRecords, held_choice
from tilewright.tuning.fusion_interface import Decided, ToDecide
from tilewright.tuning.log_steps import (
    log_network,
    log_parameters,
    log_round,
    log_workload,
    log_workloads_added,
    start_sessions,
)
from tilewright.tuning.network import (
    NetworkPart,
    Subgraph,
    TuningNetwork,
    extract_subgraphs,
    import_model,
    lone_workload,
    select_layers,
)
from tilewright.tuning.open_trials import record_of, trials_of_folder
from tilewright.tuning.options import TuningOptions, seconds_of_duration
from tilewright.tuning.outputs import TunedNetwork
from tilewright.tuning.results import (
    TunedWorkload,
    choose_schedule,
    latency_to_beat,
    mean_errors,
)
from tilewright.tuning.run_flows import Flow, run_in_threads, run_to_end
from tilewright.tuning.schedulability import check_fits
from tilewright.tuning.task_scheduler import SharingRules, StopGain, TaskScheduler, TaskState
from tilewright.tuning.time_limit import TimeLimit, is_over
from tilewright.tuning.tuning_task import TuningTask, target_of
from tilewright.tuning.verification import (
    baseline_again,
    measure_baseline,
    microjoules_of,
    verify_schedule,
    wrong_winners,
)

TEACHERS = 4
"""Number of workloads that are tuned first. Models V and A of all later workloads also learn from
the trials of these workloads."""
MOST_AT_A_TIME = 64
"""Maximum number of workloads that one command tunes at the same time on a cluster."""
OWNER_SECONDS = 1.0
"""Seconds between two checks whether the owner of a shared run has ended. Other commands that share
the run make these checks."""
POLL_SECONDS = 0.05
"""Seconds between two checks of a run that has nothing left to measure because other processes are
measuring the remaining candidates."""


# -- a network ---------------------------------------------------------------------------------


def tune_network(run: LocalRunner, options: TuningOptions) -> TunedNetwork:
    """Tune every workload of a network, and write the results to `options.folder`.

    Args:
        run: runner that executes the steps.
        options: options of the run.

    Returns:
        The tuned network, with the content of `summary.json`.

    Raises:
        RunInUse: another command is working on the folder.
        FolderTaken: the folder contains another run.
        UnknownLayer: a requested layer does not exist in the network.
        NothingFits: no workload has a config that compiles.
        TrialStoreError: the trials cannot be read or written.
        WrongSchedule: a schedule computes wrong values.
        TilewrightError: the model or the target cannot be used.
        OSError: a file cannot be written, for example because the disk is full.
    """
    begin, target = time.perf_counter(), target_of(options)
    for remark in target_remarks(options.target):
        run.emit(Note(remark))
    with _trials_of_run(run, options) as store:
        network = import_network(run, options, target)
        for reason in check_fits(target, [subgraph.workload for subgraph in network.subgraphs]):
            run.emit(Note(reason))
        starts = run.call(start_sessions, options, network.subgraphs)
        run.call(log_parameters, options, network, [task for task, _ in starts], run.emit)
        limit = time_limit_of(options, len(starts))
        tuned, sharing = tune_workloads(run, options, starts, store, options.stop_gain, limit)
        if stopped := [
            workload_result for workload_result in tuned if workload_result.stopped_by_time
        ]:
            run.emit(Note(
                f"the time limit --for {options.time_limit} stopped {len(stopped)} of "
                f"{len(tuned)} workloads early; repeat the command to continue"
            ))  # fmt: skip
        decided = None
        if options.fusion:
            decided = fuse_network(run, options, network, tuned, store, limit)
        wall = time.perf_counter() - begin
        return run.call(log_network, options, network, tuned, wall, sharing, decided)


@contextmanager
def _trials_of_run(run: LocalRunner, options: TuningOptions) -> Iterator[TrialStore]:
    """Open the trial store of a run as its owner, for a `with` block.

    The owner is the command that writes the results. Another command can own a shared run. This
    command then first contributes trials, and becomes the owner as soon as the other command has
    ended. Raises the errors of `trials_of_folder`.

    Args:
        run: runner that executes the steps.
        options: options of the run.

    Yields:
        The trial store.
    """
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
    """Contribute trials to a shared run that another command owns.

    Several commands make the trials of a shared run, in one trial store. Each command starts with a
    different workload, so that they rarely work on the same one. The function returns when there
    are enough trials. The owner writes the results; if it dies before, this command becomes the
    owner.

    Args:
        run: runner of this command. Its events are shown, but the steps are executed in this
            process.
        options: options of the run.
    """
    here = LocalRunner(run.emit)
    run.emit(
        Note(
            f"another command is tuning in {options.folder}; this command contributes "
            "trials to its run"
        )
    )
    with trials_of_folder(options, run.emit, own=False) as store:
        network = import_network(here, options, target_of(options))
        starts = run.call(start_sessions, options, network.subgraphs)
        first = os.getpid() % len(starts)
        until = time_limit_of(options, len(starts)).begin_workload(pooled=True)
        for task, session in [*starts[first:], *starts[:first]]:
            record = record_of(store, task)
            for _ in rounds(
                here, task, session, record, trials=options.trials, batch=options.batch,
                until=until,
            ):  # fmt: skip
                pass


def import_network(run: LocalRunner, options: TuningOptions, target: Target) -> TuningNetwork:
    """Read a network and find the workloads to tune in it.

    By default, these are all workloads of the network. The options can restrict them to the
    workloads of some layers, or name a single workload instead of a network.

    Args:
        run: runner that executes the steps.
        options: options of the run.
        target: the target.

    Returns:
        The imported model, the target and the workloads to tune.

    Raises the errors of `tune_network`.
    """
    if options.workload:
        model, result = lone_workload(options.workload, options.steps)
        alone: NetworkPart = {
            "workload": str(result.subgraphs[0].workload), "epilogue": options.steps,
        }  # fmt: skip
        return TuningNetwork(model, target, result, alone)
    imported = run(import_model, options.model, options.input_shapes)
    result = run(
        extract_subgraphs,
        imported,
        target,
        options.epilogue_mode,
        options.max_waste,
        options.input_shapes,
        options.calibration,
    )
    if not options.layers:
        return TuningNetwork(imported, target, result)
    part: NetworkPart = {
        "layers": list(options.layers), "workloads_of_network": len(result.subgraphs),
    }  # fmt: skip
    return TuningNetwork(imported, target, select_layers(result, options.layers), part)


def tune_workloads(
    run: LocalRunner,
    options: TuningOptions,
    starts: Sequence[tuple[TuningTask, Session]],
    store: TrialStore,
    share: float | None,
    limit: TimeLimit,
) -> tuple[list[TunedWorkload], StopGain | None]:
    """Tune several workloads within a time limit.

    Args:
        run: runner that executes the steps.
        options: options of the run.
        starts: the task and the initial session of each workload.
        store: the trial store.
        share: if given, all workloads share one budget of trials, and tuning ends when no round is
            expected to save more than this fraction of the latency. If None, every workload gets
            `options.trials` trials.
        limit: time limit.

    Returns:
        The tuned workloads. If they share their trials, also a summary of how the trials were
        spent; otherwise None.

    Raises the errors of `tune_network`.
    """
    store.add_runs([task.store_key for task, _ in starts])
    if share is None:
        teachers = _teachers(options, starts)
        tuned = list[TunedWorkload]()
        # The teachers' trials are added to those of an earlier run (`--warm-start DIR`), if given.
        state = ExplorerState(arrays=starts[0][1].models.arrays if starts else {})
        for task, session in starts[:teachers]:
            start = session.with_shared(state)
            flow = run.workload(
                tune_workload, options, task, start, store, options.trials, False, limit
            )
            tuned.append(run_to_end(flow))
            state = task.explorer.share(task.problem, state, tuned[-1].history)
        flows = [
            run.workload(
                tune_workload,
                options,
                task,
                session.with_shared(state),
                store,
                options.trials,
                False,
                limit,
            )
            for task, session in starts[teachers:]
        ]
        threads = at_a_time(options)
        if threads > 1:
            return tuned + run_in_threads(flows, threads), None
        return tuned + [run_to_end(flow) for flow in flows], None
    most = options.trials * len(starts)
    flows = [
        run.workload(tune_workload, options, task, session, store, most, True, limit)
        for task, session in starts
    ]
    scheduler = TaskScheduler(
        flows,
        [TaskState(task.count, task.workload.macs) for task, _ in starts],
        options.jobs,
        SharingRules(options.trials, options.batch, share),
    )
    tuned, outcome = scheduler.run(), scheduler.outcome
    if outcome is not None and any(workload_result.stopped_by_time for workload_result in tuned):
        outcome["why"] = "time"
    return tuned, outcome


def _teachers(options: TuningOptions, starts: Sequence[tuple[TuningTask, Session]]) -> int:
    """Return the number of workloads to tune first, so that the others can learn from their trials.

    These workloads are tuned one after the other. Equal seeds therefore give equal trials, however
    many workloads are tuned at the same time afterwards. The number is 0 if the tuner does not
    share what it learns between workloads, or if several commands make the trials together, because
    such trials depend on timing anyway.

    Args:
        options: options of the run.
        starts: the task and the initial session of each workload.
    """
    learning = len(starts) > 1 and not options.shared and starts[0][0].explorer.shares
    return min(TEACHERS, len(starts) - 1) if learning else 0


def fuse_network(
    run: LocalRunner,
    options: TuningOptions,
    network: TuningNetwork,
    tuned: Sequence[TunedWorkload],
    store: TrialStore,
    limit: TimeLimit,
) -> Decided:
    """Decide which operators of a tuned network are fused.

    A different fusion can lead to workloads that are not tuned yet. These are tuned first, in the
    same way as the others.

    Args:
        run: runner that executes the steps.
        options: options of the run.
        network: the network and the target.
        tuned: the workloads that are already tuned.
        store: the trial store.
        limit: time limit.

    Returns:
        The decision, with the content of `fusion.json`.

    Raises the errors of `tune_network`, and `FusionError`.
    """

    def tune_more(subgraphs: Sequence[Subgraph]) -> list[TunedWorkload]:
        starts = run.call(start_sessions, options, subgraphs)
        run.call(log_workloads_added, subgraphs, run.emit)
        return tune_workloads(run, options, starts, store, None, limit)[0]

    asked = ToDecide(options, network.target, network.model.name, tuned, tune_more, run.emit)
    return run(decide_fusion, asked)


def time_limit_of(options: TuningOptions, workloads: int) -> TimeLimit:
    """Start the time limit of a run, and return it.

    Args:
        options: options of the run, with the limit.
        workloads: number of workloads that share the time.
    """
    seconds = seconds_of_duration(options.time_limit)
    return TimeLimit(seconds, workloads, 1 if seconds is None else at_a_time(options))


def at_a_time(options: TuningOptions) -> int:
    """Return the number of workloads to tune at the same time.

    This is the requested number or, on a cluster, enough to keep all workers busy. For a board it
    is always the requested number, because a board measures only one program at a time.

    Args:
        options: options of the run.
    """
    if options.jobs > 1 or not options.cluster or kind_of(options.target)[0].make_on is not None:
        return options.jobs
    return max(1, min(MOST_AT_A_TIME, connect(options.cluster).slots()))


# -- a workload --------------------------------------------------------------------------------


def tune_workload(
    run: LocalRunner, options: TuningOptions, task: TuningTask, session: Session, store: TrialStore,
    most_trials: int, pooled: bool = False, limit: TimeLimit | None = None,
) -> Flow[TunedWorkload]:  # fmt: skip
    """Tune one workload: make rounds of trials, choose the best schedule, and verify it.

    Rounds are made until the trials or the time are used up. If measurements vary, the best
    schedules are measured again before one is chosen (`tuning.final_validation`). If recorded
    trials of a deterministic target turn out to be wrong, they are corrected and the rounds are
    repeated.

    Args:
        run: runner that executes the steps.
        options: options of the run.
        task: the workload, target and tuner.
        session: the session before the first round.
        store: the trial store.
        most_trials: maximum number of trials. If the workloads share their trials, this is the
            total of all workloads.
        pooled: whether the workloads share their trials.
        limit: time limit, if any.

    Yields:
        None after each round. If the workloads share their trials, also a `TrialRequest` before
        each round, with which the task scheduler is asked for trials.

    Returns:
        The tuned workload, as the return value of the generator.

    Raises the errors of `tune_network`.
    """
    begin, target, workload = time.perf_counter(), task.target, task.workload
    waited = 0.0  # seconds in which other workloads had their rounds
    until = None if limit is None else limit.begin_workload(pooled)
    result, roofline = run(measure_baseline, task), roofline_of(target, workload)
    baseline, final = result.baseline, None
    describe_run(store, task)
    rule = None if result.baseline is None else result.baseline.latency
    run.emit(WorkloadBegan(workload.id, rule, roofline))
    timed: dict[int, Trial] = {}
    start, looked = session, target.deterministic
    while True:  # repeated if recorded trials turn out to be wrong
        record, session, done = record_of(store, task), start, list[Round]()
        for round_ in rounds(
            run, task, session, record, trials=most_trials, batch=options.batch, pooled=pooled,
            until=until,
        ):  # fmt: skip
            if isinstance(round_, TrialRequest):
                round_.baseline, asked = latency_to_beat(task, baseline), time.perf_counter()
                yield round_
                waited += time.perf_counter() - asked
                if round_.granted:
                    run.emit(RoundScheduled(workload.id, round_.made, most_trials))
                continue
            session = round_.session
            done.append(round_)
            run.call(log_round, task, round_, run.emit)
            yield None
        for problem in record.problems:
            run.emit(Note(problem))
        choice = ChoiceRecords(
            task, record, session.history, baseline, options.leaders, earlier_winners(task, record)
        )
        if not looked:
            final, looked = held_choice(choice, timed, run.emit), True
        if final is not None or not (target.deterministic or any(item.reused for item in done)):
            break
        wrong = wrong_winners(task, session.history, timed, run.emit)
        if not wrong:
            break
        record_of(store, task).correct(wrong)
    if target.deterministic:
        chosen = choose_schedule(task, session.history, baseline)
        if chosen is not None and chosen is baseline:
            chosen = baseline = baseline_again(task, baseline, run.emit)
        chosen = best_known(task, record, chosen, timed, run.emit)
    else:
        final = final or choice.make_choice(run)
        chosen, baseline = final.chosen, final.baseline
    if chosen is not None:
        run(verify_schedule, task, chosen)
    tuned = TunedWorkload(
        task=task,
        count=task.count,
        names=task.names,
        baseline=baseline,
        fallback=result.fallback,
        chosen=chosen,
        roofline=roofline,
        bound=bound_of(target, workload),
        trials=len(session.history),
        invalid_trials=int((~session.history.valid).sum()),
        lowered=sum(item.lowered for item in done),
        failed_compiles=len(session.history.failed),
        reused_trials=sum(len(item.configs) for item in done if item.reused),
        timed_again=len(timed),
        wall_seconds=time.perf_counter() - begin - waited,
        validation=None if final is None else final.validation,
        model_errors=mean_errors(done),
        microjoules=microjoules_of(task, chosen),
        history=session.history,
        found_by=run_that_found(task, record, session.history, chosen, run.emit),
        stopped_by_time=len(session.history) < most_trials and is_over(until),
    )
    run.call(log_workload, options, task, tuned, session, run.emit)
    return tuned


# -- rounds ------------------------------------------------------------------------------------


def tune(
    target: Target, workload: Workload, explorer: Explorer, *, trials: int, batch: int = 8,
    seed: int = 0, store: TrialStore | None = None, state: ExplorerState | None = None,
    shared: bool = False,
) -> Iterator[Round]:  # fmt: skip
    """Tune one workload, and yield each round when it is finished. Rounds in the store come first.

    Args:
        target: compiles and measures the schedules.
        workload: the workload to tune.
        explorer: the tuner, which proposes configs.
        trials: maximum number of trials. Tuning also stops when the tuner has no untried config.
        batch: number of trials per round.
        seed: seed of the random numbers. Equal seeds give equal trials, unless `shared` is set.
        store: store for the trials; None to keep no trials.
        state: initial state of the tuner, such as models from an earlier run; None to start
            without.
        shared: whether several processes make the trials together. Each process calls this function
            with the same arguments, and with a store that it opened with `own=False` on the same
            file or database. Every trial is made once, and every process yields the rounds of all
            processes in the same order. The chosen trials depend on timing.

    Yields:
        The rounds, each with the session after it.

    Raises:
        TilewrightError: `trials` or `batch` is below 1.
        WorkloadError: the target has no schedule for the workload.
        TrialStoreError: the trials cannot be read or written.
        RunInUse: another command owns the output directory.
    """
    run, task = LocalRunner(), make_task(target, workload, explorer, seed)
    session = Session.start(task, state)
    if store is None:
        yield from rounds_without_store(run, task, session, trials=trials, batch=batch)
        return
    key = (workload.id, target.fingerprint, run_id(explorer, seed, batch))
    record = StoredRun(
        store, shared_key(key) if shared else key, task.problem.space,
        other_runs=target.deterministic, shared=shared,
    )  # fmt: skip
    for done in rounds(run, task, session, record, trials=trials, batch=batch):
        assert isinstance(done, Round), "only shared trials are asked for"
        yield done


def rounds(
    run: LocalRunner, task: Task, session: Session, record: StoredRun, *, trials: int, batch: int,
    pooled: bool = False, until: float | None = None,
) -> Iterator[Round | TrialRequest]:  # fmt: skip
    """Tune until the store contains `trials` trials of this run, or no untried config is left.

    Several processes can make the trials of one run. Much of the code is for this case only: a
    round in `news` was made by another process, `pending` configs are being measured by other
    processes, and a batch loses the configs that another process has taken. A process that works
    alone finds only the rounds of an earlier, interrupted run in `news`, has nothing `pending` and
    keeps every batch completely.

    Args:
        run: runner that executes the steps.
        task: the workload, target and tuner.
        session: the session before the first round.
        record: the trials of this run in the store.
        trials: maximum number of trials.
        batch: number of trials per round.
        pooled: whether the workloads share their trials (`--stop-gain`).
        until: value of `time.monotonic()`, in seconds, after which no new round begins. The first
            round is always made, and recorded rounds are always read. None for no limit.

    Yields:
        Each round when it is finished; rounds in the store come first. With `pooled`, also a
        `TrialRequest` before each new round, and a last request with `exhausted=True` when no
        untried config is left. The store is not locked while a request is yielded.

    Raises:
        TilewrightError: `trials` or `batch` is below 1, or the record cannot be used.
    """
    _check_counts(trials, batch)
    allowed, late = 0 if pooled else trials, dict[int, Batch]()
    while True:
        clock, made = Stopwatch(), len(session.history)
        over_time = made > 0 and is_over(until)
        if session.unlearned and allowed > made and not over_time:
            session = learn(run, task, session, clock)  # train before taking the lock
        with record.turn():
            news = record.next_rounds(session.history.round, trials - made)
            if not news:
                pending = record.pending()
                busy = 0 if pending is None else len(pending)
                n = 0 if over_time else min(batch, allowed - made - busy)
                chosen: Batch | None = None
                known: Known = {}
                if n > 0:
                    session = learn(run, task, session, clock)
                    chosen = propose_batch(run, task, session, n, pending, clock)
                if chosen is not None:
                    known = record.known_trials()
                    record.claim(chosen)
        if news:
            for finished in news:
                own = late.pop(finished.index, None)
                again = own or recorded_batch(task, finished)
                session = session.extend(again)
                yield describe_round(session, again, None if own else finished.errors)
        elif chosen is not None:
            with clock.measure("measure"):
                chosen = replace(chosen, measured=run(measure_batch, task, chosen, known))
            with record.turn(), clock.measure("record"):
                index, kept = record.settle(session.history.round, chosen)
            measured = replace(chosen.take(kept), stage_seconds=clock.seconds)
            if not len(kept):
                continue  # other processes have taken all configs
            if index > session.history.round:
                late[index] = measured  # other processes have added rounds before this one
                continue
            session = session.extend(measured)
            yield describe_round(session, measured)
        elif busy:
            time.sleep(POLL_SECONDS)
        elif n > 0 or over_time or not pooled:
            if pooled:
                yield TrialRequest(session.history, exhausted=True)
            return
        else:
            request = TrialRequest(session.history)
            yield request
            if request.granted < 1:
                return
            allowed = min(made + request.granted, trials)


def rounds_without_store(
    run: LocalRunner, task: Task, session: Session, *, trials: int, batch: int
) -> Iterator[Round]:
    """Tune without a store until `trials` trials are made or no untried config is left.

    Args:
        run: runner that executes the steps.
        task: the workload, target and tuner.
        session: the session before the first round.
        trials: maximum number of trials in the session.
        batch: number of trials per round.

    Yields:
        Each round when it is finished.

    Raises:
        TilewrightError: `trials` or `batch` is below 1.
    """
    _check_counts(trials, batch)
    while left := max(trials - len(session.history), 0):
        done = tune_round(run, task, session, min(batch, left))
        if done is None:
            break
        yield done
        session = done.session


def tune_round(run: LocalRunner, task: Task, session: Session, n: int) -> Round | None:
    """Make one round of up to `n` trials without a store.

    Args:
        run: runner that executes the steps.
        task: the workload, target and tuner.
        session: the trials and models before the round.
        n: maximum number of trials.

    Returns:
        The round, which contains the session after it. None if the tuner proposes no config.
    """
    clock = Stopwatch()
    session = learn(run, task, session, clock)
    batch = propose_batch(run, task, session, n, clock=clock)
    if batch is None:
        return None
    with clock.measure("measure"):
        measured = run(measure_batch, task, batch, {})
    batch = replace(batch, measured=measured, stage_seconds=clock.seconds)
    return describe_round(session.extend(batch), batch)


def tune_session(task: Task, trials: int, batch: int) -> Session:
    """Tune a workload without a store, and return the final session: its trials and models.

    Args:
        task: the workload, target and tuner.
        trials: maximum number of trials.
        batch: number of trials per round.
    """
    session = Session.start(task)
    for done in rounds_without_store(LocalRunner(), task, session, trials=trials, batch=batch):
        session = done.session
    return session


def _check_counts(trials: int, batch: int) -> None:
    if trials < 1 or batch < 1:
        raise TilewrightError(f"trials ({trials}) and batch ({batch}) must both be at least 1")


def learn(
    run: LocalRunner, task: Task, session: Session, clock: Stopwatch | None = None
) -> Session:
    """Train the models on all rounds that they have not learned from, and return the new session.

    A session is the state of tuning a workload: its trials, and the models of its tuner.

    Args:
        run: runner that executes the steps.
        task: the workload, target and tuner.
        session: the session. Its models may not have learned from its last rounds yet.
        clock: stopwatch to which the time of training is added, if given.
    """
    if not session.begun:
        session = session.with_begun(run(begin_models, task, session))
    while session.unlearned:
        with (clock or Stopwatch()).measure("retrain"):
            session = session.with_learned(run(retrain_models, task, session))
    return session


def propose_batch(
    run: LocalRunner, task: Task, session: Session, n: int, pending: Configs | None = None,
    clock: Stopwatch | None = None,
) -> Batch | None:  # fmt: skip
    """Choose the next batch of configs to measure, and lower them.

    Args:
        run: runner that executes the steps.
        task: the workload, target and tuner.
        session: the trials so far, and models that have learned from all of them.
        n: maximum number of configs.
        pending: configs that other processes are measuring, int array of shape (p, knobs).
        clock: stopwatch to which the time of each step is added, if given.

    Returns:
        A batch of lowered configs that are neither tried nor pending. None if no such config is
        left.
    """
    clock, session = clock or Stopwatch(), session.with_pending(pending)
    with BLAS_ON_ONE_THREAD:
        with clock.measure("generate"):
            candidates = run(generate_candidates, task, session, n)
        with clock.measure("filter"):
            kept = run(filter_candidates, task, session, candidates, n)  # Model V
        if not len(kept):
            return None
        with clock.measure("lower"):
            batch = run(lower_and_choose, task, session, kept, n)  # Model A
    return replace(batch, candidates=len(candidates))
