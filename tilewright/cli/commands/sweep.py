"""Defines `tilewright sweep`: whole runs of several tuners and seeds, on networks and targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.arguments import (
    Batch,
    Cluster,
    InputShape,
    MaxWaste,
    Space,
    Store,
    SystemMetrics,
    Trials,
    read_input_shapes,
    tracking_options,
)
from tilewright.cli.paths import model_text, target_text
from tilewright.core.user_text import split_names
from tilewright.core.working_folder import from_start
from tilewright.tuning.options import DEFAULTS

if TYPE_CHECKING:
    from tilewright.evaluation.sweep.options import SweepOptions
    from tilewright.evaluation.sweep.plan import SweepPlan
    from tilewright.evaluation.sweep.steps import Sweep
    from tilewright.search.events import Listener
    from tilewright.tuning.options import TrackingOptions


def register(app: typer.Typer) -> None:
    app.command("sweep", short_help="Tune networks with several tuners and seeds.")(sweep)


def sweep(
    networks: Annotated[
        list[str],
        typer.Argument(
            metavar="NETWORK",
            help="ONNX, .tflite or torch.export files, or names from 'tilewright zoo'.",
        ),
    ],
    tuners: Annotated[
        str,
        typer.Option(
            help="Comma-separated; options behind colons: default,ml2tuner:alpha=2:first=32"
        ),
    ] = "default,random",
    seeds: Annotated[str, typer.Option(help="0-4 or 0,3,7: a run for each.")] = "0-4",
    targets: Annotated[
        str, typer.Option(help="Comma-separated; 'tilewright targets' lists them.")
    ] = DEFAULTS.target,
    trials: Trials = DEFAULTS.trials,
    stop_gain: Annotated[
        float | None,
        typer.Option(
            help="Share the trials of a run's workloads, as 'tilewright tune --stop-gain'.",
            metavar="SHARE",
        ),
    ] = DEFAULTS.stop_gain,
    batch: Batch = DEFAULTS.batch,
    space: Space = DEFAULTS.space,
    epilogue: Annotated[
        str,
        typer.Option(
            help="What follows the sums, as 'tilewright tune --epilogue'.",
            metavar="network|per-channel|plain",
        ),
    ] = DEFAULTS.epilogue,
    layers: Annotated[
        str | None, typer.Option(help="Tune these layers only, NAME,NAME,…", metavar="NAME,…")
    ] = None,
    shape: InputShape = None,
    max_waste: MaxWaste = DEFAULTS.max_waste,
    jobs: Annotated[int, typer.Option(help="Workloads of a run at a time.")] = DEFAULTS.jobs,
    cluster: Cluster = DEFAULTS.cluster,
    store: Store = DEFAULTS.store,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("swept"),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; do not reuse finished runs.")
    ] = False,
    system_metrics: SystemMetrics = False,
    bare: Annotated[
        bool,
        typer.Option("--bare", help="Write trials and results only: no Prefect, no MLflow."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tune every network on every target with every tuner and seed, and say which tuner won where.

    Repeating the command resumes a sweep that was stopped, and repeats no finished run."""
    from tilewright.evaluation.sweep.options import parse_sweep

    options = parse_sweep(
        networks=tuple(model_text(each) for each in networks),
        targets=tuple(target_text(each) for each in split_names(targets, "--targets")),
        tuners=split_names(tuners, "--tuners"), seeds=seeds, trials=trials, stop_gain=stop_gain,
        batch=batch, space=space, epilogue=epilogue,
        layers=() if layers is None else split_names(layers, "--layers"),
        input_shapes=read_input_shapes(shape), max_waste=max_waste, jobs=jobs,
        cluster=cluster, store=store,
        out=str(from_start(out)), fresh=fresh,
    )  # fmt: skip
    _run(options, tracking_options(system_metrics, bare=bare), bare, as_json)


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
    from tilewright.services.start_servers import embedded

    listen(StageBegan("start_servers"))
    with embedded(_prepare):
        from tilewright.flows.flat_parameters import fields_of
        from tilewright.flows.sweep_flow import Swept, sweep_flow

        swept: Swept = sweep_flow(listen, plan)(**fields_of(plan.options, tracking))
        return swept


def _prepare() -> None:
    """While the server starts."""
    import tilewright.flows.sweep_flow  # noqa: F401
    from tilewright.tasks import tracking

    tracking.connect()
