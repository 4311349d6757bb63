"""Runners that execute the steps of a comparison of tuners as Prefect tasks.

Every comparison has one run in MLflow (`tasks.log_comparison`). In a comparison on networks, each
tuning run of a network is a Prefect flow of its own. Prefect searches the arguments of a task for
results of other tasks. Plans and comparisons hold tables of many runs, so this search is turned off
for the tasks here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from tilewright.evaluation.compare import network_comparison as steps
from tilewright.evaluation.compare.leaderboard import Leaderboard
from tilewright.evaluation.compare.network_comparison import NetworkComparison
from tilewright.evaluation.compare.network_plan import NetworkJob, NetworksPlan
from tilewright.evaluation.compare.network_runs import NetworkRun, RunTuned
from tilewright.evaluation.compare.options import CompareOptions
from tilewright.evaluation.compare.plan import ComparisonBegan
from tilewright.evaluation.compare.record import RECORD
from tilewright.evaluation.compare.workload_comparison import (
    Comparison,
    RunFinished,
    enumerate_spaces,
    log_comparison,
    run_tuners,
)
from tilewright.flows.comparison import tune_run
from tilewright.reports.comparison import REPORT, write_report
from tilewright.reports.comparison_note import comparison_note
from tilewright.reports.leaderboard import leaderboard_rows, verdict
from tilewright.reports.markdown import Links, escape_text
from tilewright.reports.number_format import count_text
from tilewright.search.events import Event, Listener
from tilewright.services.page_addresses import flow_run_url
from tilewright.tasks import tracking
from tilewright.tasks.log_comparison import (
    comparison_name,
    log_leaderboards,
    log_workload_runs,
    open_comparison,
)
from tilewright.tasks.log_results import PREFECT_LINK
from tilewright.tasks.register_champion import register_champion
from tilewright.tasks.run_progress import Progress
from tilewright.tasks.stale_runs import retire_dead_runs
from tilewright.tasks.tracked_runner import Step, TrackedRunner, as_task
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.outputs import Summary


class _Recorded(TrackedRunner):
    """Base class of comparison runners: it opens the MLflow run and shows progress and results."""

    def __init__(self, options: CompareOptions, emit: Listener, own: Mapping[Step, Step]) -> None:
        super().__init__(emit, own)
        self.options = options
        self._runs = 0
        self._bar: Progress | None = None
        self._done = 0

    def _begin(self, runs: int, kept: int) -> None:
        """Open the run of the comparison in MLflow, and start the progress bar.

        Args:
            runs: number of runs of tuners in the comparison.
            kept: number of runs that are already finished.
        """
        self._runs, self._done = runs, kept
        flow_run_id = str(flow_run.id)
        tags = {
            "prefect_flow_run_id": flow_run_id,
            "prefect_flow_run_url": flow_run_url(flow_run_id),
        }
        self.run_id = open_comparison(self.options, runs, _links(), tags)
        name = comparison_name(self.options)
        create_link_artifact(
            link=tracking.run_url(self.run_id),
            key="mlflow-run",
            description=f"{escape_text(name)}: the run in MLflow",
        )
        self._bar = Progress("runs", runs, f"of {count_text(runs, 'run')}")

    def _run_done(self) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.show(self._done)

    def _publish(
        self,
        boards: Sequence[Leaderboard],
        files: Sequence[Path],
        network_runs: Sequence[NetworkRun] = (),
    ) -> None:
        """Show the leaderboards in Prefect, and write them to the comparison's run in MLflow.

        Args:
            boards: the leaderboards.
            files: files to log as artifacts.
            network_runs: the compared runs of networks, if any.
        """
        if self._bar is not None:
            self._bar.end()
        verdicts = escape_text("; ".join(map(verdict, boards)))
        create_table_artifact(
            key="leaderboard", table=leaderboard_rows(boards), description=verdicts
        )
        links = {"this comparison in MLflow": tracking.run_url(self.run_id)}
        note = comparison_note(self.options, self._runs, links, boards, network_runs)
        create_markdown_artifact(key="comparison", markdown=note, description=verdicts)
        log_leaderboards(
            self.run_id, self.options, self._runs, _links(), boards, network_runs, files
        )


class WorkloadsRunner(_Recorded):
    """Runner that executes the steps of a comparison on workloads as Prefect tasks.

    Use it as a context manager, which ends the comparison's run in MLflow.
    """

    def __init__(self, options: CompareOptions) -> None:
        own: dict[Step, Step] = {
            enumerate_spaces: as_task(enumerate_spaces, "spaces of {plan.test_bed.target}"),
            run_tuners: as_task(
                run_tuners,
                lambda parameters: f"{len(parameters['plan'].jobs)} runs of {options.rivals}",
            ),
            write_report: as_task(write_report, "report in {folder}"),
            log_comparison: as_task(log_comparison, "runs to MLflow", self._log),
        }
        super().__init__(options, self._hear, own)

    def _hear(self, event: Event) -> None:
        if isinstance(event, ComparisonBegan):
            self._begin(event.runs, event.kept)
        elif isinstance(event, RunFinished):
            self._run_done()

    def _log(self, compared: Comparison, folder: Path) -> None:
        """Write `comparison.json`, log all runs to MLflow, and register the best tuner's models."""
        log_comparison(compared, folder)
        self._publish(compared.leaderboards, [folder / REPORT, folder / RECORD])
        logged = log_workload_runs(self.run_id, compared.plan, compared.results, compared.runs)
        register_champion(compared.plan, compared.results, compared.leaderboard, logged)


TuneNetwork = Callable[[TuningOptions, Listener, str], Summary]
"""Function that tunes a network in a separate flow. Its arguments are the options, a listener and
the ID of the comparison's MLflow run."""


class NetworksRunner(_Recorded):
    """Runner that executes the steps of a comparison on networks.

    Use it as a context manager, which ends the comparison's run in MLflow.

    Args:
        options: options of the comparison.
        listen: function that receives the events.
        tune: tunes a network in a flow of its own.
    """

    def __init__(self, options: CompareOptions, listen: Listener, tune: TuneNetwork) -> None:
        own: dict[Step, Step] = {
            tune_run: self._tune_run,
            steps.log_networks_began: self._log_began,
            steps.log_networks: self._log,
        }
        super().__init__(options, self._hear, own)
        self._listen = listen
        self._tune = tune

    def _tune_run(self, job: NetworkJob, emit: Listener) -> Summary:
        return self._tune(job.options, self._listen, self.run_id)

    def _log_began(self, plan: NetworksPlan, kept: int, emit: Listener) -> None:
        retire_dead_runs(plan.options, current=str(flow_run.id))
        self._begin(len(plan.jobs), kept)  # system metrics are logged to its child runs
        steps.log_networks_began(plan, kept, emit)

    def _log(self, compared: NetworkComparison, folder: Path) -> None:
        steps.log_networks(compared, folder)
        self._publish(compared.leaderboards, [folder / RECORD], compared.runs)

    def _hear(self, event: Event) -> None:
        if isinstance(event, RunTuned):
            self._run_done()
            if FlowRunContext.get() is not None:
                get_run_logger().info(f"{event.run.title}: done")
        self._listen(event)


def _links() -> Links:
    return {PREFECT_LINK: flow_run_url(str(flow_run.id))}
