"""Implements `tilewright warm-up`: what set-up does once, so that first commands are quick."""

from __future__ import annotations

import tempfile
from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    app.command("warm-up", hidden=True)(warm_up)


def warm_up() -> None:
    """Compile kernels and prepare the database, as 'make setup' does."""
    _compile_kernels()
    _prepare_database()


def _compile_kernels() -> None:
    """Compile what the default target runs; numba keeps the code on disk."""
    from tilewright.targets import target_kinds

    for kind in target_kinds().values():
        kind.warm_up(typer.echo)


def _prepare_database() -> None:
    from tilewright.services.prefect_server import prepare_database_template
    from tilewright.services.workspace import Workspace, use_workspace

    with tempfile.TemporaryDirectory() as folder:
        prepare_database_template(use_workspace(Workspace(Path(folder))))
