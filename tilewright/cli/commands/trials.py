"""Implements `tilewright trials`: prints, filters and exports the trials of a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.core.errors import TilewrightError
from tilewright.core.working_folder import as_typed

if TYPE_CHECKING:
    import pandas as pd

    from tilewright.tuning.run_metadata import WorkloadNames

STATUSES = ("valid", "compile_error", "run_error", "wrong_result", "timeout")
FORMATS = (".csv", ".parquet", ".json")


def register(app: typer.Typer) -> None:
    app.command("trials", short_help="Print, filter and export the trials of a run.")(trials)


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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON array of one object per trial.")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the trials to a file instead: .csv, .parquet or .json.",
        ),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only trials of this layer, or of this workload's ID."),
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(metavar="|".join(STATUSES), help="Only trials with this status."),
    ] = None,
    best: Annotated[
        int | None, typer.Option(help="Only the best N trials of each layer.", metavar="N", min=1)
    ] = None,
) -> None:
    """Print the trials of a run, the best first. The run may be going on, or may have died."""
    from tilewright.cli.views.terminal import Terminal
    from tilewright.cli.views.trials import best_trials, show_trials
    from tilewright.reports.number_format import counted
    from tilewright.search.ledger_import import LEDGERS
    from tilewright.search.trial_store import FILE
    from tilewright.tuning.output_dir import at_work as who_is_at_work
    from tilewright.tuning.read_trials import read_trials
    from tilewright.tuning.run_metadata import is_complete, read_run

    if export is not None and export.suffix not in FORMATS:
        raise TilewrightError(f"--export {export}: name a file that ends in {', '.join(FORMATS)}")
    if status is not None and status not in STATUSES:
        raise TilewrightError(f"--status {status}: choose one of {', '.join(STATUSES)}")
    ours = any(os.path.lexists(folder / name) for name in (FILE, *LEDGERS))
    at_work = who_is_at_work(folder) if ours else None
    found = read_trials(folder)
    for problem in found.problems:
        typer.echo(f"note: {as_typed(problem)}", err=True)
    run = read_run(folder) if ours else None
    names = {} if run is None else {each["id"]: each for each in run["workloads"]}
    frame = found.table
    if layer is not None:
        frame = frame[frame["workload"].isin(_workloads(layer, frame, names))]
    if status is not None:
        frame = frame[frame["status"] == status]
    if csv or as_json or export is not None:
        shown = frame if best is None else best_trials(frame, best)
        _write(shown, export, as_json)
        return
    show_trials(frame, names, best, Terminal())
    state = "made by another tuner"
    if ours:
        ended = "the run is complete" if is_complete(folder) else "the run was stopped"
        state = f"{at_work} is adding to it" if at_work else ended
    workloads = counted(frame["workload"].nunique(), "workload")
    typer.echo(f"{counted(len(frame), 'trial')} of {workloads}; {state}")


def _workloads(layer: str, frame: pd.DataFrame, names: dict[str, WorkloadNames]) -> list[str]:
    """Return the IDs of the workloads that a layer's name, or an ID, means. Raises
    `TilewrightError` if there is none."""
    found = [
        workload
        for workload in frame["workload"].unique()
        if workload == layer or (workload in names and layer in names[workload]["names"])
    ]
    if not found:
        known = sorted({name for about in names.values() for name in about["names"]})
        step = f"its layers are {', '.join(known)}" if known else "see the IDs with --csv"
        raise TilewrightError(f"--layer {layer}: the run has no trial of it; {step}")
    return found


def _write(frame: pd.DataFrame, path: Path | None, as_json: bool) -> None:
    """Print the trials, or write them to a file in the format that its name says."""
    from tilewright.core.files import write_atomically
    from tilewright.tuning.outputs import parquet

    kind = path.suffix if path is not None else ".json" if as_json else ".csv"
    if kind == ".parquet":
        data = parquet(frame)
    elif kind == ".json":
        data = (frame.to_json(orient="records", indent=2, double_precision=15) + "\n").encode()
    else:
        data = frame.to_csv(index=False, lineterminator="\n").encode()
    if path is None:
        sys.stdout.write(data.decode())
    else:
        write_atomically(path, data)
