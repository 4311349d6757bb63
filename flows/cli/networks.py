"""`tilewright zoo` and `tilewright inspect`: what there is to tune, before any tuning."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("zoo")(zoo)


def zoo(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List the built-in networks."""
    from networks.zoo import names

    typer.echo(json.dumps(list(names())) if as_json else "\n".join(names()))
