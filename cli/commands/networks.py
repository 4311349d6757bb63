"""`tilewright zoo`, `targets` and `inspect`: what there is to tune, before any tuning."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cli.arguments import InputShape, MaxWaste, Model, Target, read_input_shapes
from tuning.options import DEFAULTS


def register(app: typer.Typer) -> None:
    app.command("inspect")(inspect)
    app.command("zoo")(zoo)
    app.command("targets")(targets)


def inspect(
    model: Model,
    target: Target = DEFAULTS.target,
    shape: InputShape = None,
    max_waste: MaxWaste = DEFAULTS.max_waste,
    brief: Annotated[
        bool, typer.Option("--brief", help="Leave out operators that only follow another.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what becomes of every operator: offloaded, left to the CPU, or unsupported."""
    from networks import load
    from targets import make_target
    from targets.capabilities import blocks_of
    from tuning.checks import check_source

    hardware = make_target(target)
    check_source(model)
    network = load(model, read_input_shapes(shape) or None, sandbox=True)
    block = blocks_of(hardware)
    report = network.report(block.in_channels, block.out_channels, block.batch, max_waste=max_waste)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
        return
    from rich.console import Console

    from cli.views.operators import show_report

    show_report(report, hardware.name, Console(), brief=brief)


def zoo(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List the built-in networks."""
    from networks import zoo_names

    names = list(zoo_names())
    typer.echo(json.dumps(names) if as_json else "\n".join(names))


def targets() -> None:
    """List the hardware there is to tune for."""
    from targets import target_kinds

    for kind in target_kinds().values():
        typer.echo(f"{kind.name}: {kind.summary}")
        for preset in kind.presets():
            typer.echo(f"    {preset:14} {kind.describe(preset)}".rstrip())
