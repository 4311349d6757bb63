"""Implements `tilewright codesign`: finds accelerators and schedules for given networks."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.arguments import (
    Cluster,
    Seed,
    Store,
    SystemMetrics,
    read_pair,
    tracking_options,
)
from tilewright.cli.paths import model_texts, target_text
from tilewright.cli.signals import keep_count
from tilewright.core.errors import TilewrightError
from tilewright.core.name_list import split_names
from tilewright.core.working_folder import from_start

if TYPE_CHECKING:
    from tilewright.hardware_search.options import CodesignOptions
    from tilewright.hardware_search.outputs import CodesignOutcome
    from tilewright.search.events import Listener
    from tilewright.tuning.options import TrackingOptions


def register(app: typer.Typer) -> None:
    app.command("codesign")(codesign)


def codesign(
    networks: Annotated[
        str,
        typer.Option(
            help="What one accelerator is to serve: names from 'tilewright zoo' or model files, "
            "with commas between.",
            metavar="NAME,…",
            callback=model_texts,
        ),
    ],
    budget: Annotated[
        float,
        typer.Option(help="The largest area; the stock machine takes 1.", metavar="AREA"),
    ],
    trials: Annotated[int, typer.Option(help="Measurements of all machines together.")] = 1000,
    method: Annotated[
        str,
        typer.Option(help="Who searches: ours, dcoc, autotvm, chameleon, nsga2, tpe or random."),
    ] = "ours",
    objective: Annotated[
        str,
        typer.Option(
            help="What the front holds beside the area: latency, energy, or their product (edp).",
            metavar="latency|edp|energy",
        ),
    ] = "latency",
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.  [default: codesigned/<networks>]")
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            help="The machine whose knobs are turned: a preset or a file.", callback=target_text
        ),
    ] = "vta-pynq",
    bound: Annotated[
        list[str] | None,
        typer.Option(
            "--bound",
            help="Lowest and highest value of a hardware knob, may be given again: "
            "log_block_in=4:5.",
            metavar="KNOB=LOW:HIGH",
        ),
    ] = None,
    clock: Annotated[
        str,
        typer.Option(
            help="'fixed': all machines run at the base machine's clock; 'tree': slower, the more "
            "levels their adder trees have.",
            metavar="fixed|tree",
        ),
    ] = "fixed",
    option: Annotated[
        list[str] | None, typer.Option("--option", help="An option of the method, NAME=VALUE.")
    ] = None,
    cluster: Cluster = "",
    store: Store = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; do not resume.")] = False,
    system_metrics: SystemMetrics = False,
    bare: Annotated[
        bool, typer.Option("--bare", help="Write the results only: no Prefect, no MLflow.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print summary and front as JSON.")
    ] = False,
) -> None:
    """Search accelerators and their schedules together.

    The result is a front of area against latency. Repeating the command resumes a run that was
    stopped."""
    from tilewright.hardware_search.options import parse_codesign

    options = parse_codesign(
        networks=split_names(networks, "--networks"), budget=budget,
        trials=trials, method=method, objective=objective, seed=seed,
        out="" if out is None else str(out), target=target, bounds=_bounds(bound or []),
        clock=clock, cluster=cluster, store=store, fresh=fresh,
        method_options=dict(read_pair(text, "--option") for text in option or []),
    )  # fmt: skip
    options = options.model_copy(update={"out": str(from_start(options.folder))})
    _run(options, tracking_options(system_metrics, bare=bare), bare, as_json)


def _bounds(texts: list[str]) -> dict[str, tuple[int, int]]:
    """Values of `--bound`. Raises `TilewrightError`."""
    found: dict[str, tuple[int, int]] = {}
    for text in texts:
        knob, limits = read_pair(text, "--bound")
        low, _, high = limits.partition(":")
        try:
            pair = int(low), int(high or low)
        except ValueError:
            raise TilewrightError(f"--bound {text}: write KNOB=LOW:HIGH, whole numbers") from None
        if found.get(knob, pair) != pair:
            raise TilewrightError(f"--bound {knob} is given twice, as {found[knob]} and {pair}")
        found[knob] = pair
    return found


def _run(options: CodesignOptions, tracking: TrackingOptions, bare: bool, as_json: bool) -> None:
    """Progress while it runs, results after it."""
    from tilewright.hardware_search.steps import check

    check(options)
    from tilewright.cli.views.codesign import searching, show_front
    from tilewright.cli.views.terminal import Terminal

    keep_count("trial", lambda: _kept(options))
    with searching(Terminal(stderr=as_json)) as listen:
        outcome = _bare(options, listen) if bare else _tracked(options, tracking, listen)
    if as_json:
        typer.echo(json.dumps({"summary": outcome.summary, "front": outcome.front}, indent=2))
        return
    show_front(options, outcome, {} if bare else _links(outcome), Terminal())


def _kept(options: CodesignOptions) -> int:
    """Return the number of trials in the output directory."""
    from tilewright.search import read_store

    with suppress(FileNotFoundError), read_store(options.folder) as store:
        return len(store.frame())
    return 0


def _bare(options: CodesignOptions, listen: Listener) -> CodesignOutcome:
    from tilewright.flows.codesign import codesign
    from tilewright.reports.codesign.drawing import draw_front
    from tilewright.search import LocalRunner

    outcome = codesign(LocalRunner(listen), options)
    draw_front(options.folder, outcome)
    return outcome


def _tracked(
    options: CodesignOptions, tracking: TrackingOptions, listen: Listener
) -> CodesignOutcome:
    from tilewright.hardware_search.steps import pose_problem
    from tilewright.services.local_services import embedded
    from tilewright.tuning.events import StageBegan

    listen(StageBegan("pose_problem"))
    problem = pose_problem(options)  # what nobody can offload starts no server
    listen(StageBegan("start_servers"))
    with embedded(_prepare):
        from tilewright.flows.codesign_prefect import codesign_flow
        from tilewright.flows.flat_parameters import fields_of

        outcome: CodesignOutcome = codesign_flow(listen, problem)(**fields_of(options, tracking))
        return outcome


def _links(outcome: CodesignOutcome) -> dict[str, str]:
    """The run's pages, by whose they are."""
    from tilewright.services.urls import flow_run_url
    from tilewright.tasks.tracking import run_url

    return {
        "MLflow": run_url(outcome.summary["mlflow_run_id"]),
        "Prefect": flow_run_url(outcome.summary["prefect_flow_run_id"]),
    }


def _prepare() -> None:
    """While the server starts."""
    import tilewright.flows.codesign_prefect  # noqa: F401
    from tilewright.tasks import tracking

    tracking.connect()
