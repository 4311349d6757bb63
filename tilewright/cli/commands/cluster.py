"""Implements `tilewright cluster`: makes the keys of a Dask cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from tilewright.core.errors import TilewrightError
from tilewright.core.working_folder import as_typed

commands = typer.Typer(help="Make keys for a Dask cluster.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="cluster")


@commands.command("keys")
def keys(
    folder: Annotated[Path, typer.Argument(help="Made, for you alone.", metavar="DIR")],
) -> None:
    """Write a CA and two certificates, and print Dask's settings for them.

    Whoever holds a key can run code on the workers."""
    from tilewright.targets.cluster.keys import AUTHORITY, CLIENT, NODE, dask_settings, make_keys

    try:
        make_keys(folder)
    except FileExistsError as error:
        raise TilewrightError(f"{error}; name a new folder") from None
    typer.echo(dask_settings(folder))
    typer.echo(
        f"{as_typed(str(folder))}: copy {AUTHORITY} and {NODE} to the machines of the scheduler "
        f"and the workers, {AUTHORITY} and {CLIENT} to machines with commands; whoever holds a key "
        "can run code on the workers",
        err=True,
    )


@commands.command(
    "serve",
    hidden=True,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def serve() -> NoReturn:
    """Refuse the command of earlier versions, and name its replacement."""
    raise TilewrightError(
        "'tilewright cluster serve' is gone, because clusters are Dask's: start 'dask scheduler "
        "--protocol tls' once and 'dask worker tls://HOST:8786' on each machine, with the settings "
        "that 'tilewright cluster keys DIR' prints (docs/guides/cluster.md)"
    )
