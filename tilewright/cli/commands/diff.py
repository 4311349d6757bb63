"""Implements `tilewright diff`: tells whether a run is no worse than another one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.paths import MLFLOW_ID, run_text

if TYPE_CHECKING:
    from tilewright.evaluation.diff import Side

WORSE = 1
_RUN = "An --out folder of 'tilewright tune', or the id of a run in MLflow."


def register(app: typer.Typer) -> None:
    app.command("diff", short_help="Say whether a run is no worse than another one.")(diff)


def diff(
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help=_RUN, callback=run_text)],
    run_b: Annotated[
        str,
        typer.Argument(metavar="RUN_B", help="The same of what is judged.", callback=run_text),
    ],
    tolerance: Annotated[
        float,
        typer.Option(
            metavar="PERCENT",
            help="By how much RUN_B may take longer, and how many points fewer of its trials may "
            "be valid.",
        ),
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Hold RUN_B against RUN_A: latency of every layer and of all, valid trials, how right the
    models were, what changed. Exit status 0: no worse; 1: worse; 2: they cannot be compared."""
    from tilewright.cli.views.diff import show_diff
    from tilewright.cli.views.terminal import Terminal
    from tilewright.evaluation.diff import diff_runs

    verdict = diff_runs(_side(run_a), _side(run_b), tolerance)
    if as_json:
        typer.echo(json.dumps(verdict.to_json(), indent=2, ensure_ascii=False))
    else:
        show_diff(verdict, Terminal())
    if verdict.worse:
        raise typer.Exit(WORSE)


def _side(run: str) -> Side:
    from tilewright.evaluation.diff import read_side

    if Path(run).exists() or not MLFLOW_ID.fullmatch(run):
        return read_side(Path(run))
    from tilewright.services.mlflow_server import mlflow_login
    from tilewright.services.workspace import use_workspace

    os.environ |= mlflow_login(use_workspace())
    from tilewright.tasks.load_past_run import side_of_run

    return side_of_run(run)
