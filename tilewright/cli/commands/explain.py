"""Implements `tilewright explain`: which features a run's models used, and how right they were."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("explain", short_help="Show what drove a run's models, and how right they were.")(
        explain
    )


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
    """Show which features drove Models P, V and A, how right they were, and what to do next."""
    from tilewright.cli.views.explanation import explaining, show, tell_problems, warn_if_changed
    from tilewright.cli.views.terminal import Terminal
    from tilewright.evaluation.explain.figures import model_summaries
    from tilewright.evaluation.explain.finished_run import read_folder
    from tilewright.evaluation.explain.recommendations import advice_of
    from tilewright.evaluation.explain.refitted_models import explain_run
    from tilewright.reports.explanation import write_explanation
    from tilewright.tuning.output_dir import check_folder

    console, place = Terminal(), out or folder
    run = read_folder(folder)
    check_folder(place)
    warn_if_changed(run, console)
    with explaining(run, console) as progress:
        explained = explain_run(run, samples, seed, progress)
    tell_problems(run, console)
    models, advice = model_summaries(explained), advice_of(run, explained)
    write_explanation(run, explained, models, advice, place)
    show(explained, models, advice, place, console)
