"""`tilewright explain`: what the models of a run went by, and how right they were."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


def explain(
    folder: Annotated[Path, typer.Argument(help="The --out folder of 'tilewright tune'.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write explain.html.  [default: the same folder]")
    ] = None,
    samples: Annotated[
        int, typer.Option(help="Random configs a layer to judge the models on.")
    ] = 512,
    seed: Annotated[int, typer.Option(help="Of these random configs.")] = 0,
) -> None:
    """Show which features drove Models P, V and A, V's calibration, and predicted vs simulated."""
    from rich.console import Console

    from cli.explanation import run_explanation, show

    console = Console()
    explained = run_explanation(folder, out or folder, console, samples=samples, seed=seed)
    show(explained, out or folder, console)
