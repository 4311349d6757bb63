"""The command `tilewright codesign`: searches accelerator designs for given networks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.options import (
    with_options,
)
from tilewright.cli.signals import keep_trials
from tilewright.core.working_folder import from_start
from tilewright.hardware_search.options import CodesignOptions
from tilewright.tuning.options import TrackingOptions

if TYPE_CHECKING:
    from tilewright.hardware_search.options import CodesignOptions
    from tilewright.hardware_search.results import CodesignOutcome
    from tilewright.search.events import Listener


@with_options
def codesign(
    options: CodesignOptions,
    tracking: TrackingOptions,
    bare: Annotated[
        bool,
        typer.Option("--bare", help="Only write the result files, without Prefect and MLflow."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary and the Pareto front as JSON.")
    ] = False,
) -> None:
    """Search for accelerator designs and their schedules together.

    The result is a Pareto front of chip area and latency. Repeating the command resumes a run that
    was stopped.
    """
    tracking.check_bare(bare)
    options = options.model_copy(update={"out": str(from_start(options.folder))})
    _run(options, tracking, bare, as_json)


def _run(options: CodesignOptions, tracking: TrackingOptions, bare: bool, as_json: bool) -> None:
    """Run the search with a progress display, and show the results."""
    from tilewright.hardware_search.steps import check

    check(options)
    from tilewright.cli.views.codesign import show_front, show_search
    from tilewright.cli.views.terminal import Terminal

    keep_trials(options.folder)
    with show_search(Terminal(stderr=as_json)) as listen:
        outcome = _run_bare(options, listen) if bare else _run_tracked(options, tracking, listen)
    if as_json:
        typer.echo(json.dumps({"summary": outcome.summary, "front": outcome.front}, indent=2))
        return
    show_front(options, outcome, {} if bare else _links(outcome), Terminal())


def _run_bare(options: CodesignOptions, listen: Listener) -> CodesignOutcome:
    from tilewright.flows.codesign import codesign
    from tilewright.reports.codesign import draw_front
    from tilewright.search import LocalRunner

    outcome = codesign(LocalRunner(listen), options)
    draw_front(options.folder, outcome)
    return outcome


def _run_tracked(
    options: CodesignOptions, tracking: TrackingOptions, listen: Listener
) -> CodesignOutcome:
    from tilewright.hardware_search.steps import pose_problem
    from tilewright.services.start_servers import embedded
    from tilewright.tuning.events import StageBegan

    listen(StageBegan("pose_problem"))
    problem = pose_problem(options)  # fail before a server is started
    listen(StageBegan("start_servers"))
    with embedded(_prepare):
        from tilewright.flows.codesign_prefect import codesign_flow
        from tilewright.flows.forms import fields_of

        outcome: CodesignOutcome = codesign_flow(listen, problem)(**fields_of(options, tracking))
        return outcome


def _links(outcome: CodesignOutcome) -> dict[str, str]:
    """Return the addresses of the run's pages in MLflow and Prefect, by name."""
    from tilewright.services.page_addresses import flow_run_url
    from tilewright.tasks.tracking import run_url

    return {
        "MLflow": run_url(outcome.summary["mlflow_run_id"]),
        "Prefect": flow_run_url(outcome.summary["prefect_flow_run_id"]),
    }


def _prepare() -> None:
    """Import slow modules while the Prefect server starts."""
    import tilewright.flows.codesign_prefect  # noqa: F401
    from tilewright.tasks import tracking

    tracking.connect()
