"""Runner that executes the steps of a co-design run as Prefect tasks and records the run in MLflow.

Prefect searches the arguments of a task for results of other tasks. Problems and evaluators hold
many machines, so this search is turned off for the tasks here.
"""

from __future__ import annotations

from mlflow.utils.mlflow_tags import MLFLOW_SOURCE_NAME, MLFLOW_SOURCE_TYPE
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from tilewright.core.files import Json
from tilewright.hardware_search import output_folder as folder
from tilewright.hardware_search import steps
from tilewright.hardware_search.evaluator import BudgetedEvaluator
from tilewright.hardware_search.options import CodesignOptions
from tilewright.hardware_search.problem import CodesignProblem
from tilewright.hardware_search.progress import Prepared, SearchProgress
from tilewright.hardware_search.results import CodesignOutcome
from tilewright.hardware_search.verification import prove_front
from tilewright.reports.codesign import draw_front, front_note, front_rows, run_note
from tilewright.reports.markdown import escape_text
from tilewright.reports.number_format import count_text
from tilewright.search import TrialStore
from tilewright.search.events import Event, Listener, Note
from tilewright.services.page_addresses import flow_run_url
from tilewright.tasks import tracking
from tilewright.tasks.cached_task import step
from tilewright.tasks.run_progress import Progress
from tilewright.tasks.stale_runs import retire_dead_runs
from tilewright.tasks.tracked_runner import Step, TrackedRunner, as_task
from tilewright.tuning.output_dir import identity

EVERY = "measurements"
"""Metric that is logged at every step of a run's curves."""


class CodesignRunner(TrackedRunner):
    """Runner that executes the steps of a co-design run as Prefect tasks.

    Use it as a context manager. At the end of the context, the MLflow run ends as finished, failed
    or stopped by the user.
    """

    def __init__(self, emit: Listener, *, system_metrics: bool = False) -> None:
        own: dict[Step, Step] = {
            steps.pose_problem: as_task(steps.pose_problem, "networks: {options.subject}"),
            steps.search_designs: as_task(
                steps.search_designs,
                "{options.trials} measurements by {options.method}",
                self._search_designs,
            ),
            prove_front: as_task(prove_front, "verification of the front"),
            steps.log_parameters: self._log_parameters,
            steps.log_codesign: self._log_codesign,
        }
        super().__init__(emit, own, system_metrics=system_metrics)

    def _search_designs(
        self, options: CodesignOptions, problem: CodesignProblem, store: TrialStore, emit: Listener
    ) -> BudgetedEvaluator:
        """Run the search method, with a progress bar in Prefect and curves in MLflow.

        The arguments and the result are those of `hardware_search.steps.search_designs`.
        """
        shown = Progress(
            "search", options.trials, f"of {count_text(options.trials, 'measurement')}"
        )
        with tracking.StepLog(self.run_id, every=EVERY) as log:

            def hear(event: Event) -> None:
                emit(event)
                if isinstance(event, SearchProgress):
                    log.add(event.trials, curves(event))
                    shown.show(event.trials)

            evaluator = steps.search_designs(options, problem, store, hear)
        shown.end()
        return evaluator

    def _log_parameters(
        self, options: CodesignOptions, problem: CodesignProblem, emit: Listener
    ) -> None:
        retire_dead_runs(options, current=str(flow_run.id))
        self.belong_to(_open_run(options, problem))
        steps.log_parameters(options, problem, emit)

    def _log_codesign(
        self, options: CodesignOptions, outcome: CodesignOutcome, wall: float
    ) -> None:
        outcome.summary["mlflow_run_id"] = self.run_id
        outcome.summary["prefect_flow_run_id"] = str(flow_run.id)
        _write_results(options, outcome, wall)
        _show_front(options.subject, self.run_id, outcome)
        _log_run(options, self.run_id, outcome)


def log_events(listen: Listener) -> Listener:
    """Return a listener that logs some events to the Prefect flow run, and passes on all events.

    It logs notes, and the number of machines that a search can choose from.

    Args:
        listen: function that receives all events.
    """

    def hear(event: Event) -> None:
        text = ""
        if isinstance(event, Note):
            text = event.text
        elif isinstance(event, Prepared):
            text = f"{count_text(event.machines, 'machine')} within bounds and budget"
        if text and FlowRunContext.get() is not None:
            get_run_logger().info(text)
        listen(event)

    return hear


@step("files in {options.folder}")
def _write_results(options: CodesignOptions, outcome: CodesignOutcome, wall: float) -> None:
    """Write all result files of a co-design run to its output directory.

    They are the Pareto front, the specifications of its machines, the measurements, the summary and
    the HTML page.

    Args:
        options: options of the run, which name the output directory.
        outcome: the Pareto front and the measurements.
        wall: duration of the run in seconds.
    """
    steps.log_codesign(options, outcome, wall)
    draw_front(options.folder, outcome)


@step("the front in Prefect")
def _show_front(subject: str, run_id: str, outcome: CodesignOutcome) -> None:
    """Create Prefect artifacts of the Pareto front: a table, and a Markdown page.

    Args:
        subject: names of the networks, as the description of both artifacts.
        run_id: MLflow run of the search, to which the page links.
        outcome: the Pareto front and the measurements. If the front is empty, there is no table.
    """
    if outcome.front:
        create_table_artifact(
            key="front", table=front_rows(outcome), description=escape_text(subject)
        )
    links = {"this run in MLflow": tracking.run_url(run_id)}
    create_markdown_artifact(
        key="codesign", markdown=front_note(outcome, links), description=escape_text(subject)
    )


@step("the run in MLflow")
def _log_run(options: CodesignOptions, run_id: str, outcome: CodesignOutcome) -> None:
    """Log the final metrics and all files of a co-design run to MLflow."""
    summary, best = outcome.summary, outcome.summary["best"]
    figures = {"compiles": float(summary["compiles"]), "wall_seconds": summary["wall_seconds"]}
    if best is not None:
        figures["best_area"] = best["area"]
    tracking.log_results(run_id, figures)
    for name in (folder.FRONT, folder.TRIALS, folder.SUMMARY, folder.PAGE):
        tracking.log_file(run_id, options.folder / name)
    for row in outcome.front:
        path = options.folder / folder.SPECS / f"{row['name']}.json"
        tracking.log_file(run_id, path, folder.SPECS)


def curves(event: SearchProgress) -> dict[str, float]:
    """Return the values that a progress event adds to a run's curves in MLflow.

    The curves are the lowest latency, the size and hypervolume of the Pareto front, and the number
    of measured machines.

    Args:
        event: progress after a measurement.

    Returns:
        Values by metric name. Infinite values are included; `StepLog` does not log them.
    """
    return {
        EVERY: float(event.trials),
        "latency/best_milliseconds": 1e3 * event.latency,
        "front/hypervolume": event.hypervolume,
        "front/size": float(event.front),
        "machines_seen": float(event.machines),
    }


def _open_run(options: CodesignOptions, problem: CodesignProblem) -> str:
    params: dict[str, Json] = {
        **{
            name: value
            for name, value in folder.describe_search(options).items()
            if name != "networks"
        },
        "networks": ",".join(problem.networks),
        "target": problem.hardware.base.name,
        "trials": options.trials,
        "machines": len(problem.hardware.points),
    }
    about = params | {"folder": identity(options.folder), "run": folder.identity(options)}
    flow_run_id = str(flow_run.id)
    title = f"codesign {options.subject} within {options.budget:g}, {options.method}"
    tags = {
        "networks": ",".join(problem.networks),
        "method": options.method,
        "seed": str(options.seed),
        MLFLOW_SOURCE_NAME: "tilewright codesign",
        MLFLOW_SOURCE_TYPE: "LOCAL",
        "prefect_flow_run_id": flow_run_id,
        "prefect_flow_run_url": flow_run_url(flow_run_id),
    }
    run_id = tracking.open_run(
        title, tracking.run_key(about), params=params, tags=tags | tracking.commit_tag(),
        fresh=options.fresh,
    )  # fmt: skip
    tracking.describe_run(run_id, run_note(options, flow_run_url(flow_run_id)))
    create_link_artifact(
        link=tracking.run_url(run_id),
        key="mlflow-run",
        description=f"{escape_text(title)}: the run in MLflow",
    )
    return run_id
