"""The commands `tilewright ui`, `serve`, `clean` and `warm-up`: the workspace and its servers."""

from __future__ import annotations

import shlex
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.options import OfferedFields, with_options
from tilewright.core.options import CliOption
from tilewright.core.working_folder import started_in
from tilewright.services.server_process import LOOPBACK
from tilewright.tuning.options import DEFAULT_OUT, TrackingOptions, TuningOptions
from tilewright.tuning.regression_options import WatchOptions

PrefectPort = Annotated[
    int | None,
    typer.Option(
        help="Port of Prefect's pages.  [default: the port of the last start; at the first start "
        "4200 or the next free port]"
    ),
]
MlflowPort = Annotated[
    int | None,
    typer.Option(
        help="Port of MLflow's pages.  [default: the port of the last start; at the first start "
        "5000 or the next free port]"
    ),
]


def ui(
    port: Annotated[
        int | None,
        typer.Option(
            help="Port of the start page.  [default: the port of the last start; at the first "
            "start 4100 or the next free port]"
        ),
    ] = None,
    prefect_port: PrefectPort = None,
    mlflow_port: MlflowPort = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. Other machines can connect to any address other than "
            "loopback."
        ),
    ] = LOOPBACK,
    env: Annotated[
        bool,
        typer.Option(
            "--env",
            help="Print the environment variables that connect other programs to the "
            'running servers of this folder, and exit: eval "$(tilewright ui --env)".',
        ),
    ] = False,
) -> None:
    """Start the pages that show all runs, Prefect and MLflow."""
    if env:
        _print_variables()
        return
    from tilewright.dashboard.start import start_dashboard
    from tilewright.services.page_addresses import MLFLOW, PREFECT, RUNS, check_ports
    from tilewright.services.start_servers import choose_ports, show_pages

    asked = {RUNS: port, PREFECT: prefect_port, MLFLOW: mlflow_port}
    options = {RUNS: "--port", PREFECT: "--prefect-port", MLFLOW: "--mlflow-port"}
    check_ports({options[server]: item for server, item in asked.items() if item is not None})
    start, tell = partial(start_dashboard, folder=started_in()), partial(typer.echo, err=True)
    ports = choose_ports(asked, tell)
    check_ports({options[server]: port for server, port in ports.items()})
    _warn_if_open(host)
    with show_pages(host, ports, start, tell) as addresses:
        for name, address in addresses.items():
            typer.echo(f"{name:8} {address}")
        typer.echo(f"Prefect asks each browser once for a password: {addresses.prefect_password}")
        typer.echo("Ctrl-C stops all three servers.")
        addresses.wait()


def _print_variables() -> None:
    from tilewright.services.start_servers import server_variables

    for name, value in server_variables().items():
        typer.echo(f"export {name}={shlex.quote(value)}")


@with_options
def serve(
    *,
    options: Annotated[
        TuningOptions,
        OfferedFields(
            "model",
            "target",
            "tuner",
            "trials",
            "seed",
            "space",
            "out",
            "batch",
            changed={
                "model": CliOption(positional=True, value="model"),
                # no "path" value: a relative path starts at --root, not in the current folder
                "out": CliOption(metavar="PATH", default=DEFAULT_OUT),
            },
        ),
    ],
    cron: Annotated[
        str,
        typer.Option(help="Times to run, as a cron expression: minute, hour, day, month, weekday."),
    ] = "0 2 * * *",
    every: Annotated[
        float | None, typer.Option(help="Run at this interval in seconds instead of --cron.", min=1)
    ] = None,
    root: Annotated[
        Path,
        typer.Option(
            help="Folder below which all runs write their results; relative --out paths start here."
        ),
    ] = Path(),
    name: Annotated[
        str, typer.Option(help="Name of the deployment.  [default: <model>-<target>]")
    ] = "",
    watch: WatchOptions,
    tracking: TrackingOptions,
    prefect_port: PrefectPort = None,
) -> None:
    """Serve the tuning flow as a Prefect deployment.

    The flow runs at the times of a cron expression or at a fixed interval. It can also be started
    from Prefect's pages.
    """
    from tilewright.services.page_addresses import PREFECT, check_ports
    from tilewright.services.start_servers import choose_ports
    from tilewright.tuning.output_dir import below_root
    from tilewright.tuning.preflight import check

    if prefect_port is not None:
        check_ports({"--prefect-port": prefect_port})
    check(options.model_copy(update={"out": str(below_root(options.folder, str(root.resolve())))}))
    from tilewright.flows.serve import (
        check_cron,
        deployment_name,
        print_one_line_per_run,
        serve_tuning,
    )

    print_one_line_per_run()
    if every is None:
        check_cron(cron)
    prefect = choose_ports({PREFECT: prefect_port}, partial(typer.echo, err=True))[PREFECT]
    serve_tuning(
        options,
        watch,
        tracking,
        name=name or deployment_name(options),
        root=root.resolve(),
        cron=cron,
        every_seconds=every,
        port=prefect,
        emit=typer.echo,
    )


def _warn_if_open(host: str) -> None:
    if host not in (LOOPBACK, "localhost", "::1"):
        typer.echo(
            f"warning: everyone who can reach {host} and has one of the links below "
            "can read and change these runs; the connection is not encrypted",
            err=True,
        )


def clean(
    older_than: Annotated[
        float,
        typer.Option(
            help="Minimum age in days: since a cached result was last used, or since a run ended.",
            min=0.05,
        ),
    ] = 30.0,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove the files; without this option, only list them.")
    ] = False,
) -> None:
    """List files of the workspace that can be removed; with --yes, remove them.

    Two kinds of data can be removed: cached results that no command has used for --older-than days,
    and Prefect's records of runs that ended before that time. MLflow runs, output directories and
    artifacts are kept.
    """
    from tilewright.cli.views.cleaning import show_removable
    from tilewright.cli.views.terminal import Terminal
    from tilewright.services.retention import DAY, unused_cache
    from tilewright.services.retention import compact_database as compact
    from tilewright.services.start_servers import embedded
    from tilewright.tasks.stale_runs import delete_runs, ended_before

    before = time.time() - older_than * DAY
    with embedded(prune=False) as workspace:
        cache, runs = unused_cache(workspace, before), ended_before(before)
        if yes:
            delete_runs(runs)
    freed = cache.remove() if yes else 0
    databases = (workspace.prefect_database, workspace.mlflow_database)
    compacted = {path: compact(path) for path in databases} if yes else {}
    show_removable(Terminal(), workspace, cache, len(runs), freed if yes else None, compacted)


def warm_up() -> None:
    """Compile kernels and prepare the database, as 'make setup' does."""
    from tilewright.services.prefect_server import preparing_database_template
    from tilewright.services.workspace import Workspace, use_workspace
    from tilewright.targets import target_kinds

    # Prefect's server creates its tables on one core while kernels are compiled.
    with (
        tempfile.TemporaryDirectory() as folder,
        preparing_database_template(use_workspace(Workspace(Path(folder)))),
    ):
        for kind in target_kinds().values():
            kind.warm_up(typer.echo)
        typer.echo("creating the tables of Prefect's database")
