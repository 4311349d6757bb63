"""Implements `tilewright trials`: the contents of a ledger, whether its run ended or not."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tilewright.core.working_folder import as_typed


def register(app: typer.Typer) -> None:
    app.command("trials", short_help="List the trials of a run, the best first.")(trials)


def trials(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="The output directory of a run; or a log of AutoTVM, or MetaSchedule's database.",
        ),
    ],
    csv: Annotated[
        bool,
        typer.Option(
            "--csv", help="Print CSV, with the columns of trials.parquet: configs as knob indices."
        ),
    ] = False,
    best: Annotated[
        int | None, typer.Option(help="Show the best so many of each layer only.", min=1)
    ] = None,
) -> None:
    """List the trials a run has recorded, the best first, also while it goes or after it died."""
    from tilewright.cli.views.terminal import Terminal
    from tilewright.cli.views.trials import show_trials
    from tilewright.reports.number_format import counted
    from tilewright.tuning.output_dir import LEDGER
    from tilewright.tuning.output_dir import at_work as who_is_at_work
    from tilewright.tuning.read_trials import read_trials
    from tilewright.tuning.run_metadata import is_complete, read_run

    ours = os.path.lexists(folder / LEDGER)
    # asked before reading: what it adds meanwhile may be cut short
    at_work = who_is_at_work(folder) if ours else None
    found = read_trials(folder)
    for problem in found.problems:
        if not (at_work and "torn" in problem):
            typer.echo(f"note: {as_typed(problem)}", err=True)
    frame = found.table
    if csv:
        sys.stdout.write(frame.to_csv(index=False, lineterminator="\n"))
        return
    run = read_run(folder) if ours else None
    names = {} if run is None else {each["id"]: each for each in run["workloads"]}
    show_trials(frame, names, best, Terminal())
    state = "made by another tuner"
    if ours:
        ended = "the run is complete" if is_complete(folder) else "the run was stopped"
        state = f"{at_work} is adding to it" if at_work else ended
    workloads = counted(frame["workload"].nunique(), "workload")
    typer.echo(f"{counted(len(frame), 'trial')} of {workloads}; {state}")
