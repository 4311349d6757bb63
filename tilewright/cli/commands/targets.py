"""Implements `tilewright targets` and `target show`: the list of hardware, and details of one
target.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tilewright.cli.paths import target_text

commands = typer.Typer(help="Look at one piece of hardware.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.command("targets")(targets)
    app.add_typer(commands, name="target")


def targets() -> None:
    """List the hardware there is to tune for."""
    from tilewright.cli.views.targets import show_kinds
    from tilewright.cli.views.terminal import Terminal
    from tilewright.targets import target_kinds

    show_kinds(list(target_kinds().values()), Terminal())


@commands.command("show")
def show(
    target: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A preset, a file, or KIND:….", callback=target_text),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Every key of a target's specification with its unit and meaning, what follows, its area."""
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
