"""Runners that execute the steps of a tuning run as cached Prefect tasks, and log to MLflow.

`NetworkRunner` executes the steps of a network. `WorkloadRunner` executes the steps of one of its
workloads, in a flow of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
from prefect import tags
from prefect.runtime import flow_run

from tilewright.flows.tuning import learn
from tilewright.fusion import decide_fusion
from tilewright.reports.number_format import count_text
from tilewright.search import Round, Session, TrialStore, round_steps
from tilewright.search.validation_records import ValidationMeasurement
from tilewright.targets.capabilities import Latency, bound_of, roofline_of
from tilewright.targets.display_names import ascii_only, layer_name
from tilewright.tasks import (
    champion_registry,
    fusion,
    log_results,
    tracking,
)
from tilewright.tasks.cached_task import Done, step, write_log
from tilewright.tasks.codecs import digest_of
from tilewright.tasks.metrics import chart
from tilewright.tasks.run_progress import RunProgress
from tilewright.tasks.run_tags import Params, board_of, params_of, tag_flow_run, take_turns
from tilewright.tasks.stale_runs import retire_dead_runs
from tilewright.tasks.steps_prefect import STAGES, latency_text, round_line
from tilewright.tasks.tracked_runner import Step, TrackedRunner
from tilewright.tasks.workload_flow import followed_flow, workload_flow
from tilewright.tuning import log_steps
from tilewright.tuning.events import Listener, Note, StageReused
from tilewright.tuning.final_validation import measure_leaders
from tilewright.tuning.fusion_interface import Decided, ToDecide
from tilewright.tuning.network import Subgraph, TuningNetwork, extract_subgraphs, import_model
from tilewright.tuning.open_trials import record_of
from tilewright.tuning.options import CHAMPION, TuningOptions
from tilewright.tuning.output_dir import identity
from tilewright.tuning.outputs import TunedNetwork, summary_of, target_row
from tilewright.tuning.results import Baselines, Schedule, TunedWorkload
from tilewright.tuning.run_flows import Flow
from tilewright.tuning.run_metadata import trials_made
from tilewright.tuning.task_scheduler import StopGain
from tilewright.tuning.time_limit import TimeLimit
from tilewright.tuning.tuning_task import TuningTask
from tilewright.tuning.verification import measure_baseline, verify_schedule

T = TypeVar("T")

MEASURING = {
    measure_baseline, round_steps.measure_batch, measure_leaders, verify_schedule,
}  # fmt: skip
"""Steps that run programs on the target."""


class PrefectRunner(TrackedRunner):
    """Base class of runners whose steps are Prefect tasks (`tasks.steps_prefect`).

    Each task waits for the previous task, which the runner keeps in `before`. A task waits even if
    it does not use the result of the previous task, so that Prefect's graph shows an edge.

    Args:
        emit: function that receives the events.
        own: replacement for each step that this runner executes in a different way, by the original
            step.
        system_metrics: whether to log system metrics to the MLflow run.
    """

    def __init__(
        self, emit: Listener, own: Mapping[Step, Step], *, system_metrics: bool = False
    ) -> None:
        super().__init__(emit, own, system_metrics=system_metrics)
        self.before: list[object] = []

    def __call__(self, step: Callable[..., T], *given: Any) -> T:
        """Execute a step and return its result. A stage becomes a cached Prefect task.

        Args:
            step: the step. It is a stage if it is a key of `STAGES`.
            *given: arguments of the step.
        """
        if step not in STAGES:
            return super().__call__(step, *given)
        self.announce(step)
        done: Done[T] = STAGES[step].run(self.before, {}, *given)
        return self._did(done)

    def _did(self, done: Done[T]) -> T:
        self.before = [done.state]
        if done.reused:
            self.emit(StageReused(done.key.stage))
        return done.value


class NetworkRunner(PrefectRunner):
    """Runner that executes the steps of a network as Prefect tasks, and logs to MLflow.

    Args:
        emit: function that receives the events.
        progress: collects the progress of the run.
        parent: MLflow run of the comparison that the run belongs to, if any.
        system_metrics: whether to log system metrics to the MLflow run.
    """

    def __init__(
        self,
        emit: Listener,
        progress: RunProgress,
        parent: str | None = None,
        *,
        system_metrics: bool = False,
    ) -> None:
        own: dict[Step, Step] = {
            log_steps.start_sessions: self._start_sessions,
            log_steps.log_parameters: self._log_parameters,
            log_steps.log_network: self._log_network,
            decide_fusion: self._decide_fusion,
        }
        super().__init__(emit, own, system_metrics=system_metrics)
        self.progress = progress
        self.parent = parent
        self.params: Params = {}
        self._repeats = False
        self._imported = ""  # key of the imported model
        self._found: list[object] = []  # the task that found the workloads
        self._layers: list[object] = []  # the flows of the workloads

    def __call__(self, step: Callable[..., T], *given: Any) -> T:
        """Execute a step and return its result. A stage becomes a cached Prefect task.

        The runner remembers the key of the imported model, for the key of the fusion decision. It
        also remembers the task that found the workloads, which precedes the workloads' flows in the
        graph.

        Args:
            step: the step. It is a stage if it is a key of `STAGES`.
            *given: arguments of the step.
        """
        value = super().__call__(step, *given)
        if step is import_model:
            self._imported = STAGES[step].key(*given).text
        if step is extract_subgraphs:
            self._found = self.before
        return value

    def workload(  # type: ignore[override]  # networks have no other flows
        self, flow: Callable[..., Flow[TunedWorkload]], options: TuningOptions, task: TuningTask,
        *given: Any,
    ) -> Flow[TunedWorkload]:  # fmt: skip
        """Run the steps of a workload in a Prefect flow of its own.

        Args:
            flow: generator function of the workload's steps (`flows.tuning.tune_workload`).
            options: options of the run.
            task: the workload, target and tuner.
            *given: further arguments of `flow`.

        Returns:
            A generator that yields what the steps yield, and returns the tuned workload.
        """

        def steps() -> Flow[TunedWorkload]:
            tag_flow_run(self.params)
            self._layers.append(followed_flow(str(flow_run.id)))
            return (yield from self._tune_and_log(flow, options, task, *given))

        return (
            yield from workload_flow(steps, options, task, self.params, self.run_id, self._found)
        )

    def _tune_and_log(
        self, flow: Callable[..., Flow[TunedWorkload]], options: TuningOptions, task: TuningTask,
        session: Session, store: TrialStore, most_trials: int, shared: bool = False,
        limit: TimeLimit | None = None,
    ) -> Flow[TunedWorkload]:  # fmt: skip
        """Tune a workload, and log it to an MLflow run of its own.

        No MLflow run is created if the command repeats a finished run and the trial store has all
        trials of the workload.

        Args:
            flow: generator function of the workload's steps (`flows.tuning.tune_workload`).
            options: options of the run.
            task: the workload, target and tuner.
            session: session before the first round.
            store: the trial store.
            most_trials: maximum number of trials, of all workloads together if they share trials.
            shared: whether the workloads share their trials.
            limit: time limit, if any.

        Returns:
            A generator that yields what the steps yield, and returns the tuned workload.
        """
        given = (options, task, session, store, most_trials, shared, limit)
        if self._repeats and not shared and _is_recorded(options, task, store, self.emit):
            return (yield from flow(WorkloadRunner(task, self.emit), *given))
        return (yield from self._tune_tracked(flow, *given))

    def _tune_tracked(
        self, flow: Callable[..., Flow[TunedWorkload]], options: TuningOptions, task: TuningTask,
        *given: Any,
    ) -> Flow[TunedWorkload]:  # fmt: skip
        run_id = log_results.open_workload_run(options, task, self.run_id, self.params)
        error: BaseException | None = None
        try:
            with tracking.StepLog(run_id) as log:
                run = WorkloadRunner(task, self.emit, run_id, log)
                return (yield from flow(run, options, task, *given))
        except BaseException as raised:
            error = raised
            raise
        finally:
            tracking.close_run(run_id, tracking.ended_by(error))

    def _start_sessions(
        self, options: TuningOptions, subgraphs: Sequence[Subgraph]
    ) -> list[tuple[TuningTask, Session]]:
        if options.warm_start != CHAMPION:
            return log_steps.start_sessions(options, subgraphs)
        tasks = log_steps.tasks_of(options, subgraphs)
        champion_registry.check_champions(tasks)
        starts = []
        for task in tasks:
            state = champion_registry.champion_state(task)
            if state is None:
                self.emit(Note(f"{task.workload}: no champion is registered to start from"))
            task, models = state or (task, None)
            starts.append((task, Session.start(task, models)))
        return starts

    def _log_parameters(
        self, options: TuningOptions, network: TuningNetwork, tasks: Sequence[TuningTask],
        emit: Listener,
    ) -> None:  # fmt: skip
        """Open the MLflow run of the network, and write `run.json`.

        Earlier runs on the same output directory that ended without a record are first marked as
        crashed.

        Args:
            options: options of the run.
            network: the network and the target.
            tasks: the task of each workload.
            emit: function that receives the events.
        """
        retire_dead_runs(options, current=str(flow_run.id))
        self.params = params_of(options, network)
        about = self.params | {"model": self._imported, "folder": identity(options.folder)}
        tag_flow_run(self.params)
        if tag := board_of(options.target):
            take_turns(tag)
        count = len(network.subgraphs)

        @step("the run in MLflow")
        def open_run() -> None:
            self.belong_to(
                log_results.open_network_run(options, about, self.params, count, self.parent)
            )
            log_results.log_network_dataset(self.run_id, network.model)
            self.progress.show(options.trials * count)

        # This is a task because Prefect's V2 pages can only show artifacts that belong to a task.
        opened: Any = open_run
        opened(wait_for=self.before)
        self._repeats = tracking.repeated_run(self.run_id) is not None
        log_steps.log_parameters(options, network, tasks, emit)

    def _decide_fusion(self, asked: ToDecide) -> Decided:
        done = fusion.decide_fusion(list(self._layers), asked, self._imported, self.run_id)
        decided = self._did(done)
        tracking.log_results(self.run_id, fusion.decision_metrics(decided))
        return decided

    def _log_network(
        self, options: TuningOptions, network: TuningNetwork, tuned: Sequence[TunedWorkload],
        wall: float, sharing: StopGain | None, decided: Decided | None,
    ) -> TunedNetwork:  # fmt: skip
        summary = summary_of(options, network, tuned, sharing, decided)
        summary["wall_seconds"] = round(wall, 3)
        summary["mlflow_run_id"] = self.run_id
        summary["prefect_flow_run_id"] = str(flow_run.id)
        tuned_network = TunedNetwork(summary, tuple(tuned), decided)
        self.progress.end()
        if remark := self.progress.remark(summary):
            self.emit(Note(remark))
        log: Any = log_results.log_network_artifacts
        log(
            options.folder, target_row(options, network.target), tuned_network, self.run_id, remark,
            wait_for=self._layers if decided is None else [*self._layers, *self.before],
        )  # fmt: skip
        return tuned_network


class WorkloadRunner(PrefectRunner):
    """Runner that executes the steps of one workload as Prefect tasks.

    Args:
        task: the workload, target and tuner.
        emit: function that receives the events.
        run_id: MLflow run of the workload; "" if nothing is logged to MLflow.
        log: logger for the curves of that MLflow run; None if nothing is logged.
    """

    def __init__(
        self,
        task: TuningTask,
        emit: Listener,
        run_id: str = "",
        log: tracking.StepLog | None = None,
    ) -> None:
        own: dict[Step, Step] = {
            measure_leaders: self._measure_leaders,
            log_steps.log_round: self._log_round,
            log_steps.log_workload: self._log_workload,
        }
        super().__init__(emit, own)
        self.layer = ascii_only(layer_name(task.names, task.workload))
        self.task = task
        self._board = board_of(task.target_name)
        self.run_id = run_id
        self._log = log
        self._round = 0
        self._beside: dict[str, Latency | None] = {}

    def __call__(self, step: Callable[..., T], *given: Any) -> T:
        """Execute a step and return its result. A stage becomes a cached Prefect task.

        The name of the task run contains the layer and the current round. If the step measures on a
        board, the task first waits until no other task measures there.

        Args:
            step: the step.
            *given: arguments of the step.
        """
        if step not in STAGES:
            return super().__call__(step, *given)
        if step is verify_schedule:
            self._flush()
        self._note_round(step, given)
        self.announce(step)
        names = {"layer": self.layer, "round": self._round}
        with self._turns(step):
            done: Done[T] = STAGES[step].run(self.before, names, *given)
        value = self._did(done)
        if isinstance(value, Baselines):
            self._beside = self._lines(value)
        return value

    def _note_round(self, step: Step, given: Sequence[object]) -> None:
        """Find the round of a step from the session among the step's arguments, and store it.

        Args:
            step: the step.
            given: arguments of the step.
        """
        for session in given:
            if isinstance(session, Session):
                retrains = step is round_steps.retrain_models
                self._round = session.unlearned[0].round - 1 if retrains else session.history.round

    def _turns(self, step: Step) -> AbstractContextManager[object]:
        """Return a context that lets the step wait until no other task measures on the same board.

        The context gives the step's task the tag of the board. If the target is not a board or the
        step does not measure, the context does nothing.
        """
        return tags(self._board) if self._board and step in MEASURING else nullcontext()

    def _show_known(self, step: Step, place: int, told: str) -> None:
        """Create a finished task run for a step whose result was read from the trial store.

        Args:
            step: the step.
            place: index of the round.
            told: line for the log of the task; "" for none.
        """
        stage = STAGES[step]
        title = stage.run_name.format(layer=self.layer, round=place)
        self.before = [stage.show_known(self.before, told, title)]

    def _measure_leaders(
        self, task: TuningTask, block: int, contenders: Sequence[Schedule], turns: int
    ) -> list[ValidationMeasurement]:
        self._flush()
        measure: Any = _measure_leaders
        with self._turns(measure_leaders):
            measured: list[ValidationMeasurement] = measure(
                self.layer, task, block, contenders, turns, wait_for=self.before
            )
        self.before = [measured]
        return measured

    def _log_round(self, task: TuningTask, done: Round, emit: Listener) -> None:
        if done.reused:
            self._show_recorded(done)
        trials = len(done.session.history)
        if self._log is not None:
            figures = {
                "valid_share": float(np.mean(done.measured.valid)),
                "trials": float(trials),
                "lowered": float(done.lowered),
                "failed_compiles": float(done.failed_compiles),
                **done.model_errors,
            }
            self._log.add(trials, figures | chart({"best": done.best, **self._beside}))
        write_log(f"{self.layer} round {done.index}: {round_line(done)}")
        log_steps.log_round(task, done, emit)

    def _show_recorded(self, done: Round) -> None:
        """Create finished task runs for the steps of a round that was read from the trial store.

        Retraining is left out, because it is executed when the models are needed again.

        Args:
            done: the round.
        """
        measured, best = done.measured, done.best
        valid = f"{count_text(len(measured), 'trial')}, {int(measured.valid.sum())} valid"
        told: dict[Step, str] = {
            round_steps.generate_candidates: "",
            round_steps.filter_candidates: "",
            round_steps.lower_and_choose: (
                f"{done.failed_compiles} of {done.lowered} lowered configs failed to compile and "
                "were not measured"
            ),
            round_steps.measure_batch: valid
            if best is None
            else f"{valid}; best so far {latency_text(best)}",
        }
        for known, text in told.items():
            self._show_known(known, done.index, text)

    def _log_workload(
        self, options: TuningOptions, task: TuningTask, tuned: TunedWorkload, session: Session,
        emit: Listener,
    ) -> None:  # fmt: skip
        if self._log is None:  # a repeated command, whose first run has the artifacts
            for history in session.unlearned:
                self._show_known(round_steps.retrain_models, history.round - 1, "not needed")
        else:
            session = learn(self, task, session)
            log: Any = log_results.log_artifacts
            log(
                self.layer, tuned, options.folder, self.run_id, digest_of(session.models),
                session, wait_for=self.before,
            )  # fmt: skip
        log_steps.log_workload(options, task, tuned, session, emit)

    def _lines(self, found: Baselines) -> dict[str, Latency | None]:
        return {
            "fallback": found.fallback,
            "rule": None if found.baseline is None else found.baseline.latency,
            "bound": bound_of(self.task.target, self.task.workload),
            "roofline": roofline_of(self.task.target, self.task.workload),
        }

    def _flush(self) -> None:
        if self._log is not None:
            self._log.flush()


@step("{layer}: leaders, block {block}", "measure_leaders")
def _measure_leaders(
    layer: str, task: TuningTask, block: int, contenders: Sequence[Schedule], turns: int
) -> list[ValidationMeasurement]:
    """Measure the best schedules of a workload again, as a Prefect task.

    This is one block of the final validation, which `tuning.final_validation` explains. The
    arguments and the result are those of `tuning.final_validation.measure_leaders`, except for
    `layer`, the display name of the workload. Prefect does not store the result; the trial store
    does.
    """
    return measure_leaders(task, block, contenders, turns)


def _is_recorded(
    options: TuningOptions, task: TuningTask, store: TrialStore, emit: Listener
) -> bool:
    """Return whether the trial store has all trials of a workload that an earlier run finished.

    The output directory lists how many trials of each workload that run made. The result is False
    if it lists none for this workload.

    Args:
        options: options of the run, which name the output directory.
        task: the workload, target and tuner.
        store: the trial store.
        emit: function that receives a note about each unreadable trial.

    Raises:
        RunInUse: another command works on the output directory.
        TrialStoreError: the trials cannot be read.
        UnsafeFile: a path is not a plain file.
    """
    made = trials_made(options.folder).get(task.workload.id)
    if made is None:
        return False
    record = record_of(store, task)
    with record.turn():
        held = record.next_rounds(0, made)
    for problem in record.problems:
        emit(Note(problem))
    return sum(len(record.configs) for record in held) >= made
