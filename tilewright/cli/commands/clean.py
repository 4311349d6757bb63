"""Implements `tilewright clean`: removes what a workspace no longer needs."""

from __future__ import annotations

import time
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("clean", short_help="Remove old cached stages and records of Prefect.")(clean)


def clean(
    older_than: Annotated[
        float,
        typer.Option(help="Days since a stage was used, or since a run ended.", min=0.05),
    ] = 30.0,
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it, only say what.")] = False,
) -> None:
    """Say what could be removed from the workspace, and with --yes remove it: cached stages that
    no command used, and Prefect's records of runs that ended. Runs in MLflow, output directories
    and artifacts stay."""
    from tilewright.cli.views.cleaning import show_removable
    from tilewright.cli.views.terminal import Terminal
    from tilewright.services.local_services import embedded
    from tilewright.services.retention import DAY, compact, unused_cache
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
