"""`tilewright export`: tuned schedules for other tools."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from tilewright.core.errors import UnknownName
from tilewright.core.sanitize import printable
from tilewright.core.working_folder import as_typed


def register(app: typer.Typer) -> None:
    app.command("export", short_help="Write tuned schedules as a log that stock TVM reads.")(export)


def export(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="The --out folder of 'tilewright tune'.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    form: Annotated[
        str,
        typer.Option(
            "--format", help="autotvm: records as TVM 0.8 to 0.14 logs them, a line each."
        ),
    ] = "autotvm",
) -> None:
    """Write the schedules of a run that was tuned with --space template as stock AutoTVM records;
    those of another space are left out, with a sentence."""
    from tilewright.core.files import write_atomically
    from tilewright.reports.number_format import plural
    from tilewright.tuning.export import FORMATS, export_autotvm
    from tilewright.tuning.output_dir import check_folder

    if form not in FORMATS:
        raise UnknownName("format", form, list(FORMATS))
    exported = export_autotvm(folder, time.time())
    check_folder(out.parent)
    write_atomically(out, exported.text.encode())
    for sentence in exported.left_out:
        typer.echo(f"left out: {printable(sentence)}", err=True)
    count = exported.schedules
    typer.echo(
        f"{as_typed(str(out))}: {count} {plural(count, 'record')} for autotvm.apply_history_best"
    )
