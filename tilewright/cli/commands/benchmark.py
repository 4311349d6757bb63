"""Implements `tilewright benchmark`: a network on this processor, beside other engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.arguments import InputShape, Model, Precision, read_input_shapes
from tilewright.core.errors import TilewrightError
from tilewright.core.user_text import split_names
from tilewright.core.working_folder import as_typed


def register(app: typer.Typer) -> None:
    app.command("benchmark", short_help="Time a network on this CPU beside other engines.")(
        benchmark
    )


def benchmark(
    model: Model,
    against: Annotated[
        str,
        typer.Option(
            metavar="NAME,…",
            help="onnxruntime, openvino (in float32), openvino-default (in the precision that it "
            "chooses).",
        ),
    ] = "onnxruntime",
    artifact: Annotated[
        Path | None,
        typer.Option(
            metavar="ART", help="A library that 'tilewright build' made, instead of a new one. "
            "Its code runs with your rights.",
        ),
    ] = None,
    schedules: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder that 'tilewright tune' wrote.")
    ] = None,
    trials: Annotated[
        int,
        typer.Option(help="Measurements a workload; 0 takes the kernels' own rules.", min=0,
                     max=100_000),
    ] = 0,
    threads: Annotated[
        int, typer.Option(help="Threads of every engine; 0 for all cores.", min=0)
    ] = 0,
    rounds: Annotated[
        int, typer.Option(help="Rounds in which no engine waited for a core.", min=3, max=1000)
    ] = 20,
    seconds: Annotated[
        float, typer.Option(help="What a round takes an engine.", min=0.01, max=60)
    ] = 0.2,
    precision: Precision = None,
    shape: InputShape = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """Build a network for this processor and time it in turns with other engines, each in a process
    of its own; rounds disturbed by other work do not count."""
    from tilewright.cli.views.benchmark import benchmark_json, show_benchmark
    from tilewright.cli.views.building import Building
    from tilewright.cli.views.terminal import Terminal
    from tilewright.flows.benchmark import BenchmarkOptions
    from tilewright.flows.benchmark import benchmark as run_benchmark
    from tilewright.search import LocalRunner

    if sum((artifact is not None, schedules is not None, trials > 0)) > 1:
        raise TilewrightError(
            "give one of --artifact, --schedules and --trials: each says what is timed"
        )
    options = BenchmarkOptions(
        model, split_names(against, "--against"), artifact, schedules, trials, threads, rounds,
        seconds, read_input_shapes(shape), precision or "",
    )  # fmt: skip
    with Building(Terminal(stderr=True)) as shown:
        made = run_benchmark(LocalRunner(shown), options)
    for warning in made.warnings:
        typer.echo(f"note: {as_typed(warning)}", err=True)
    if as_json:
        typer.echo(json.dumps(benchmark_json(made), indent=2, ensure_ascii=False))
    else:
        show_benchmark(made, Terminal())
