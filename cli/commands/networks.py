"""`tilewright zoo` and `inspect`: what there is to tune, before any tuning."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cli.arguments import InputShape, MaxWaste, Model, Target, read_input_shapes, say_remarks
from tuning.options import DEFAULTS


def register(app: typer.Typer) -> None:
    app.command("inspect", short_help="Show what becomes of every operator of a network.")(inspect)
    app.command("zoo")(zoo)


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

    check_source(model)
    hardware = make_target(target)
    say_remarks(target)
    network = load(model, read_input_shapes(shape) or None, sandbox=True)
    block = blocks_of(hardware)
    report = network.report(block.in_channels, block.out_channels, block.batch, max_waste=max_waste)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
        return
    from cli.views.operators import show_report
    from cli.views.terminal import Terminal

    show_report(report, hardware.name, Terminal(), brief=brief)


def zoo(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of names.")] = False,
) -> None:
    """List the built-in networks."""
    from networks import zoo_names

    if as_json:
        typer.echo(json.dumps(list(zoo_names())))
        return
    from cli.views.networks import show_zoo
    from cli.views.terminal import Terminal
    from networks.zoo.facts import facts

    show_zoo([facts(name) for name in zoo_names()], Terminal())
