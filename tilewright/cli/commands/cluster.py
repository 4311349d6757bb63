"""The commands `tilewright cluster` and `board`: keys for a Dask cluster, and its boards."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NoReturn

import typer

from tilewright.cli.paths import target_text
from tilewright.core.errors import TilewrightError
from tilewright.core.working_folder import as_typed

cluster_commands = typer.Typer(help="Create keys for a Dask cluster.", no_args_is_help=True)


@cluster_commands.command("keys")
def keys(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder for the keys; it is created so that only you can read it.", metavar="DIR"
        ),
    ],
) -> None:
    """Create TLS certificates for a Dask cluster, and print Dask's settings for them.

    DIR gets a certificate authority and two certificates with their keys: one for the scheduler and
    the workers, and one for the machines on which you start commands.

    Whoever holds a key can run code on the workers.
    """
    from tilewright.targets.cluster.keys import AUTHORITY, CLIENT, NODE, dask_settings, make_keys

    try:
        make_keys(folder)
    except FileExistsError as error:
        raise TilewrightError(
            f"{error}; give the name of a folder that does not exist yet"
        ) from None
    typer.echo(dask_settings(folder))
    typer.echo(
        f"wrote {as_typed(str(folder))}. Copy {AUTHORITY} and {NODE} to the machines "
        f"of the scheduler and the workers, and {AUTHORITY} and {CLIENT} to the "
        "machines on which you start commands. Whoever holds a key can run code on "
        "the workers.",
        err=True,
    )


@cluster_commands.command(
    "serve",
    hidden=True,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def refuse_serve() -> NoReturn:
    """Refuse the command `cluster serve` of earlier versions, and name its replacement."""
    raise TilewrightError(
        "'tilewright cluster serve' was removed, because Tilewright now uses Dask "
        "clusters: start 'dask scheduler --protocol tls' once and 'dask worker "
        "tls://HOST:8786' on each machine, with the settings that 'tilewright "
        "cluster keys DIR' prints (docs/guides/cluster.md)"
    )


Bitstream = Annotated[
    str,
    typer.Option(
        help="The VTA that the board's bitstream implements: a preset, or a vta_config.json file.",
        callback=target_text,
    ),
]

SchedulerAddress = Annotated[
    str, typer.Option(help="Address of the Dask scheduler.", metavar="tls://HOST:PORT")
]

board_commands = typer.Typer(help="Share VTA boards with other machines.", no_args_is_help=True)


@board_commands.command("serve")
def serve(
    name: Annotated[str, typer.Argument(help="Name of the board, for 'tune --target board:NAME'.")],
    driver: Annotated[
        str,
        typer.Option(
            help="Absolute paths of the object files, archives and shared objects that define the "
            "functions of the stock VTA driver."
        ),
    ],
    reset: Annotated[
        str,
        typer.Option(
            help="Command that programs the FPGA. It runs at the start, and after each "
            "program that hangs or computes wrong bytes.",
            metavar="COMMAND",
        ),
    ],
    target: Bitstream = "vta-pynq",
    repeats: Annotated[
        int, typer.Option(help="Number of times that each program is run.", min=1, max=1000)
    ] = 3,
    seconds: Annotated[
        float,
        typer.Option(help="Time limit in seconds for all runs of a program.", min=0.1, max=3600),
    ] = 10.0,
    patience: Annotated[
        int,
        typer.Option(
            help="Number of times the driver polls the device before it gives up.",
            min=1,
            max=2**32 - 1,
        ),
    ] = 1 << 31,
    cflags: Annotated[
        str, typer.Option(help="Extra flags for the C compiler, such as -DUSE_VTA64.")
    ] = "",
    cluster: SchedulerAddress = "",
    host: Annotated[
        str, typer.Option(help="Address that the worker listens on.", metavar="ADDRESS")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            help="Port that the worker listens on; 0 selects a free port.", min=0, max=65535
        ),
    ] = 0,
) -> None:
    """Share a board as a worker of a Dask cluster.

    The command builds the C runtime for the board's driver. The worker offers the Dask resources
    'board' and 'board:NAME', and only runs programs on the board.
    """
    from tilewright.targets.board.board_runner import BenchOptions, BoardBench, machine_named
    from tilewright.targets.board.board_worker import serve_board
    from tilewright.targets.board.factory import check_name
    from tilewright.targets.cluster.connection import check_scheduler_address, dask_security

    check_name(name)
    if not cluster:
        raise TilewrightError(
            f"board serve {name} needs the address of a Dask scheduler, because "
            "commands no longer connect to boards directly; add --cluster "
            "tls://HOST:PORT"
        )
    check_scheduler_address(cluster)
    dask_security("worker")  # report a mistake before the build, which takes minutes
    spec = machine_named(target)
    options = BenchOptions(spec, driver, reset, repeats, seconds, patience, cflags)
    with (
        TemporaryDirectory(prefix="tilewright-board-") as folder,
        closing(BoardBench(options, Path(folder))) as bench,
    ):
        serve_board(
            name, bench, cluster, host, port,
            lambda address: typer.echo(
                f"board:{name} ({spec.name}) is served at {address}; stop with Ctrl-C"
            ),
        )  # fmt: skip


@board_commands.command("runtime")
def runtime(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write the sources to.")],
    target: Bitstream = "vta-pynq",
    artifact: Annotated[
        Path | None,
        typer.Option(
            "--for",
            metavar="ART",
            help="Check that ART was built for these sources, and print a note if not.",
        ),
    ] = None,
) -> None:
    """Write the C sources that run artifacts on a board.

    The sources are specific to the VTA that the board's bitstream implements. They refuse artifacts
    that were built for a different VTA. An artifact does not contain these sources; it records the
    digest of the sources that it was built for.
    """
    from tilewright.networks.artifact.manifest import read_manifest
    from tilewright.targets.board.board_runner import machine_named, write_runtime

    named = None if artifact is None else read_manifest(artifact).get("runtime_sha256", "")
    spec = machine_named(target)
    written = write_runtime(out, spec)
    typer.echo(
        f"wrote the sources for {spec.name} to {as_typed(str(out))}; their digest is {written}"
    )
    if named is not None and named != written:
        typer.echo(
            f"note: {as_typed(str(artifact))} was built for a different version of "
            "these sources; if they refuse its format, build the artifact again",
            err=True,
        )


@board_commands.command("list")
def list_boards(
    cluster: SchedulerAddress,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the boards of a cluster, with counters of the programs that they ran."""
    from tilewright.cli.views.targets import boards_text
    from tilewright.targets.board.board_worker import list_boards

    typer.echo(boards_text(list_boards(cluster), as_json), nl=False)
