"""The commands `tilewright targets`, `target show` and `enumerate`: hardware and its schedules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.options import Space, Target, say_remarks
from tilewright.cli.paths import target_text
from tilewright.core.errors import TilewrightError
from tilewright.tuning.options import DEFAULTS

target_commands = typer.Typer(help="Show the details of one target.", no_args_is_help=True)


def targets() -> None:
    """List the hardware that Tilewright can tune for."""
    from tilewright.cli.views.targets import show_kinds
    from tilewright.cli.views.terminal import Terminal
    from tilewright.targets import target_kinds

    show_kinds(list(target_kinds().values()), Terminal())


@target_commands.command("show")
def show(
    target: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The target: a preset, a specification file, or KIND:…",
            callback=target_text,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a target's specification, and figures that are derived from it.

    Each key of the specification is shown with its unit and meaning. The derived figures include
    the chip area, if it can be estimated.
    """
    from tilewright.targets.registry import kind_of

    kind, rest = kind_of(target)
    kind.check(rest)
    properties = kind.properties(rest)
    if as_json:
        from tilewright.cli.views.targets import as_document

        typer.echo(json.dumps(as_document(target, kind, properties), indent=2, ensure_ascii=False))
        return
    from tilewright.cli.views.targets import show_properties
    from tilewright.cli.views.terminal import Terminal

    show_properties(target, kind, properties, Terminal())


def enumerate_space(
    workload: Annotated[
        str,
        typer.Option(help="A workload, such as conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1"),
    ],
    out: Annotated[Path, typer.Option(help="Table to write: a .csv, .csv.gz or .parquet file.")],
    target: Target = DEFAULTS.target,
    space: Space = DEFAULTS.space,
    epilogue: Annotated[
        str,
        typer.Option(
            help="Operations on the accumulator: '>> N', 'min N', 'max N', relu, bias, add."
        ),
    ] = ">> 8, min 127, max 0",
    stock: Annotated[
        bool,
        typer.Option(
            "--stock",
            help="Keep only schedules that the stock TVM compiler can build (space 'template').",
        ),
    ] = False,
) -> None:
    """Compile and measure every schedule of a workload, and write the results as a table."""
    from tilewright.cli.views.targets import enumerating, show_enumerated
    from tilewright.cli.views.terminal import Terminal
    from tilewright.evaluation.enumeration import check_table_name, enumerate_space, write_table
    from tilewright.targets import make_target
    from tilewright.targets.workload import parse_workload
    from tilewright.tuning.output_dir import check_folder

    check_table_name(out)
    if stock and space != "template":
        raise TilewrightError("--stock only works with the space 'template'; add --space template")
    what = parse_workload(workload, epilogue)
    hardware = make_target(target, "stock" if stock else space)
    say_remarks(target)
    check_folder(out.parent)
    size = hardware.space(what).size
    with enumerating(f"{what} on {hardware.name}", size, Terminal(stderr=True)) as progress:
        enumerated = enumerate_space(hardware, what, progress)
    write_table(out, enumerated.table)
    show_enumerated(enumerated, out, Terminal())
