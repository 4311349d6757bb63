"""Implements `tilewright cpu`: libraries for this processor in programs without Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.core.working_folder import as_typed

commands = typer.Typer(help="Run libraries without Python.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="cpu")


@commands.callback()
def _group() -> None:
    pass


@commands.command("runtime")
def runtime(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the sources.")],
    artifact: Annotated[
        Path | None,
        typer.Option("--for", metavar="ART", help="Refuse an artifact that C cannot run."),
    ] = None,
) -> None:
    """Write what a C program needs to run the libraries of 'tilewright build --target cpu': a
    header, its source, an example with a Makefile, and TVM's runtime (6 MB)."""
    from tilewright.networks.artifact.regions import refuse_regions
    from tilewright.networks.compiled.c_interface import write_c_interface

    if artifact is not None:
        refuse_regions(artifact)
    write_c_interface(out)
    typer.echo(f"{as_typed(str(out))}: make -C {as_typed(str(out))} builds the example")
