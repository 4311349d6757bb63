"""Implements `tilewright cluster`: answers other commands on this machine, and makes their keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.core.errors import TilewrightError

LOOPBACK, DEFAULT_PORT = "127.0.0.1", 8786
Host = Annotated[
    str,
    typer.Option(
        help="Where to listen. Beyond loopback, TILEWRIGHT_CLUSTER_KEYS has to name a folder of "
        "keys.",
        metavar="ADDRESS",
    ),
]
Port = Annotated[int, typer.Option(help="Where to listen; 0 for any free port.", min=0, max=65535)]

commands = typer.Typer(help="Lower and measure for other machines.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="cluster")


@commands.command("serve")
def serve(
    host: Host = LOOPBACK,
    port: Port = DEFAULT_PORT,
    slots: Annotated[int, typer.Option(help="Calls at a time.", min=1, max=1024)] = 1,
) -> None:
    """Lower and measure for commands with the same keys (tune --cluster HOST:PORT)."""
    from tilewright.targets.cluster.remote_worker import TargetService
    from tilewright.targets.cluster.serve import serve as answer_calls

    answer_calls(
        TargetService(slots), host, port,
        lambda address: typer.echo(f"{slots} at a time at {address}; Ctrl-C ends it"),
    )  # fmt: skip


@commands.command("keys")
def keys(
    folder: Annotated[Path, typer.Argument(help="Made, for you alone.", metavar="DIR")],
) -> None:
    """Make the keys of a cluster: who has one gets in, nobody else."""
    from tilewright.targets.cluster.keys import AUTHORITY, COMMAND, VARIABLE, WORKER, make_keys

    try:
        make_keys(folder)
    except FileExistsError as error:
        raise TilewrightError(f"{error}; name a new folder") from None
    typer.echo(
        f"{folder}: to machines with workers copy {AUTHORITY} and {WORKER}, to those with commands "
        f"{AUTHORITY} and {COMMAND}; {VARIABLE} names the folder there"
    )
