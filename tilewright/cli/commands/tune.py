"""The commands `tilewright tune` and `tuners`: tune a network, and list the tuners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.options import (
    with_options,
)
from tilewright.cli.signals import keep_trials
from tilewright.core.errors import TilewrightError
from tilewright.core.working_folder import from_start
from tilewright.tuning.options import USUAL, TrackingOptions, TuningOptions

if TYPE_CHECKING:
    from tilewright.cli.views.tuning_progress import Heard
    from tilewright.tuning.outputs import Summary


@with_options
def tune(
    options: TuningOptions,
    tracking: TrackingOptions,
    bare: Annotated[
        bool,
        typer.Option(
            "--bare",
            help="Only write trials and result files, without Prefect and MLflow.",
            rich_help_panel=USUAL,
        ),
    ] = False,
) -> None:
    """Tune every workload of a network. Repeating the command resumes a run that was stopped."""
    if not options.workload and "model" not in options.model_fields_set:
        raise TilewrightError(
            "nothing to tune was given; give a model file, the name of a network "
            "that 'tilewright zoo' lists, or a --workload"
        )
    tracking.check_bare(bare)
    options = options.model_copy(update={"out": str(from_start(options.folder))})
    from tilewright.tuning.preflight import check

    check(options)
    from tilewright.cli.views.terminal import Terminal
    from tilewright.cli.views.tuning_progress import READING, STARTING, Heard, make_display
    from tilewright.cli.views.tuning_results import show_results

    keep_trials(options.folder)
    console = Terminal()
    heard = Heard(make_display(console, options.trials, READING if bare else STARTING))
    if bare:
        with heard.display:
            from tilewright.flows.tuning import tune_network
            from tilewright.reports.run_pictures import draw_run
            from tilewright.search import LocalRunner

            network = tune_network(LocalRunner(heard), options)
            draw_run(options.folder, network)
        summary, links = network.summary, dict[str, str]()
    else:
        summary = _run_tracked(options, tracking, heard)
        links = _links(summary)
    show_results(summary, options.folder, heard.reused_stages, links, console)


def tuners() -> None:
    """List the tuners and their options."""
    from tilewright.cli.views.terminal import Terminal
    from tilewright.cli.views.tuners import show_tuners
    from tilewright.search import registered_tuners as registered

    show_tuners(list(registered().values()), Terminal())


def _run_tracked(options: TuningOptions, tracking: TrackingOptions, heard: Heard) -> Summary:
    """Run the tuning flow with Prefect and MLflow, and return the content of `summary.json`.

    Slow modules are imported while the Prefect server starts, because both take seconds.

    Args:
        options: options of the run.
        tracking: tracking options.
        heard: listener that shows the events.
    """
    from tilewright.services.start_servers import embedded

    with heard.display, embedded(lambda: _prepare(options)):
        from tilewright.flows.forms import fields_of
        from tilewright.flows.tuning_prefect import network_flow

        summary: Summary = network_flow(heard)(**fields_of(options, tracking))
        return summary


def _links(summary: Summary) -> dict[str, str]:
    """Return the addresses of the run's pages in MLflow and Prefect, by name."""
    from tilewright.services.page_addresses import flow_run_url
    from tilewright.tasks.tracking import run_url

    return {
        "MLflow": run_url(summary["mlflow_run_id"]),
        "Prefect": flow_run_url(summary["prefect_flow_run_id"]),
    }


def _prepare(options: TuningOptions) -> None:
    import tilewright.flows.tuning_prefect
    import tilewright.networks.network  # noqa: F401
    from tilewright.tasks import tracking

    tracking.connect()
