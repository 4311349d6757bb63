"""Implements `tilewright ui` and `tilewright serve`: pages of runs, and runs on a schedule."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.options import OfferedFields, with_options
from tilewright.core.options import CliOption
from tilewright.core.working_folder import started_in
from tilewright.services.server_process import LOOPBACK
from tilewright.tuning.options import TrackingOptions, TuningOptions
from tilewright.tuning.regression_options import WatchOptions

PrefectPort = Annotated[
    int | None,
    typer.Option(help="Port of Prefect's pages.  [default: as last time, at first 4200]"),
]
MlflowPort = Annotated[
    int | None,
    typer.Option(help="Port of MLflow's pages.  [default: as last time, at first 5000]"),
]


def register(app: typer.Typer) -> None:
    app.command("ui")(ui)
    app.command("serve", short_help="Run the tuning flow on a schedule.")(serve)


def ui(
    port: Annotated[
        int | None,
        typer.Option(help="Port of the start page.  [default: as last time, at first 4100]"),
    ] = None,
    prefect_port: PrefectPort = None,
    mlflow_port: MlflowPort = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; anything but loopback is open to others.")
    ] = LOOPBACK,
) -> None:
    """Show all runs, with links to Prefect's and MLflow's pages."""
    from tilewright.dashboard.start import start_dashboard
    from tilewright.services.addresses import MLFLOW, PREFECT, RUNS, port_or_last
    from tilewright.services.ports import check_ports
    from tilewright.services.web_ui import show_pages

    asked = {RUNS: port, PREFECT: prefect_port, MLFLOW: mlflow_port}
    ports = {server: port_or_last(each, server) for server, each in asked.items()}
    options = {RUNS: "--port", PREFECT: "--prefect-port", MLFLOW: "--mlflow-port"}
    check_ports({options[server]: each for server, each in ports.items()})
    _warn_if_open(host)
    start, tell = partial(start_dashboard, folder=started_in()), partial(typer.echo, err=True)
    with show_pages(host, ports, start, tell) as addresses:
        for name, address in addresses.items():
            typer.echo(f"{name:8} {address}")
        typer.echo(f"Prefect asks a browser once for a password: {addresses.prefect_password}")
        typer.echo("Ctrl-C stops all three.")
        addresses.wait()


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
                # not a path of this folder: it counts from --root
                "out": CliOption(metavar="PATH", default="tuned/<model>"),
            },
        ),
    ],
    cron: Annotated[
        str, typer.Option(help="When to run: minute, hour, day, month, weekday.")
    ] = "0 2 * * *",
    every: Annotated[
        float | None, typer.Option(help="Run every so many seconds instead.", min=1)
    ] = None,
    root: Annotated[
        Path, typer.Option(help="Folder that the results of no run leave; --out counts from it.")
    ] = Path(),
    watch: WatchOptions,
    tracking: TrackingOptions,
    prefect_port: PrefectPort = None,
) -> None:
    """Serve the tuning flow as a deployment: on a schedule, and on request from Prefect's pages."""
    from tilewright.services.addresses import PREFECT, port_or_last
    from tilewright.services.ports import check_ports
    from tilewright.tuning.output_dir import below_root
    from tilewright.tuning.preflight import check

    prefect = port_or_last(prefect_port, PREFECT)
    check_ports({"--prefect-port": prefect})
    check(options.model_copy(update={"out": str(below_root(options.folder, str(root.resolve())))}))
    from tilewright.flows.serve import check_cron, serve_tuning

    if every is None:
        check_cron(cron)
    serve_tuning(
        options,
        watch,
        tracking,
        root=root.resolve(),
        cron=cron,
        every_seconds=every,
        port=prefect,
        emit=typer.echo,
    )


def _warn_if_open(host: str) -> None:
    if host not in (LOOPBACK, "localhost", "::1"):
        typer.echo(
            f"warning: everyone who has one of the links below, and reaches {host}, can read and "
            "change these runs; nothing is encrypted on the way there",
            err=True,
        )
