"""`tilewright tune`: the whole way from a network to tuned, verified schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from targets.errors import TilewrightError

Model = Annotated[
    str, typer.Argument(help="An ONNX or torch.export file, or a name from 'tilewright zoo'.")
]
Target = Annotated[
    str, typer.Option(help="A preset, or a JSON file with the keys of vta_config.json.")
]
Tuner = Annotated[str, typer.Option(help="The search strategy; 'tilewright tuners' lists them.")]
Trials = Annotated[int, typer.Option(help="Measurements a workload.")]
Seed = Annotated[int, typer.Option(help="Same seed, same schedules.")]
Space = Annotated[str, typer.Option(help="'extended', the stock 'template', or 'unchecked'.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results.  [default: tuned/<model>]")]
Batch = Annotated[int, typer.Option(help="Measurements a round.")]
InputShape = Annotated[
    list[str] | None,
    typer.Option("--input-shape", help="Fix an input's shape, NAME=1x3x224x224."),
]

MaxWaste = Annotated[
    float,
    typer.Option(help="Pad a layer to whole blocks if at most this share of it is padding."),
]

MODEL, TARGET, TUNER, SPACE = "resnet18", "vta-pynq", "default", "extended"
TRIALS, SEED, BATCH, MAX_WASTE = 64, 0, 16, 0.5


def register(app: typer.Typer) -> None:
    app.command("tune")(tune)
    app.command("tuners")(tuners)


def tune(
    model: Model,
    target: Target = TARGET,
    tuner: Tuner = TUNER,
    trials: Trials = TRIALS,
    seed: Seed = SEED,
    space: Space = SPACE,
    out: Out = None,
    batch: Batch = BATCH,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="An option of the tuner, NAME=VALUE.")
    ] = None,
    shape: InputShape = None,
    max_waste: MaxWaste = MAX_WASTE,
    warm_start: Annotated[
        str,
        typer.Option(help="'champion': start from the best models of 'tilewright compare'."),
    ] = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; do not resume.")] = False,
    isolate: Annotated[
        float,
        typer.Option(help="Compile and simulate in a process of its own, SECONDS a batch.", min=0),
    ] = 0.0,
) -> None:
    """Tune every workload of a network. Repeating the command resumes a run that was stopped."""
    from rich.console import Console

    from cli.tuning import run_tuning
    from tuning.options import parse_options

    options = parse_options(
        model=model, target=target, tuner=tuner, trials=trials, seed=seed, space=space,
        out="" if out is None else str(out), batch=batch, fresh=fresh,
        tuner_options=dict(_pair(text, "--option") for text in option or []),
        input_shapes=read_input_shapes(shape), max_waste=max_waste,
        warm_start=warm_start,
    )  # fmt: skip
    run_tuning(options, Console(), isolate)


def tuners() -> None:
    """List the search strategies and their options."""
    from search import tuners as registered

    for name, entry in registered().items():
        needs = f" (needs {entry.missing})" if entry.missing else ""
        typer.echo(f"{name:14} {entry.summary}{needs}")
        for option, field in entry.options.model_fields.items():
            default = entry.preset.get(option, field.default)
            typer.echo(f"    {option}={default}: {field.description or ''}")


def read_input_shapes(texts: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Values of `--input-shape`. Raises `TilewrightError`."""
    shapes = {}
    for text in texts or []:
        name, sizes = _pair(text, "--input-shape")
        try:
            shapes[name] = tuple(int(size) for size in sizes.split("x"))
        except ValueError:
            raise TilewrightError(f"--input-shape {text}: write NAME=1x3x224x224") from None
    return shapes


def _pair(text: str, flag: str) -> tuple[str, str]:
    name, _, value = text.rpartition("=")
    if not (name and value):
        raise TilewrightError(f"{flag} {text}: write NAME=VALUE")
    return name, value
