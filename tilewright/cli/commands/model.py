"""Implements `tilewright model`: models that transfer from hardware to hardware."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.arguments import Seed, read_pair
from tilewright.core.working_folder import as_typed

if TYPE_CHECKING:
    from tilewright.evaluation.datasets.training import TrainingOptions

commands = typer.Typer(
    help="Train models on some hardware that know about other hardware.", no_args_is_help=True
)

Dataset = Annotated[Path, typer.Option(help="Folder of a dataset ('tilewright dataset build').")]
RowCount = Annotated[
    int | None, typer.Option(help="Read so many rows only, drawn at random.", min=2)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="model")


@commands.command("train")
def train(
    dataset: Dataset,
    out: Annotated[Path, typer.Option(help="Folder for the model.")],
    start: Annotated[
        Path | None,
        typer.Option(help="Fine-tune the model of this folder, usually on rows of few targets."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="xgboost, lightgbm, mlp or attention.  [default: xgboost, or that of --start]",
            metavar="KIND",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="What the rows it is judged on are new in: within_task (rows of known tasks), "
            "by_task (workloads it has not seen), by_target (hardware it has not seen).  "
            "[default: by_target, with --start within_task]",
            metavar="SPLIT",
        ),
    ] = None,
    minutes: Annotated[float, typer.Option(help="Training ends after so long at most.")] = 30.0,
    rows: RowCount = None,
    seed: Seed = 0,
    threads: Annotated[int, typer.Option(help="Threads that learn.")] = 2,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", help="An option of the kind, NAME=VALUE (docs/explanation/transfer.md)."
        ),
    ] = None,
    bare: Annotated[
        bool, typer.Option("--bare", help="Write the model only: no Prefect, no MLflow.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on most of a dataset, or fine-tune one, and judge it on the rest."""
    from tilewright.evaluation.datasets.training import parse_training
    from tilewright.tuning.output_dir import check_folder

    options = parse_training(
        dataset=str(dataset), out=str(out), kind=kind, split=split, minutes=minutes, rows=rows,
        seed=seed, threads=threads, start=str(start) if start else None,
        options=dict(read_pair(text, "--option") for text in option or []),
    )  # fmt: skip
    check_folder(out)
    _train(options, bare, as_json)


@commands.command("score")
def score(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained model.")],
    dataset: Dataset,
    rows: RowCount = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Judge a trained model on a dataset, also one that comes from elsewhere."""
    from tilewright.cli.views.models import show_scores
    from tilewright.cli.views.terminal import Terminal
    from tilewright.evaluation.datasets.training import judge_elsewhere

    found = judge_elsewhere(model, dataset, rows, seed)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        show_scores(found, Terminal())


@commands.command("trust")
def trust(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained model.")],
) -> None:
    """Let commands on this workspace load a model that was trained elsewhere. Loading a model can
    run code: trust only models of people whom you trust."""
    from tilewright.models.transfer.files import trust_model

    trust_model(model)
    typer.echo(f"commands on this workspace now load {as_typed(str(model))} as it is")


def _train(options: TrainingOptions, bare: bool, as_json: bool) -> None:
    from tilewright.cli.views.models import show_registered, show_scores, training_shown
    from tilewright.cli.views.terminal import Terminal

    console = Terminal()
    registered = None
    with training_shown(Terminal(stderr=True)) as listen:
        if bare:
            from tilewright.flows.training import train_model
            from tilewright.search import LocalRunner

            found = train_model(LocalRunner(listen), options)
        else:
            from tilewright.services.local_services import embedded

            with embedded(_prepare):
                from tilewright.flows.flat_parameters import fields_of
                from tilewright.flows.training_prefect import training_flow

                found, registered = training_flow(listen)(**fields_of(options))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    show_scores(found, console)
    if registered is not None:
        show_registered(registered, console)


def _prepare() -> None:
    import tilewright.flows.training_prefect  # noqa: F401
    from tilewright.tasks import tracking

    tracking.connect()
