"""`tilewright tune`: the whole way from a network to tuned, verified schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from targets.errors import TilewrightError


def register(app: typer.Typer) -> None:
    app.command("tune")(tune)


def tune(
    model: Annotated[
        str, typer.Argument(help="An ONNX or torch.export file, or a name from 'tilewright zoo'.")
    ],
    target: Annotated[
        str, typer.Option(help="A preset, or a JSON file with the keys of vta_config.json.")
    ] = "vta-pynq",
    tuner: Annotated[str, typer.Option(help="The search strategy.")] = "default",
    trials: Annotated[int, typer.Option(help="Measurements a workload.")] = 128,
    seed: Annotated[int, typer.Option(help="Same seed, same schedules.")] = 0,
    space: Annotated[str, typer.Option(help="'extended', or the stock 'template'.")] = "extended",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.  [default: tuned/<model>]")
    ] = None,
    batch: Annotated[int, typer.Option(help="Measurements a round.")] = 16,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="An option of the tuner, NAME=VALUE.")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option("--input-shape", help="Fix an input's shape, NAME=1x3x224x224."),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; do not resume.")] = False,
) -> None:
    """Tune every workload of a network. Repeating the command resumes a run that was stopped."""
    from rich.console import Console

    from flows.options import parse_options
    from flows.run import run_tuning

    options = parse_options(
        model=model, target=target, tuner=tuner, trials=trials, seed=seed, space=space,
        out="" if out is None else str(out), batch=batch, fresh=fresh,
        tuner_options=dict(_pair(text, "--option") for text in option or []),
        input_shapes={name: _shape(text) for name, text in map(_shape_pair, shape or [])},
    )  # fmt: skip
    run_tuning(options, Console())


def _pair(text: str, flag: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not (name and mark and value):
        raise TilewrightError(f"{flag} {text}: write NAME=VALUE")
    return name, value


def _shape_pair(text: str) -> tuple[str, str]:
    name, _, sizes = text.rpartition("=")
    return _pair(f"{name}={sizes}", "--input-shape")


def _shape(sizes: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in sizes.split("x"))
    except ValueError:
        raise TilewrightError(f"--input-shape {sizes}: write sizes like 1x3x224x224") from None
