"""`tilewright tune`: the whole way from a network to tuned, verified schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from targets.errors import TilewrightError
from tuning.options import DEFAULTS

Model = Annotated[
    str, typer.Argument(help="An ONNX or torch.export file, or a name from 'tilewright zoo'.")
]
Target = Annotated[
    str, typer.Option(help="A preset, a file, or KIND:…; 'tilewright targets' lists them.")
]
Tuner = Annotated[str, typer.Option(help="The search strategy; 'tilewright tuners' lists them.")]
Trials = Annotated[int, typer.Option(help="Measurements a workload.")]
Seed = Annotated[int, typer.Option(help="Same seed, same schedules.")]
Space = Annotated[str, typer.Option(help="The target's schedule space.  [default: its usual one]")]
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


def register(app: typer.Typer) -> None:
    app.command("tune")(tune)
    app.command("tuners")(tuners)


def tune(
    model: Model = DEFAULTS.model,
    target: Target = DEFAULTS.target,
    tuner: Tuner = DEFAULTS.tuner,
    trials: Trials = DEFAULTS.trials,
    seed: Seed = DEFAULTS.seed,
    space: Space = DEFAULTS.space,
    out: Out = None,
    batch: Batch = DEFAULTS.batch,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="An option of the tuner, NAME=VALUE.")
    ] = None,
    shape: InputShape = None,
    max_waste: MaxWaste = DEFAULTS.max_waste,
    warm_start: Annotated[
        str,
        typer.Option(help="'champion': start from the best models of 'tilewright compare'."),
    ] = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; do not resume.")] = False,
    isolate: Annotated[
        float,
        typer.Option(help="Compile and measure in a process of its own, SECONDS a batch.", min=0),
    ] = DEFAULTS.isolate,
    jobs: Annotated[int, typer.Option(help="Workloads at a time.")] = DEFAULTS.jobs,
    workers: Annotated[
        int,
        typer.Option(
            help="Processes that share every workload's trials, for targets that are slow to "
            "measure. Which trials they make depends on who is faster: no run repeats another."
        ),
    ] = DEFAULTS.workers,
    bare: Annotated[
        bool,
        typer.Option("--bare", help="Write ledger and results only: no Prefect, no MLflow."),
    ] = False,
) -> None:
    """Tune every workload of a network. Repeating the command resumes a run that was stopped."""
    from rich.console import Console

    from cli.tuning import run_bare, run_tuning
    from tuning.options import parse_options

    options = parse_options(
        model=model, target=target, tuner=tuner, trials=trials, seed=seed, space=space,
        out="" if out is None else str(out), batch=batch, fresh=fresh,
        tuner_options=dict(_pair(text, "--option") for text in option or []),
        input_shapes=read_input_shapes(shape), max_waste=max_waste,
        warm_start=warm_start, isolate=isolate, jobs=jobs, workers=workers,
    )  # fmt: skip
    (run_bare if bare else run_tuning)(options, Console())


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
