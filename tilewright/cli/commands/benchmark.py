"""Implements `tilewright benchmark`: a network on this processor, beside other engines."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tilewright.cli.options import with_options
from tilewright.core.errors import TilewrightError
from tilewright.core.working_folder import as_typed
from tilewright.evaluation.engines.options import BenchmarkOptions


def register(app: typer.Typer) -> None:
    app.command("benchmark", short_help="Time a network on this CPU beside other engines.")(
        benchmark
    )


@with_options
def benchmark(
    options: BenchmarkOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Build a network for this processor and time it in turns with other engines, each in a process
    of its own; rounds disturbed by other work do not count."""
    from tilewright.cli.views.benchmark import benchmark_json, show_benchmark
    from tilewright.cli.views.building import Building
    from tilewright.cli.views.terminal import Terminal
    from tilewright.flows.benchmark import benchmark as run_benchmark
    from tilewright.search import LocalRunner

    given = (options.artifact is not None, options.schedules is not None, options.trials > 0)
    if sum(given) > 1:
        raise TilewrightError(
            "give one of --artifact, --schedules and --trials: each says what is timed"
        )
    with Building(Terminal(stderr=True)) as shown:
        made = run_benchmark(LocalRunner(shown), options)
    for warning in made.warnings:
        typer.echo(f"note: {as_typed(warning)}", err=True)
    if as_json:
        typer.echo(json.dumps(benchmark_json(made), indent=2, ensure_ascii=False))
    else:
        show_benchmark(made, Terminal())
