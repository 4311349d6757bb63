"""`tilewright tune`: the whole way from a network to tuned, verified schedules."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import (
    BATCH,
    MAX_WASTE,
    SEED,
    SPACE,
    TARGET,
    TRIALS,
    TUNER,
    Batch,
    InputShape,
    MaxWaste,
    Model,
    Out,
    Seed,
    Space,
    Target,
    Trials,
    Tuner,
    read_input_shapes,
    read_pair,
)

if TYPE_CHECKING:
    from tasks.session import Event
    from tuning.options import TuningOptions


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
    from tuning.options import parse_options

    options = parse_options(
        model=model, target=target, tuner=tuner, trials=trials, seed=seed, space=space,
        out="" if out is None else str(out), batch=batch, fresh=fresh,
        tuner_options=dict(read_pair(text, "--option") for text in option or []),
        input_shapes=read_input_shapes(shape), max_waste=max_waste,
        warm_start=warm_start,
    )  # fmt: skip
    _run(options, isolate)


def tuners() -> None:
    """List the search strategies and their options."""
    from search import tuners as registered

    for name, entry in registered().items():
        needs = f" (needs {entry.missing})" if entry.missing else ""
        typer.echo(f"{name:14} {entry.summary}{needs}")
        for option, field in entry.options.model_fields.items():
            default = entry.preset.get(option, field.default)
            typer.echo(f"    {option}={default}: {field.description or ''}")


def _run(options: TuningOptions, isolate_seconds: float) -> None:
    """Servers around the flow, progress while it runs, results after it. Heavy imports wait until
    the server is on its way: both take seconds."""
    from rich.console import Console

    from cli.views.tuning_progress import make_display
    from cli.views.tuning_results import show_results
    from services.embedded import embedded
    from tasks.session import isolating, listening
    from tuning.checks import check

    check(options)
    console = Console()
    display = make_display(console, options.trials)
    events: Counter[str] = Counter()

    def hear(event: Event) -> None:
        events[event.kind] += 1
        display(event)

    servers = embedded(lambda: _prepare(options))
    with display, listening(hear), isolating(isolate_seconds), servers:
        from flows.tuning import tune_network

        summary = tune_network(options)
    show_results(summary, options.folder, events["reused"], console)


def _prepare(options: TuningOptions) -> None:
    from tuning.checks import check_tuner

    check_tuner(options)
    import flows.tuning  # noqa: F401
    import networks.network  # noqa: F401
    from tasks import tracking

    tracking.connect()
