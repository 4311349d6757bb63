"""Implements `tilewright warm-up`: what set-up does once, so that first commands are quick."""

from __future__ import annotations

import tempfile
from pathlib import Path

import typer

WORKLOAD = "conv2d:n=1,c=32,h=8,w=8,o=32,k=3,s=1,p=1"


def register(app: typer.Typer) -> None:
    app.command("warm-up", hidden=True)(warm_up)


def warm_up() -> None:
    """Compile kernels and prepare the database, as 'make setup' does."""
    _compile_kernels()
    _prepare_database()


def _compile_kernels() -> None:
    """Run every compiled kernel on something small: Numba keeps what it compiled on disk."""
    from tilewright.flows.tuning import tune
    from tilewright.models import make_explorer
    from tilewright.targets import make_target, target_kinds
    from tilewright.targets.workload import parse_workload
    from tilewright.tuning.options import DEFAULTS

    for kind in target_kinds().values():
        kind.warm_up()
    target, workload = make_target(DEFAULTS.target), parse_workload(WORKLOAD)
    for tuner in ("default", "autotvm"):
        for _ in tune(target, workload, make_explorer(tuner), trials=80, batch=16):
            pass


def _prepare_database() -> None:
    from tilewright.services.prefect_server import prepare_database_template
    from tilewright.services.workspace import Workspace, use_workspace

    with tempfile.TemporaryDirectory() as folder:
        prepare_database_template(use_workspace(Workspace(Path(folder))))
