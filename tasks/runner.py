"""Performs the steps of a run as Prefect tasks, which Prefect caches, and tells MLflow.

`NetworkRunner` performs the steps of a network, `WorkloadRunner` those of one of its workloads, in
a flow of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
from prefect import tags
from prefect.runtime import flow_run

from tilewright.flows.tuning import learn
from tilewright.fusion.step import decide_fusion
from tilewright.reports.number_format import counted
from tilewright.search import (
    ExplorerState,
    History,
    LocalRunner,
    Result,
    Round,
    Session,
    Setting,
    round_steps,
)
from tilewright.search.validation_records import ValidationMeasurement
from tilewright.targets.capabilities import Latency, bound_of, roofline_of
from tilewright.targets.display_names import ascii_only, layer_name
from tilewright.tasks import (
    codecs,
    fusion,
    import_tasks,
    log_results,
    round_log,
    round_tasks,
    tracking,
    verify_tasks,
    warm_start,
)
from tilewright.tasks.cached_task import Done, Record, Stage, unsearched
from tilewright.tasks.metrics import chart
from tilewright.tasks.run_progress import RunProgress
from tilewright.tasks.run_tags import Params, board_of, params_of, tag_flow_run, take_turns
from tilewright.tasks.stale_runs import retire_dead_runs
from tilewright.tasks.tracked_runner import Step, TrackedRunner
from tilewright.tasks.workload_flow import workload_flow
from tilewright.tuning import log_steps
from tilewright.tuning.events import Listener, Note, StageReused
from tilewright.tuning.final_validation import measure_leaders
from tilewright.tuning.fusion_interface import Decided, ToDecide
from tilewright.tuning.network import TuningNetwork, extract_subgraphs, import_model
from tilewright.tuning.options import CHAMPION, TuningOptions
from tilewright.tuning.output_dir import identity
from tilewright.tuning.outputs import TunedNetwork, summary_of, target_row
from tilewright.tuning.results import Baselines, Schedule, TunedWorkload
from tilewright.tuning.task_scheduler import Flow, StopGain
from tilewright.tuning.tuning_task import TuningTask, tuning_task_of
from tilewright.tuning.verification import measure_baseline, verify_schedule
from tilewright.tuning.workload_job import WorkloadJob

T = TypeVar("T")

CACHED: dict[Callable[..., object], Stage[..., Any]] = {
    import_model: import_tasks.import_model,
    extract_subgraphs: import_tasks.extract_subgraphs,
    measure_baseline: verify_tasks.measure_baseline,
    verify_schedule: verify_tasks.verify_schedule,
}
"""By step its task."""
MEASURING = {
    measure_baseline, round_steps.simulate_batch, measure_leaders, verify_schedule,
}  # fmt: skip
"""Steps that run programs on the target."""


class PrefectRunner(TrackedRunner):
    """Runs each step as a task whose result Prefect keeps. Tasks take and give records. `named` are
    the first words of the names of its tasks. A task follows the one before it, `before`, also
    where it takes nothing of it: so Prefect's graph has an edge."""

    def __init__(
        self, emit: Listener, own: Mapping[Step, Step], named: Sequence[str] = (),
        *, system_metrics: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(emit, own, system_metrics=system_metrics)
        self.named = named
        self.before: list[object] = []

    def __call__(self, step: Callable[..., T], *given: object) -> Result[T]:
        if step not in CACHED:
            return super().__call__(step, *given)
        self.announce(step)
        with self._turns(step):
            return self._did(CACHED[step](self.before, *self.named, *given))

    def _turns(self, step: Step) -> AbstractContextManager[object]:
        """What a step waits for before it begins: nothing."""
        return nullcontext()

    def _did(self, done: Done[T]) -> Record[T]:
        self.before = [done.state]
        if done.reused:
            self.emit(StageReused(done.stage))
        return done.record


class NetworkRunner(PrefectRunner):
    """Performs the steps of a network; `parent` is the run of a sweep in MLflow, if it is part of
    one."""

    def __init__(
        self,
        emit: Listener,
        progress: RunProgress,
        parent: str | None = None,
        *,
        system_metrics: bool = False,
    ) -> None:
        own: dict[Step, Step] = {
            log_steps.load_starts: self._load_starts,
            log_steps.log_parameters: self._log_parameters,
            log_steps.log_network: self._log_network,
            decide_fusion: self._decide_fusion,
        }
        super().__init__(emit, own, system_metrics=system_metrics)
        self.progress = progress
        self.parent = parent
        self.params: Params = {}
        self._repeats = False
        self._imported = ""  # the key of the model's record
        self._found: list[object] = []  # the task that found the workloads

    def __call__(self, step: Callable[..., T], *given: object) -> Result[T]:
        result = super().__call__(step, *given)
        if step is import_model:
            assert isinstance(result, Record)
            self._imported = result.key
        if step is extract_subgraphs:
            self._found = self.before
        return result

    def workload(  # type: ignore[override]  # the only flow that networks have
        self, flow: Callable[[LocalRunner, WorkloadJob], Flow[TunedWorkload]], job: WorkloadJob
    ) -> Flow[TunedWorkload]:
        """In a Prefect flow of its own."""

        def steps() -> Flow[TunedWorkload]:
            tag_flow_run(self.params)
            return (yield from self._tuned(flow, job))

        return (yield from workload_flow(steps, job, self.params, self.run_id, self._found))

    def _tuned(
        self, flow: Callable[[LocalRunner, WorkloadJob], Flow[TunedWorkload]], job: WorkloadJob
    ) -> Flow[TunedWorkload]:
        """With a run in MLflow; without one where the same command has ended well before, and the
        record has it all."""
        if self._repeats and not job.shared and job.is_recorded(self.emit):
            return (yield from flow(WorkloadRunner(job, self.emit), job))
        return (yield from self._tracked(flow, job))

    def _tracked(
        self, flow: Callable[[LocalRunner, WorkloadJob], Flow[TunedWorkload]], job: WorkloadJob
    ) -> Flow[TunedWorkload]:
        run_id = log_results.open_workload_run(job, self.run_id, self.params)
        error: BaseException | None = None
        try:
            with tracking.StepLog(run_id) as log:
                run = WorkloadRunner(job, self.emit, run_id, log)
                return (yield from flow(run, job))
        except BaseException as raised:
            error = raised
            raise
        finally:
            tracking.close_run(run_id, tracking.ended_by(error))

    def _load_starts(
        self, options: TuningOptions, network: TuningNetwork, tasks: Sequence[TuningTask]
    ) -> list[log_steps.Start]:
        if options.warm_start != CHAMPION:
            return [(task, ExplorerState()) for task in tasks]
        warm_start.check_champions([tuning_task_of(options, s.workload) for s in network.subgraphs])
        starts = []
        for task in tasks:
            found = warm_start.champion_state(task)
            if found is None:
                self.emit(Note(f"{task.workload}: no champion to start from"))
            starts.append(found or (task, ExplorerState()))
        return starts

    def _log_parameters(
        self, options: TuningOptions, network: TuningNetwork, tasks: Sequence[TuningTask],
        emit: Listener,
    ) -> None:  # fmt: skip
        """Opens the network's run."""
        retire_dead_runs(options, current=str(flow_run.id))
        self.params = params_of(options, network)
        about = self.params | {"model": self._imported, "folder": identity(options.folder)}
        tag_flow_run(self.params)
        if tag := board_of(options.target):
            take_turns(tag)
        count = len(network.subgraphs)
        self.belong_to(
            log_results.open_network_run(options, about, self.params, count, self.parent)
        )
        log_results.log_network_dataset(self.run_id, network.model)
        self._repeats = tracking.repeated_run(self.run_id) is not None
        self.progress.show(options.trials * count)
        log_steps.log_parameters(options, network, tasks, emit)

    def _decide_fusion(self, asked: ToDecide) -> Decided:
        done = fusion.decide_fusion(list(asked.tuned), asked, self._imported, self.run_id)
        decided = self._did(done).value
        tracking.log_results(self.run_id, fusion.figures(decided))
        return decided

    def _log_network(
        self, options: TuningOptions, network: TuningNetwork, tuned: Sequence[TunedWorkload],
        wall: float, sharing: StopGain | None, decided: Decided | None,
    ) -> TunedNetwork:  # fmt: skip
        summary = summary_of(options, network, tuned, sharing, decided)
        summary["wall_seconds"] = round(wall, 3)
        summary["mlflow_run_id"] = self.run_id
        summary["prefect_flow_run_id"] = str(flow_run.id)
        found = TunedNetwork(summary, tuple(tuned), decided)
        self.progress.end()
        if remark := self.progress.remark(summary):
            self.emit(Note(remark))
        log_results.log_network_artifacts(
            options.folder, target_row(options, network.target), found, self.run_id,
            remark,
        )  # fmt: skip
        return found


class WorkloadRunner(PrefectRunner):
    """Performs the steps of a workload; tells them to a run in MLflow that is open, if there is
    one: `run_id` and its `log`."""

    def __init__(
        self,
        job: WorkloadJob,
        emit: Listener,
        run_id: str = "",
        log: tracking.StepLog | None = None,
    ) -> None:
        own: dict[Step, Step] = {
            measure_leaders: self._measure_leaders,
            log_steps.log_round: self._log_round,
            log_steps.log_workload: self._log_workload,
        }
        self.layer = ascii_only(layer_name(job.subgraph.names, job.study.workload))
        super().__init__(emit, own, [self.layer])
        self.study = job.study
        self._board = board_of(job.study.target_name)
        self.run_id = run_id
        self._log = log
        self._beside: dict[str, Latency | None] = {}

    def __call__(self, step: Callable[..., T], *given: object) -> Result[T]:
        if step not in round_tasks.TASKS:
            if step is verify_schedule:
                self._flush()
            result = super().__call__(step, *given)
            if step is measure_baseline and isinstance(result.value, Baselines):
                self._beside = self._lines(result.value)
            return result
        self.announce(step)
        task: Stage[..., Any] = round_tasks.TASKS[step]
        _, *inputs = given  # a task makes the setting of its own study
        with self._turns(step):
            done = task(self.before, self.layer, self.study, _round_of(step, given), *inputs)
        return self._did(done)

    def _turns(self, step: Step) -> AbstractContextManager[object]:
        """On a board, the end of whatever else measures there."""
        return tags(self._board) if self._board and step in MEASURING else nullcontext()

    def keep(self, value: T) -> Result[T]:
        codec: Any = codecs.HISTORY if isinstance(value, History) else codecs.STATE
        return Record.of_content(codec, value)

    def begin(self, setting: Setting, state: ExplorerState) -> Result[ExplorerState]:
        start = Record.of_content(codecs.STATE, state)
        return self._did(round_tasks.begin(self.before, self.layer, self.study, start))

    def _show_known(self, step: Step, place: int, told: str) -> None:
        """Show the task of a step of a round that has nothing to do."""
        task = round_tasks.TASKS[step]
        self.before = [task.show_known(self.before, told, layer=self.layer, round_index=place)]

    def _measure_leaders(
        self, study: TuningTask, block: int, contenders: Sequence[Schedule], turns: int
    ) -> list[ValidationMeasurement]:
        self._flush()
        measure: Any = verify_tasks.measure_leaders
        with self._turns(measure_leaders):
            measured: list[ValidationMeasurement] = measure(
                self.layer, study, block, contenders, turns, wait_for=self.before
            )
        self.before = [measured]
        return measured

    def _log_round(
        self, task: TuningTask, done: Round, trials: int, valid: float, emit: Listener
    ) -> None:
        if done.reused:
            self._show_recorded(done)
        if self._log is not None:
            figures = {
                "valid_share": float(np.mean(done.measured.valid)),
                "trials": float(trials),
                "lowered": float(done.lowered),
                "failed_compiles": float(done.failed_compiles),
                **done.model_errors,
            }
            self._log.add(trials, figures | chart({"best": done.best, **self._beside}))
        log_steps.log_round(task, done, trials, valid, emit)

    def _show_recorded(self, done: Round) -> None:
        """Show the tasks of a round that the trial store has: all but what is learned from it."""
        measured, best = done.measured, done.best
        valid = f"{counted(len(measured), 'trial')}, {int(measured.valid.sum())} valid"
        told: dict[Step, str] = {
            round_steps.generate_candidates: "",
            round_steps.filter_candidates: "",
            round_steps.lower_candidates: f"{done.failed_compiles} configs beyond the trials "
            f"failed to compile, of {done.lowered}",
            round_steps.simulate_batch: valid
            if best is None
            else f"{valid}; best so far {round_log.latency_text(best)}",
        }
        for step, text in told.items():
            self._show_known(step, done.index, text)

    def _log_workload(
        self, job: WorkloadJob, tuned: TunedWorkload, session: Session, emit: Listener
    ) -> None:
        if self._log is None:  # a command that is repeated: its first run has the artifacts
            for history in session.unlearned:
                self._show_known(round_steps.retrain_models, int(history.round) - 1, "not needed")
        else:
            learned = learn(session)
            assert isinstance(learned, Record)
            log_results.log_artifacts(  # type: ignore[call-arg]  # `wait_for` is Prefect's
                self.layer, tuned, job.options.folder, self.run_id, learned.key,
                unsearched(session), wait_for=self.before,
            )  # fmt: skip
        log_steps.log_workload(job, tuned, session, emit)

    def _lines(self, found: Baselines) -> dict[str, Latency | None]:
        return {
            "baseline": None if found.baseline is None else found.baseline.latency,
            "bound": bound_of(self.study.target, self.study.workload),
            "roofline": roofline_of(self.study.target, self.study.workload),
        }

    def _flush(self) -> None:
        if self._log is not None:
            self._log.flush()


def _round_of(step: Callable[..., object], given: Sequence[object]) -> int:
    """The index of the round that the step is part of."""
    (history,) = (
        each.value for each in given if isinstance(each, Result) and isinstance(each.value, History)
    )
    return int(history.round) - (step is round_steps.retrain_models)
