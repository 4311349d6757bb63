"""The steps of a run as tasks, each tracked in MLflow: what is put around `tuning.tune_network`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from uuid import UUID

import numpy as np
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from tilewright.core.files import Json
from tilewright.reports.fusion import with_page
from tilewright.search import ExplorerState, Round, Session
from tilewright.search.validation_records import ValidationMeasurement
from tilewright.targets.base import Target
from tilewright.targets.capabilities import Latency
from tilewright.tasks import fusion, import_tasks, log_results, tracking, verify_tasks, warm_start
from tilewright.tasks.artifact_store import CacheUse, Manifest
from tilewright.tasks.cached_task import Done
from tilewright.tasks.metrics import chart
from tilewright.tasks.run_progress import RunProgress
from tilewright.tasks.runner import PrefectRunner
from tilewright.tasks.stale_runs import retire_dead_runs
from tilewright.tuning import verification
from tilewright.tuning.events import Listener, Note, StageBegan, StageReused
from tilewright.tuning.fusion_interface import Decided, ToDecide
from tilewright.tuning.network import Extracted, Model, TuningNetwork
from tilewright.tuning.options import CHAMPION, TuningOptions
from tilewright.tuning.output_dir import identity
from tilewright.tuning.outputs import Summary, summary_of, target_row
from tilewright.tuning.results import Baselines, Schedule, TunedWorkload
from tilewright.tuning.run_metadata import is_complete
from tilewright.tuning.task_scheduler import StopGain
from tilewright.tuning.tune_workload import WorkloadJob, tune_workload
from tilewright.tuning.tuning_task import TuningTask, space_of, tuning_task_of

Params = dict[str, Json]
TuneOne = Callable[[WorkloadJob, Params, str], TunedWorkload]
"""Tunes a workload in a flow of its own, given the parameters and the id of the network's run."""


class TrackedNetwork:
    """Keeps `tuning.tune_network.NetworkSteps`; a context, which ends the network's run in MLflow
    as what it was: finished, failed, or stopped by a person."""

    def __init__(
        self, cache: CacheUse, emit: Listener, tune_one: TuneOne, progress: RunProgress
    ) -> None:
        self.cache = cache
        self.progress = progress
        self.emit = emit
        self.tune_one = tune_one
        self.params: Params = {}
        self.run_id = ""
        self._repeats = False
        self._imported = Manifest("import_model", "")

    def __enter__(self) -> TrackedNetwork:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.run_id:
            tracking.close_run(self.run_id, tracking.ended_by(error))

    def opened(self, options: TuningOptions) -> None:
        retire_dead_runs(options, current=str(flow_run.id))

    def import_model(self, options: TuningOptions) -> Model:
        self.emit(StageBegan("import_model"))
        done = import_tasks.import_model(self.cache, options.model, options.input_shapes)
        self._imported = _took(done, self.emit)
        return import_tasks.read_model(done.manifest)

    def extract_subgraphs(self, options: TuningOptions, model: Model, target: Target) -> Extracted:
        self.emit(StageBegan("extract_subgraphs"))
        done = import_tasks.extract_subgraphs(
            self.cache, self._imported, target, options.epilogue_mode, options.max_waste,
            options.input_shapes, options.calibration,
        )  # fmt: skip
        return import_tasks.read_extracted(_took(done, self.emit))

    def found(self, options: TuningOptions, what: TuningNetwork) -> None:
        """Opens the network's run."""
        if options.warm_start == CHAMPION:
            warm_start.check_champions(
                [tuning_task_of(options, each.workload) for each in what.subgraphs]
            )
        self.params = params_of(options, what)
        about = self.params | {
            "model": self._imported.key,
            "folder": identity(options.folder),
        }
        tag_flow_run(self.params)
        self.run_id = log_results.open_network_run(options, about, self.params, len(what.subgraphs))
        self._repeats = tracking.repeated_run(self.run_id) is not None
        self.progress.show(options.trials * len(what.subgraphs))

    def start_of(self, study: TuningTask) -> tuple[TuningTask, ExplorerState]:
        if self.params.get("warm_start") != CHAMPION:
            return study, ExplorerState()
        found = warm_start.champion_state(self.cache, study)
        if found is None:
            self.emit(Note(f"{study.workload}: no champion to start from"))
        return found or (study, ExplorerState())

    def tune(self, job: WorkloadJob) -> TunedWorkload:
        """In a flow of its own, with a run in MLflow; but not again where the same command has
        ended well before, and the record has it all."""
        if self._repeats and job.scheduled is None and is_complete(job.options.folder):
            tuned = tune_workload(job, CachedWorkload(self.cache, job.emit))
            if tuned.reused_trials == tuned.trials:
                return tuned
        return self.tune_one(job, self.params, self.run_id)

    def decide_fusion(self, asked: ToDecide) -> Decided:
        self.emit(StageBegan("decide_fusion"))
        done = fusion.decide_fusion(self.cache, asked, self._imported.key, self.run_id)
        decided = fusion.read_decided(_took(done, self.emit))
        decided = with_page(decided, asked.network, asked.target.name)
        tracking.log_results(self.run_id, fusion.figures(decided))
        return decided

    def write(
        self,
        options: TuningOptions,
        what: TuningNetwork,
        tuned: Sequence[TunedWorkload],
        wall: float,
        sharing: StopGain | None,
        decided: Decided | None,
    ) -> Summary:
        summary = summary_of(options, what, tuned, sharing, decided)
        summary["wall_seconds"] = round(wall, 3)
        summary["mlflow_run_id"] = self.run_id
        summary["prefect_flow_run_id"] = str(flow_run.id)
        self.progress.end()
        if remark := self.progress.remark(summary):
            self.emit(Note(remark))
        log_results.log_network_artifacts(
            self.cache, options.folder, target_row(options, what.target), summary, tuned,
            self.run_id, remark, decided,
        )  # fmt: skip
        return summary


class CachedWorkload:
    """Keeps `tuning.tune_workload.WorkloadSteps` in tasks that look into the cache, and tells
    MLflow nothing: all there is to tell is there."""

    def __init__(self, cache: CacheUse, emit: Listener) -> None:
        self.cache = cache
        self.emit = emit

    def baselines(self, study: TuningTask) -> Baselines:
        self.emit(StageBegan("measure_baseline"))
        done = verify_tasks.measure_baseline(self.cache, study)
        return verify_tasks.read_baselines(_took(done, self.emit))

    def runner(self, study: TuningTask) -> PrefectRunner:
        return PrefectRunner(self.cache, study, self.emit)

    def measure_leaders(
        self, study: TuningTask, block: int, contenders: Sequence[Schedule], turns: int
    ) -> list[ValidationMeasurement]:
        self.emit(StageBegan("measure_leaders"))
        return verify_tasks.measure_leaders(study, block, contenders, turns)

    def round_done(self, done: Round, trials: int) -> None:
        pass

    def verify(self, study: TuningTask, chosen: Schedule) -> None:
        self.emit(StageBegan("verify_schedule"))
        _took(verify_tasks.verify_schedule(self.cache, study, chosen), self.emit)

    def finish(self, tuned: TunedWorkload, session: Session) -> None:
        pass


class TrackedWorkload(CachedWorkload):
    """The same, told to a run in MLflow that is open already."""

    def __init__(
        self, cache: CacheUse, emit: Listener, folder: Path, run_id: str, log: tracking.StepLog
    ) -> None:
        super().__init__(cache, emit)
        self.folder = folder
        self.run_id = run_id
        self.log = log
        self.beside: dict[str, Latency | None] = {}

    def baselines(self, study: TuningTask) -> Baselines:
        found = super().baselines(study)
        self.beside = {
            "baseline": None if found.baseline is None else found.baseline.latency,
            "bound": verification.bound_of(study),
            "roofline": verification.roofline_of(study),
        }
        return found

    def measure_leaders(
        self, study: TuningTask, block: int, contenders: Sequence[Schedule], turns: int
    ) -> list[ValidationMeasurement]:
        self.log.flush()
        return super().measure_leaders(study, block, contenders, turns)

    def round_done(self, done: Round, trials: int) -> None:
        figures = {
            "valid_share": float(np.mean(done.measured.valid)),
            "trials": float(trials),
            "lowered": float(done.lowered),
            "failed_compiles": float(done.failed_compiles),
            **done.model_errors,
        }
        self.log.add(trials, figures | chart({"best": done.best, **self.beside}))

    def verify(self, study: TuningTask, chosen: Schedule) -> None:
        self.log.flush()
        super().verify(study, chosen)

    def finish(self, tuned: TunedWorkload, session: Session) -> None:
        state = session.state_result.stored
        log_results.log_artifacts(self.cache, tuned, self.folder, self.run_id, state)


@contextmanager
def tracked_workload(
    cache: CacheUse, job: WorkloadJob, params: Params, parent: str
) -> Iterator[TrackedWorkload]:
    """The steps of a workload, with a run in MLflow below its network's that ends with them."""
    options = job.options
    tag_flow_run(params)
    run_id = log_results.open_workload_run(job, parent, params)
    try:
        with tracking.StepLog(run_id) as log:
            yield TrackedWorkload(cache, job.emit, options.folder, run_id, log)
    except BaseException as error:
        tracking.close_run(run_id, tracking.ended_by(error))
        raise
    tracking.close_run(run_id)


def tag_flow_run(params: Params) -> None:
    """Tag the flow run that this is part of. Its tasks are to have no tags: Prefect asks the server
    for a place in the queue of each of them."""
    tags = {*flow_run.tags, *(str(params[name]) for name in ("network", "target", "tuner"))}
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(str(flow_run.id)), tags=sorted(tags))


def params_of(options: TuningOptions, what: TuningNetwork) -> Params:
    """What identifies a run to MLflow: equal parameters, one run."""
    explorer = tuning_task_of(options, what.subgraphs[0].workload).explorer
    chosen = {f"tuner.{k}": v for k, v in explorer.options.model_dump(mode="json").items()}
    return {
        "network": what.model.name,
        "target": what.target.name,
        "target_fingerprint": what.target.fingerprint,
        "space": space_of(options),
        "tuner": options.tuner,
        "trials": options.trials,
        "batch": options.batch,
        "seed": options.seed,
        **({} if options.stop_gain is None else {"stop_gain": options.stop_gain}),
        **({"fusion": options.fusion} if options.fusion else {}),
        **({"warm_start": options.warm_start} if options.warm_start else {}),
        **({} if what.target.deterministic else {"leaders": options.leaders}),
        **({"layers": ",".join(options.layers)} if options.layers else {}),
        "epilogue": options.steps if options.workload else options.epilogue,
        **chosen,
    }


def _took(done: Done, emit: Listener) -> Manifest:
    if done.reused:
        emit(StageReused(done.manifest.stage))
    return done.manifest
