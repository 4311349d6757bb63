"""Performs the steps of a comparison of tuners as Prefect tasks.

A comparison on networks makes each run a flow of its own, with one run in MLflow above them all.
That run belongs to the folder: a later call with further seeds, tuners or networks continues it.

Plans and comparisons hold tables of many runs: Prefect does not search them for futures.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mlflow.utils.mlflow_tags import MLFLOW_SOURCE_NAME, MLFLOW_SOURCE_TYPE
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from tilewright.evaluation.compare import network_steps as steps
from tilewright.evaluation.compare.comparison import (
    COMPARISON,
    Comparison,
    RunFinished,
    TuningBegan,
    enumerate_spaces,
    log_comparison,
    run_tuners,
)
from tilewright.evaluation.compare.network_plan import SweepJob, SweepPlan
from tilewright.evaluation.compare.network_runs import RunTuned
from tilewright.evaluation.compare.network_steps import SWEEP, Sweep
from tilewright.evaluation.compare.summary import verdict
from tilewright.flows.comparison import tune_run
from tilewright.reports.comparison import (
    REPORT,
    leaderboard_rows,
    spoken,
    write_report,
)
from tilewright.reports.markdown import Links, code, markdown_table, paragraphs, plain
from tilewright.reports.network_comparison import run_rows, sweep_note
from tilewright.reports.network_comparison import verdict as network_verdict
from tilewright.reports.number_format import counted
from tilewright.search.events import Event, Listener
from tilewright.services.page_addresses import flow_run_url
from tilewright.tasks import tracking
from tilewright.tasks.log_comparison import log_runs
from tilewright.tasks.log_results import PREFECT_LINK
from tilewright.tasks.register_champion import register_champion
from tilewright.tasks.run_progress import Progress
from tilewright.tasks.stale_runs import retire_dead_runs
from tilewright.tasks.tracked_runner import Step, TrackedRunner, as_task
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.output_dir import identity
from tilewright.tuning.outputs import Summary


class ComparisonRunner(TrackedRunner):
    """Performs the steps of a comparison as tasks, with a progress that moves."""

    def __init__(self, tuners: str) -> None:
        own: dict[Step, Step] = {
            enumerate_spaces: as_task(enumerate_spaces, "spaces of {plan.test_bed.target}"),
            run_tuners: as_task(
                run_tuners, lambda parameters: f"{len(parameters['plan'].jobs)} runs of {tuners}"
            ),
            write_report: as_task(write_report, "report in {folder}", _show_report),
            log_comparison: as_task(log_comparison, "runs to MLflow", _log_comparison),
        }
        super().__init__(self._show, own)
        self._bar: Progress | None = None
        self._done = 0

    def _show(self, event: Event) -> None:
        if isinstance(event, TuningBegan):
            self._bar = Progress("runs", event.runs, f"of {counted(event.runs, 'run')}")
            self._done = event.kept
        elif isinstance(event, RunFinished) and self._bar is not None:
            self._done += 1
            self._bar.show(self._done)


def _show_report(compared: Comparison, folder: Path) -> None:
    """Write the page with all that was found, and show the leaderboard in Prefect."""
    write_report(compared, folder)
    rows = leaderboard_rows(compared.leaderboard)
    said = verdict(compared.results, compared.leaderboard)
    tuner = said.best.tuner
    create_table_artifact(key="leaderboard", table=rows, description=plain(tuner))
    note = paragraphs(
        f"# {plain(tuner)}",
        f"{plain(tuner)} {plain(spoken(said))}",
        markdown_table(rows),
        f"The report is {code(REPORT)} in {code(str(folder))}.",
    )
    create_markdown_artifact(key="comparison", markdown=note, description=plain(tuner))


def _log_comparison(compared: Comparison, folder: Path) -> None:
    """Write the record, log all runs to MLflow, and register the best tuner's models."""
    log_comparison(compared, folder)
    files = [folder / REPORT, folder / COMPARISON]
    logged = log_runs(compared.plan, compared.results, compared.runs, files)
    register_champion(compared.plan, compared.results, compared.leaderboard, logged)


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
    name = f"comparison of {options.rivals}, seeds {options.seeds}: {options.subject}"
    tags = {
        "networks": ",".join(options.networks),
        "targets": ",".join(options.targets),
        "tuners": options.rivals,
        "seeds": options.seeds,
        MLFLOW_SOURCE_NAME: "tilewright compare",
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
        description=plain("; ".join(network_verdict(each) for each in swept.leaderboards)),
    )  # fmt: skip


def _links() -> Links:
    return {PREFECT_LINK: flow_run_url(str(flow_run.id))}
