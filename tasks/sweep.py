"""Performs the steps of a sweep: its runs as flows of their own, with one run in MLflow above them
all.

A sweep's run is that of its folder: a later call with further seeds, tuners or networks goes on in
it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mlflow.utils.mlflow_tags import MLFLOW_SOURCE_NAME, MLFLOW_SOURCE_TYPE
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from tilewright.evaluation.sweep import steps
from tilewright.evaluation.sweep.plan import SweepJob, SweepPlan
from tilewright.evaluation.sweep.runs import RunTuned
from tilewright.evaluation.sweep.steps import SWEEP, Sweep
from tilewright.flows.sweep import tune_run
from tilewright.reports.markdown import plain
from tilewright.reports.number_format import counted
from tilewright.reports.run_description import Links
from tilewright.reports.sweep import run_rows, sweep_note, verdict
from tilewright.search.events import Event, Listener
from tilewright.services.urls import flow_run_url
from tilewright.tasks import tracking
from tilewright.tasks.log_results import PREFECT_LINK
from tilewright.tasks.run_progress import Progress
from tilewright.tasks.stale_runs import retire_dead_runs
from tilewright.tasks.tracked_runner import Step, TrackedRunner
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.output_dir import identity
from tilewright.tuning.outputs import Summary

TuneNetwork = Callable[[TuningOptions, Listener, str], Summary]
"""Performs a run of a sweep in a flow of its own; gets the id of the sweep's run in MLflow."""


class SweepRunner(TrackedRunner):
    """Performs the steps of a sweep; a context, which ends the run in MLflow as what it was."""

    def __init__(self, listen: Listener, tune: TuneNetwork) -> None:
        own: dict[Step, Step] = {
            tune_run: self._tune_run,
            steps.log_sweep_began: self._log_sweep_began,
            steps.log_sweep: self._log_sweep,
        }
        super().__init__(self._hear, own)
        self._listen = listen
        self._tune = tune
        self._bar: Progress | None = None
        self._done = 0

    def _tune_run(self, job: SweepJob, emit: Listener) -> Summary:
        return self._tune(job.options, self._listen, self.run_id)

    def _log_sweep_began(self, plan: SweepPlan, kept: int, emit: Listener) -> None:
        retire_dead_runs(plan.options, current=str(flow_run.id))
        self.run_id = _open_run(plan)  # system metrics are logged to the runs below it
        runs = len(plan.jobs)
        self._bar, self._done = Progress("runs", runs, f"of {counted(runs, 'run')}"), kept
        steps.log_sweep_began(plan, kept, emit)

    def _log_sweep(self, swept: Sweep, folder: Path) -> None:
        steps.log_sweep(swept, folder)
        if self._bar is not None:
            self._bar.end()
        _show_runs(swept, self.run_id)
        tracking.log_file(self.run_id, folder / SWEEP)
        note = sweep_note(swept.plan.options, len(swept.plan.jobs), _links(), swept)
        tracking.describe_run(self.run_id, note)

    def _hear(self, event: Event) -> None:
        if isinstance(event, RunTuned):
            self._done += 1
            if self._bar is not None:
                self._bar.show(self._done)
            if FlowRunContext.get() is not None:
                get_run_logger().info(f"{event.run.title}: done")
        self._listen(event)


def _open_run(plan: SweepPlan) -> str:
    """The run of a sweep's folder in MLflow, linked with its flow run."""
    options = plan.options
    flow_run_id = str(flow_run.id)
    name = f"sweep of {options.rivals}, seeds {options.seeds}: {options.subject}"
    tags = {
        "networks": ",".join(options.networks),
        "targets": ",".join(options.targets),
        "tuners": options.rivals,
        "seeds": options.seeds,
        MLFLOW_SOURCE_NAME: "tilewright sweep",
        MLFLOW_SOURCE_TYPE: "LOCAL",
        "prefect_flow_run_id": flow_run_id,
        "prefect_flow_run_url": flow_run_url(flow_run_id),
    }
    run_id = tracking.open_run(
        name, tracking.run_key({"sweep": identity(plan.folder)}), params={},
        tags=tags | tracking.commit_tag(), reopen=True, fresh=options.fresh,
    )  # fmt: skip
    tracking.describe_run(run_id, sweep_note(options, len(plan.jobs), _links()))
    create_link_artifact(
        link=tracking.run_url(run_id),
        key="mlflow-run",
        description=f"{plain(name)}: the run in MLflow",
    )
    return run_id


def _show_runs(swept: Sweep, run_id: str) -> None:
    """The runs as a table and a note in Prefect."""
    subject = plain(swept.plan.options.subject)
    create_table_artifact(key="sweep", table=run_rows(swept.runs), description=subject)
    links = {"this sweep in MLflow": tracking.run_url(run_id)}
    note = sweep_note(swept.plan.options, len(swept.plan.jobs), links, swept)
    create_markdown_artifact(
        key="sweep-summary", markdown=note,
        description=plain("; ".join(verdict(each) for each in swept.leaderboards)),
    )  # fmt: skip


def _links() -> Links:
    return {PREFECT_LINK: flow_run_url(str(flow_run.id))}
