"""Implements `tilewright enumerate`: every schedule of a space, lowered and timed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.options import Space, Target, say_remarks
from tilewright.core.errors import TilewrightError
from tilewright.tuning.options import DEFAULTS


def register(app: typer.Typer) -> None:
    app.command("enumerate", short_help="Time the whole schedule space of a workload.")(
        enumerate_space
    )


def enumerate_space(
    workload: Annotated[
        str,
        typer.Option(help="Such as conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1"),
    ],
    out: Annotated[Path, typer.Option(help="Table to write: .csv, .csv.gz or .parquet.")],
    target: Target = DEFAULTS.target,
    space: Space = DEFAULTS.space,
    epilogue: Annotated[
        str, typer.Option(help="Steps on the sums: '>> N', 'min N', 'max N', relu, bias, add.")
    ] = ">> 8, min 127, max 0",
    stock: Annotated[
        bool, typer.Option("--stock", help="With the stock compiler's restrictions (template).")
    ] = False,
) -> None:
    """Lower and time the whole schedule space of a workload into a table."""
    from tilewright.cli.views.enumeration import enumerating, show_enumerated
    from tilewright.cli.views.terminal import Terminal
    from tilewright.evaluation.enumeration import check_table_name, enumerate_space, write_table
    from tilewright.targets import make_target
    from tilewright.targets.workload import parse_workload
    from tilewright.tuning.output_dir import check_folder

    check_table_name(out)
    if stock and space != "template":
        raise TilewrightError("--stock restricts the template; add --space template")
    what = parse_workload(workload, epilogue)
    hardware = make_target(target, "stock" if stock else space)
    say_remarks(target)
    check_folder(out.parent)
    size = hardware.space(what).size
    with enumerating(f"{what} on {hardware.name}", size, Terminal(stderr=True)) as progress:
        enumerated = enumerate_space(hardware, what, progress)
    write_table(out, enumerated.table)
    show_enumerated(enumerated, out, Terminal())
