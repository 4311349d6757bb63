"""Implements `tilewright tune`: the whole way from a network to tuned, verified schedules."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.arguments import (
    Batch,
    Calibration,
    Cluster,
    InputShape,
    MaxWaste,
    Out,
    Precision,
    Seed,
    Space,
    Store,
    SystemMetrics,
    Target,
    Trials,
    Tuner,
    read_input_shapes,
    read_pair,
    tracking_options,
    with_precision,
)
from tilewright.cli.paths import model_text, warm_start_text
from tilewright.cli.signals import keep_count
from tilewright.core.errors import TilewrightError
from tilewright.core.name_list import split_names
from tilewright.core.working_folder import from_start
from tilewright.tuning.options import DEFAULTS, parse_options

if TYPE_CHECKING:
    from tilewright.cli.views.tuning_progress import Heard
    from tilewright.tuning.options import TrackingOptions, TuningOptions
    from tilewright.tuning.outputs import Summary


def register(app: typer.Typer) -> None:
    app.command("tune")(tune)
    app.command("tuners")(tuners)


def tune(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="An ONNX, .tflite or torch.export file, or a name from 'tilewright zoo'.",
            callback=model_text,
        ),
    ] = None,
    target: Target = DEFAULTS.target,
    precision: Precision = None,
    tuner: Tuner = DEFAULTS.tuner,
    trials: Trials = DEFAULTS.trials,
    stop_gain: Annotated[
        float | None,
        typer.Option(
            help="Share the trials of all workloads, --trials times their number at most, among "
            "those whose next round is expected to save the most; stop where none is expected "
            "to save more than this share of the network's latency: 0.001, say.",
            metavar="SHARE",
        ),
    ] = DEFAULTS.stop_gain,
    seed: Seed = DEFAULTS.seed,
    space: Space = DEFAULTS.space,
    out: Out = None,
    batch: Batch = DEFAULTS.batch,
    leaders: Annotated[
        int,
        typer.Option(
            help="Trials that are validated at the end, on targets that give other numbers "
            "each time."
        ),
    ] = DEFAULTS.leaders,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="An option of the tuner, NAME=VALUE.")
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Tune these layers only, NAME,NAME,…; 'tilewright inspect' names them.",
            metavar="NAME,…",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(help="Tune one workload instead of a MODEL: dense:n=1,c=512,o=1000"),
    ] = None,
    epilogue: Annotated[
        str,
        typer.Option(
            help="'network': what the network needs; 'per-channel': the same for 'tilewright build "
            "--per-channel'; 'plain': '>> 8, min 127, max 0', as published "
            "tuners report and baselines were published for. Of a --workload its steps: '>> N', "
            "'>> channel', 'min N', 'residual N', relu, bias, add; plain by default.",
            metavar="network|per-channel|plain|STEPS",
        ),
    ] = DEFAULTS.epilogue,
    shape: InputShape = None,
    calibration: Calibration = None,
    max_waste: MaxWaste = DEFAULTS.max_waste,
    warm_start: Annotated[
        str,
        typer.Option(
            help="Start from what a model learned on other hardware: its folder, from 'tilewright "
            "model train'. 'champion': from the best models of 'tilewright compare'.",
            metavar="MODEL|champion",
            callback=warm_start_text,
        ),
    ] = "",
    fusion: Annotated[
        str,
        typer.Option(
            help="Which operators run together on the accelerator, for 'tilewright build': 'none', "
            "'all' that may, 'greedy', where estimates say so, or 'learned', searched for by what "
            "whole networks take.",
            metavar="none|all|greedy|learned",
        ),
    ] = DEFAULTS.fusion,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; do not resume.")] = False,
    isolate: Annotated[
        float,
        typer.Option(help="Compile and measure in a process of its own, SECONDS a batch.", min=0),
    ] = DEFAULTS.isolate,
    jobs: Annotated[int, typer.Option(help="Workloads at a time.")] = DEFAULTS.jobs,
    workers: Annotated[
        int,
        typer.Option(help="N is short for --cluster local:N.", metavar="N"),
    ] = DEFAULTS.workers,
    cluster: Cluster = DEFAULTS.cluster,
    store: Store = DEFAULTS.store,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="Make the trials together with other commands that are started with the same "
            "options. Which trials are made then depends on which command is faster.",
        ),
    ] = DEFAULTS.shared,
    system_metrics: SystemMetrics = False,
    bare: Annotated[
        bool,
        typer.Option("--bare", help="Write trials and results only: no Prefect, no MLflow."),
    ] = False,
) -> None:
    """Tune every workload of a network. Repeating the command resumes a run that was stopped."""
    if model is None and workload is None:
        raise TilewrightError(
            "tune what? Name a model file, a network that 'tilewright zoo' lists, or a --workload"
        )
    names = () if layers is None else split_names(layers, "--layers")
    options = parse_options(
        model=model or "", workload=workload or "", epilogue=epilogue,
        layers=names, target=with_precision(target, precision), tuner=tuner, trials=trials,
        seed=seed, space=space, leaders=leaders, stop_gain=stop_gain,
        out="" if out is None else str(out), batch=batch, fresh=fresh,
        tuner_options=dict(read_pair(text, "--option") for text in option or []),
        input_shapes=read_input_shapes(shape), max_waste=max_waste,
        calibration="" if calibration is None else str(calibration),
        warm_start=warm_start, isolate=isolate, jobs=jobs, workers=workers, fusion=fusion,
        cluster=cluster, store=store, shared=shared,
    )  # fmt: skip
    tracking = tracking_options(system_metrics, bare=bare)
    _run(options.model_copy(update={"out": str(from_start(options.folder))}), tracking, bare)


def tuners() -> None:
    """List the search strategies and their options."""
    from tilewright.cli.views.terminal import Terminal
    from tilewright.cli.views.tuners import show_tuners
    from tilewright.search import registered_tuners as registered

    show_tuners(list(registered().values()), Terminal())


def _run(options: TuningOptions, tracking: TrackingOptions, bare: bool) -> None:
    """Progress while it runs, results after it."""
    from tilewright.tuning.preflight import check

    check(options)
    from tilewright.cli.views.terminal import Terminal
    from tilewright.cli.views.tuning_progress import READING, STARTING, Heard, make_display
    from tilewright.cli.views.tuning_results import show_results

    keep_count("trial", lambda: _kept(options))
    console = Terminal()
    heard = Heard(make_display(console, options.trials, READING if bare else STARTING))
    summary = _bare(options, heard) if bare else _tracked(options, tracking, heard)
    links = {} if bare else _links(summary)
    show_results(summary, options.folder, heard.reused_stages, links, console)


def _kept(options: TuningOptions) -> int:
    """Return the number of trials in the output directory."""
    from tilewright.search import read_store

    with suppress(FileNotFoundError), read_store(options.folder) as store:
        return len(store.frame())
    return 0


def _tracked(options: TuningOptions, tracking: TrackingOptions, heard: Heard) -> Summary:
    """With servers around the flow. Heavy imports wait until the server is on its way: both take
    seconds."""
    from tilewright.services.local_services import embedded

    with heard.display, embedded(lambda: _prepare(options)):
        from tilewright.flows.flat_parameters import fields_of
        from tilewright.flows.tuning_prefect import network_flow

        summary: Summary = network_flow(heard)(**fields_of(options, tracking))
        return summary


def _links(summary: Summary) -> dict[str, str]:
    """The run's pages, by whose they are."""
    from tilewright.services.urls import flow_run_url
    from tilewright.tasks.tracking import run_url

    return {
        "MLflow": run_url(summary["mlflow_run_id"]),
        "Prefect": flow_run_url(summary["prefect_flow_run_id"]),
    }


def _bare(options: TuningOptions, heard: Heard) -> Summary:
    with heard.display:
        from tilewright.flows.tuning import tune_network
        from tilewright.reports.run_pictures import draw_run
        from tilewright.search import LocalRunner

        found = tune_network(LocalRunner(heard), options)
        draw_run(options.folder, found)
    return found.summary


def _prepare(options: TuningOptions) -> None:
    import tilewright.flows.tuning_prefect
    import tilewright.networks.network  # noqa: F401
    from tilewright.tasks import tracking

    tracking.connect()
