"""`tilewright board`: offer the board beside this machine to others, and see those offered."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from tilewright.cli.commands.cluster import DEFAULT_PORT, LOOPBACK, Host, Port
from tilewright.cli.paths import target_text
from tilewright.cli.views.boards import boards_text

commands = typer.Typer(help="Offer VTA boards to other machines.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="board")


@commands.command("serve")
def serve(
    name: Annotated[str, typer.Argument(help="What 'tune --target board:NAME' calls it.")],
    driver: Annotated[
        str,
        typer.Option(
            help="Object files, archives and shared objects that define the stock VTA driver's "
            "functions; absolute paths."
        ),
    ],
    reset: Annotated[
        str,
        typer.Option(
            help="The command that programs the FPGA; run at first, and after each program that "
            "does not end or computes wrong bytes.",
            metavar="COMMAND",
        ),
    ],
    target: Annotated[
        str,
        typer.Option(
            help="The machine of the bitstream: a preset, or a vta_config.json.",
            callback=target_text,
        ),
    ] = "vta-pynq",
    repeats: Annotated[int, typer.Option(help="Runs of each program.", min=1, max=1000)] = 3,
    seconds: Annotated[
        float, typer.Option(help="For a program with all its runs.", min=0.1, max=3600)
    ] = 10.0,
    patience: Annotated[
        int,
        typer.Option(
            help="How often the driver looks whether the device has finished.", min=1, max=2**32 - 1
        ),
    ] = 1 << 31,
    cflags: Annotated[str, typer.Option(help="Of the C compiler: -DUSE_VTA64, say.")] = "",
    host: Host = LOOPBACK,
    port: Port = DEFAULT_PORT,
) -> None:
    """Build the C runtime for this board's driver, and measure for commands with the same keys."""
    from tilewright.targets.board.board_runner import BenchOptions, BoardBench, machine_named
    from tilewright.targets.board.board_worker import BoardService
    from tilewright.targets.board.factory import check_name
    from tilewright.targets.cluster.keys import worker_keys
    from tilewright.targets.cluster.serve import serve as answer_calls

    check_name(name)
    worker_keys(host)  # a mistake costs no minutes
    spec = machine_named(target)
    options = BenchOptions(spec, driver, reset, repeats, seconds, patience, cflags)
    with (
        TemporaryDirectory(prefix="tilewright-board-") as folder,
        closing(BoardBench(options, Path(folder))) as bench,
    ):
        answer_calls(
            BoardService(name, bench), host, port,
            lambda address: typer.echo(f"board:{name} ({spec.name}) at {address}; Ctrl-C ends it"),
        )  # fmt: skip


@commands.command("list")
def list_boards(
    cluster: Annotated[str, typer.Option(help="Where boards are offered.", metavar="HOST:PORT,…")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The boards that are offered, and what became of the programs they ran."""
    from tilewright.targets.board.board_worker import boards

    typer.echo(boards_text(boards(cluster), as_json), nl=False)
