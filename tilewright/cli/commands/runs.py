"""The commands `tilewright runs list`, `show` and `delete`: the runs that the start page shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.core.errors import TilewrightError
from tilewright.core.user_text import printable
from tilewright.core.working_folder import from_start, started_in

if TYPE_CHECKING:
    from tilewright.dashboard.listing import KnownRuns, ListedRun

run_commands = typer.Typer(help="List, show and delete runs.", no_args_is_help=True)


@run_commands.command("list")
def list_runs(
    last: Annotated[
        int, typer.Option(metavar="N", help="Show only the latest N runs.", min=1)
    ] = 20,
) -> None:
    """List the runs of this workspace and of the folders below this one, latest first.

    The start page of 'tilewright ui' shows the same runs.
    """
    from tilewright.cli.views.runs import show_runs
    from tilewright.cli.views.terminal import Terminal

    with _known_runs() as known:
        found = known.runs()
    show_runs(found[:last], len(found), Terminal())


@run_commands.command("show")
def show(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The ID of a run, or its output directory.")
    ],
) -> None:
    """Show the latencies of a run, its convergence curve, and the command that repeats it.

    If an output directory contains several runs, the latest one is shown.
    """
    from tilewright.cli.views.runs import show_run
    from tilewright.cli.views.terminal import Terminal

    with _known_runs() as known:
        found = _named(known, run)[0]
        try:
            trials = known.trials(found)
        except TilewrightError as error:
            trials = None
            typer.echo(f"note: {printable(str(error))}", err=True)
    show_run(found, trials, Terminal())


@run_commands.command("delete")
def delete(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="The ID of a run, as 'tilewright runs list' prints it, or an output directory, "
            "all of whose runs are deleted.",
        ),
    ],
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Delete the runs instead of showing what would be deleted."),
    ] = False,
) -> None:
    """Delete runs, or show what would be deleted.

    With --yes, the command deletes the records in MLflow and Prefect, and the results and trials in
    the output directory. Trials that other runs use are kept, and so are files in output
    directories outside of this folder. The command stops with an error at a run in progress, or if
    nothing of a run may be deleted; it does not handle the runs after that one.
    """
    from tilewright.dashboard.deletion import delete_run, plan_deletion

    with _known_runs() as known:
        found = [run for text in runs for run in _named(known, text)]
        for run in {run.id: run for run in found}.values():
            deletion = (delete_run if yes else plan_deletion)(known, run.id)
            row = run.row
            about = f"{row['network']} on {row['target']}, {row['tuner']}, seed {row['seed']}"
            typer.echo(printable(f"{run.id}  {about}: {' '.join(deletion.sentences)}"))
    if not yes:
        typer.echo("nothing is deleted yet; repeat with --yes")


@contextmanager
def _known_runs() -> Iterator[KnownRuns]:
    """Yield the runs of the workspace. Start a Prefect server for that time if none is running."""
    from tilewright.services.start_servers import embedded

    with embedded(prune=False) as workspace:
        from tilewright.dashboard.flow_runs import FlowRuns
        from tilewright.dashboard.listing import KnownRuns

        yield KnownRuns(workspace, started_in(), FlowRuns.from_environment())


def _named(known: KnownRuns, text: str) -> list[ListedRun]:
    """Return the run with an ID, or all runs in an output directory.

    Args:
        known: the runs of the workspace.
        text: ID of a run, or path of an output directory.

    Raises:
        TilewrightError: no run matches.
    """
    place = from_start(Path(text)).absolute()
    found = [run for run in known.runs() if run.id == text or run.folder == place]
    if not found:
        raise TilewrightError(
            f"there is no run {printable(text)} in this workspace or below this folder; "
            "'tilewright runs list' prints the IDs of all runs"
        )
    return found
