"""The commands `tilewright cluster` and `board`: keys of a Dask cluster, and its boards."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NoReturn

import typer

from tilewright.cli.paths import target_text
from tilewright.core.errors import TilewrightError
from tilewright.core.working_folder import as_typed

cluster_commands = typer.Typer(help="Make keys for a Dask cluster.", no_args_is_help=True)


@cluster_commands.command("keys")
def keys(
    folder: Annotated[Path, typer.Argument(help="Made, for you alone.", metavar="DIR")],
) -> None:
    """Write a CA and two certificates, and print Dask's settings for them.

    Whoever holds a key can run code on the workers.
    """
    from tilewright.targets.cluster.keys import AUTHORITY, CLIENT, NODE, dask_settings, make_keys

    try:
        make_keys(folder)
    except FileExistsError as error:
        raise TilewrightError(f"{error}; name a new folder") from None
    typer.echo(dask_settings(folder))
    typer.echo(
        f"{as_typed(str(folder))}: copy {AUTHORITY} and {NODE} to the machines of the scheduler "
        f"and the workers, {AUTHORITY} and {CLIENT} to machines with commands; whoever holds a key "
        "can run code on the workers",
        err=True,
    )


@cluster_commands.command(
    "serve",
    hidden=True,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def refuse_serve() -> NoReturn:
    """Refuse the command of earlier versions, and name its replacement."""
    raise TilewrightError(
        "'tilewright cluster serve' is gone, because clusters are Dask's: start 'dask scheduler "
        "--protocol tls' once and 'dask worker tls://HOST:8786' on each machine, with the settings "
        "that 'tilewright cluster keys DIR' prints (docs/guides/cluster.md)"
    )


Bitstream = Annotated[
    str,
    typer.Option(
        help="The machine of the bitstream: a preset, or a vta_config.json.", callback=target_text
    ),
]

SchedulerAddress = Annotated[
    str, typer.Option(help="The scheduler of a Dask cluster.", metavar="tls://HOST:PORT")
]

board_commands = typer.Typer(help="Offer VTA boards to other machines.", no_args_is_help=True)


@board_commands.command("serve")
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
    target: Bitstream = "vta-pynq",
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
    cluster: SchedulerAddress = "",
    host: Annotated[
        str, typer.Option(help="Where the worker listens.", metavar="ADDRESS")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Where the worker listens; 0 for any free port.", min=0, max=65535)
    ] = 0,
) -> None:
    """Build the C runtime for this board's driver, and be a worker of a Dask cluster beside it.

    The worker has the resources 'board' and 'board:NAME'. It runs programs on the board and nothing
    else.
    """
    from tilewright.targets.board.board_runner import BenchOptions, BoardBench, machine_named
    from tilewright.targets.board.board_worker import serve_board
    from tilewright.targets.board.factory import check_name
    from tilewright.targets.cluster.connection import check_scheduler_address, dask_security

    check_name(name)
    if not cluster:
        raise TilewrightError(
            f"board serve {name}: say for which cluster, --cluster tls://HOST:PORT of a Dask "
            "scheduler (commands no longer connect to boards themselves)"
        )
    check_scheduler_address(cluster)
    dask_security("worker")  # a mistake costs no minutes
    spec = machine_named(target)
    options = BenchOptions(spec, driver, reset, repeats, seconds, patience, cflags)
    with (
        TemporaryDirectory(prefix="tilewright-board-") as folder,
        closing(BoardBench(options, Path(folder))) as bench,
    ):
        serve_board(
            name, bench, cluster, host, port,
            lambda address: typer.echo(f"board:{name} ({spec.name}) at {address}; Ctrl-C ends it"),
        )  # fmt: skip


@board_commands.command("runtime")
def runtime(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the sources.")],
    target: Bitstream = "vta-pynq",
    artifact: Annotated[
        Path | None,
        typer.Option("--for", metavar="ART", help="Say whether ART was built beside the same."),
    ] = None,
) -> None:
    """Write the C sources that run artifacts on a board.

    They are for the machine of its bitstream and refuse an artifact for another machine. An
    artifact holds no sources; it names the digest of the sources that it was built beside.
    """
    from tilewright.networks.artifact.manifest import read_manifest
    from tilewright.targets.board.board_runner import machine_named, write_runtime

    named = None if artifact is None else read_manifest(artifact).get("runtime_sha256", "")
    spec = machine_named(target)
    written = write_runtime(out, spec)
    typer.echo(f"{as_typed(str(out))}: sources for {spec.name}, with the digest {written}")
    if named is not None and named != written:
        typer.echo(
            f"note: {as_typed(str(artifact))} was built beside other sources; if these refuse its "
            "format, build it again",
            err=True,
        )


@board_commands.command("list")
def list_boards(
    cluster: SchedulerAddress,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the boards of a cluster, with the counts of the programs they ran."""
    from tilewright.cli.views.targets import boards_text
    from tilewright.targets.board.board_worker import list_boards

    typer.echo(boards_text(list_boards(cluster), as_json), nl=False)
