"""The command-line application: its commands, and the messages and exit codes of errors."""

from __future__ import annotations

import json
import logging
import os
import platform
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from tilewright.cli.commands import (
    artifact,
    cluster,
    codesign,
    compare,
    finished_runs,
    models,
    networks,
    runs,
    targets,
    tune,
    vta,
    workspace,
)
from tilewright.cli.help import GroupedCommand, GroupedCommands
from tilewright.cli.paths import count_paths_from_start
from tilewright.cli.signals import INTERRUPTED, sentence, stopped_status, was_stopped
from tilewright.cli.stdio import check_words, prepare_streams
from tilewright.core.errors import TilewrightError
from tilewright.core.formats import FORMATS
from tilewright.core.user_text import printable
from tilewright.core.working_folder import as_typed, leave_working_folder

USAGE_ERROR = 2  # Click's exit status for invalid arguments
LINE_END = "\n"
NO_MEMORY = "the process ran out of memory; end other programs, or raise the limit (ulimit -v)"
LEAST_MEMORY = 1 << 30
"""Minimum address space in bytes. With less, libraries fail to load with unclear errors, or
hang."""

app = typer.Typer(
    name="tilewright",
    help="Find the fastest tile schedules of a neural network on a tensor accelerator.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=GroupedCommands,
)


def _print_version(context: typer.Context, wanted: bool) -> None:
    if not wanted:
        return
    if context.params.get("as_json"):
        about = {
            "tilewright": version("tilewright"), "python": platform.python_version(),
            "formats": {name: format_.to_json() for name, format_ in FORMATS.items()},
        }  # fmt: skip
        typer.echo(json.dumps(about, indent=2))
    else:
        typer.echo(f"tilewright {version('tilewright')}")
    raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, help="Show the version and exit.")
    ] = False,
    # Eager, so that the callback of --version sees its value.
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            is_eager=True,
            help="With --version: print JSON that includes the versions of all file formats.",
        ),
    ] = False,
) -> None:
    if as_json:
        raise typer.BadParameter(
            "--json in front of a command only works with --version; write it after the command"
        )


# Commands by group, in the order of the help text. A summary replaces the docstring's first line.
_COMMANDS: dict[str, tuple[tuple[str, Callable[..., object], str | None], ...]] = {
    "First steps": (
        ("tune", tune.tune, None),
        ("build", artifact.build, "Build an artifact from a network."),
        ("run", artifact.run, "Run an artifact, simulated or on this machine."),
        ("ui", workspace.ui, None),
    ),
    "What is available": (
        ("zoo", networks.zoo, None),
        ("targets", targets.targets, None),
        ("tuners", tune.tuners, None),
        ("inspect", networks.inspect, "Show where each operator of a network would run."),
    ),
    "Results": (
        ("explain", finished_runs.explain, "Show what a run's models learned, and their errors."),
        ("diff", finished_runs.diff, "Check that a run is no worse than another run."),
        ("trials", finished_runs.trials, "Print, filter and export the trials of a run."),
        ("export", finished_runs.export, "Export a run's schedules or trials for other tools."),
        ("verify", artifact.verify, "Compare an artifact with the source model and a reference."),
        ("benchmark", artifact.benchmark, "Compare the latency on this CPU with other engines."),
    ),
    "Comparisons and searches": (
        ("compare", compare.compare, "Compare several tuners."),
        ("codesign", codesign.codesign, None),
        ("enumerate", targets.enumerate_space, "Measure every schedule of a workload."),
    ),
    "Workspace": (
        ("serve", workspace.serve, "Tune by a cron expression or at a fixed interval."),
        ("clean", workspace.clean, "Remove unused cached results and old Prefect records."),
    ),
}
for _group, _commands in _COMMANDS.items():
    for _name, _command, _summary in _commands:
        app.command(_name, short_help=_summary, rich_help_panel=_group, cls=GroupedCommand)(
            _command
        )
app.command("sweep", hidden=True)(compare.sweep)
app.command("warm-up", hidden=True)(workspace.warm_up)
for _name, _subcommands in (
    ("runs", runs.run_commands),
    ("target", targets.target_commands),
    ("vta", vta.commands),
    ("dataset", models.dataset_commands),
    ("model", models.model_commands),
    ("cluster", cluster.cluster_commands),
    ("board", cluster.board_commands),
    ("cpu", artifact.cpu_commands),
):
    app.add_typer(_subcommands, name=_name, rich_help_panel="Command groups")
count_paths_from_start(app)


def end_output() -> None:
    """Flush both output streams, and discard everything that is printed to standard output later.

    The reader of a pipe may leave at any time. Output that could not be written then stays in a
    buffer, and threads and exit handlers may still print. Without this function, the interpreter
    would report the failed write as `Exception ignored` and change the exit status.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
        except ValueError:
            continue  # the stream is closed
        except OSError:
            os.dup2(nowhere, descriptor)
    # Also without an error: Typer wraps a broken stream, and the wrapper's `flush` hides the error.
    os.dup2(nowhere, 1)
    os.close(nowhere)


def main() -> None:
    """Run a command and exit.

    The exit code is 2 for an error of the user and for external causes such as a full disk or a
    locked database, 130 after Ctrl-C, and 143 after SIGTERM.
    """
    logging.raiseExceptions = False  # the cause is reported by the command itself
    prepare_streams()
    leave_working_folder()
    try:
        check_words(sys.argv[1:])
        if _is_memory_limited() and not {"--help", "--version"} & set(sys.argv):
            raise MemoryError  # OpenBLAS, for example, would wait forever for memory
        _call()
    except KeyboardInterrupt:
        _fail(sentence(), stopped_status())
    except Exception as error:
        if was_stopped():
            _fail(sentence(), stopped_status())
        _explain(error)


def _explain(error: Exception) -> NoReturn:
    """End the command with a message about an error. Raise the error again if it is our defect.

    The exit status is 2, or 1 without a message if the reader of a pipe has left.
    """
    if isinstance(error, BrokenPipeError):
        sys.exit(1)
    known = isinstance(error, TilewrightError)
    if isinstance(error, MemoryError) or (_is_memory_limited() and not known):
        sys.stderr.write(f"error: {NO_MEMORY}\n")  # without further imports, which need memory
        sys.exit(USAGE_ERROR)
    from tilewright.cli.error_messages import explain_error

    message = explain_error(error)
    if message is None and not known:
        raise error
    _fail(message or str(error), USAGE_ERROR)


def _is_memory_limited() -> bool:
    """Return whether the memory limit of the shell is too low to load the libraries."""
    return any(0 <= limit < LEAST_MEMORY for limit in resource.getrlimit(resource.RLIMIT_AS))


def _call() -> None:
    """Run a command. Raise `KeyboardInterrupt` if a signal stopped it.

    Typer turns a `KeyboardInterrupt` into an exit status; this function turns it back.
    """
    try:
        app()
    except SystemExit as end:
        if end.code == INTERRUPTED or (was_stopped() and end.code):
            raise KeyboardInterrupt from None
        sys.stdout.flush()  # if the disk is full, the error gets a message here
        raise


def _fail(message: str, code: int) -> NoReturn:
    with suppress(OSError):  # the exit status also reports the error
        typer.echo(f"error: {printable(as_typed(message), keep=LINE_END)}", err=True)
    sys.exit(code)
