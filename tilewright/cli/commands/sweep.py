"""Defines `tilewright sweep`: whole runs of several tuners and seeds, on networks and targets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.options import with_options
from tilewright.core.working_folder import from_start
from tilewright.evaluation.sweep.options import SweepOptions
from tilewright.tuning.options import TrackingOptions

if TYPE_CHECKING:
    from tilewright.evaluation.sweep.plan import SweepPlan
    from tilewright.evaluation.sweep.steps import Sweep
    from tilewright.search.events import Listener


def register(app: typer.Typer) -> None:
    app.command("sweep", short_help="Tune networks with several tuners and seeds.")(sweep)


@with_options
def sweep(
    options: SweepOptions,
    tracking: TrackingOptions,
    bare: Annotated[
        bool,
        typer.Option("--bare", help="Write trials and results only: no Prefect, no MLflow."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tune every network on every target with every tuner and seed, and say which tuner won where.

    Repeating the command resumes a sweep that was stopped, and repeats no finished run."""
    tracking.check_bare(bare)
    options = options.model_copy(update={"out": str(from_start(options.folder))})
    _run(options, tracking, bare, as_json)


def _run(options: SweepOptions, tracking: TrackingOptions, bare: bool, as_json: bool) -> None:
    """Progress while it runs, tables after it."""
    from tilewright.cli.signals import keep_count
    from tilewright.cli.views.sweep import show_sweep, sweeping
    from tilewright.cli.views.terminal import Terminal
    from tilewright.evaluation.row_cache import count_rows
    from tilewright.evaluation.sweep.plan import plan_sweep
    from tilewright.evaluation.sweep.runs import RUNS
    from tilewright.search.events import StageBegan

    keep_count("run", lambda: count_rows(options.folder / RUNS))
    with sweeping(Terminal(stderr=as_json)) as listen:
        listen(StageBegan("plan_sweep"))
        plan = plan_sweep(options)  # what cannot be starts no server
        swept, links = _bare(plan, listen) if bare else _tracked(plan, tracking, listen)
    if as_json:
        typer.echo(json.dumps(swept.to_json(), indent=2, ensure_ascii=False))
        return
    show_sweep(swept, options.folder, links, Terminal())


def _bare(plan: SweepPlan, listen: Listener) -> tuple[Sweep, dict[str, str]]:
    from tilewright.flows.sweep import sweep as sweep_networks
    from tilewright.search import LocalRunner

    return sweep_networks(LocalRunner(listen), plan.options, plan), {}


def _tracked(
    plan: SweepPlan, tracking: TrackingOptions, listen: Listener
) -> tuple[Sweep, dict[str, str]]:
    """With servers around the flow; the sweep's pages by whose they are."""
    from tilewright.search.events import StageBegan
    from tilewright.services.local_services import embedded

    listen(StageBegan("start_servers"))
    with embedded(_prepare):
        from tilewright.flows.forms import fields_of
        from tilewright.flows.sweep_flow import Swept, sweep_flow

        swept: Swept = sweep_flow(listen, plan)(**fields_of(plan.options, tracking))
        return swept


def _prepare() -> None:
    """While the server starts."""
    import tilewright.flows.sweep_flow  # noqa: F401
    from tilewright.tasks import tracking

    tracking.connect()
