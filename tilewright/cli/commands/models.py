"""The commands `tilewright dataset` and `model`.

They build datasets of measured schedules on many machines, and train cost models on these datasets.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.options import OfferedFields, with_options
from tilewright.cli.signals import keep_count
from tilewright.core.working_folder import as_typed
from tilewright.evaluation.datasets.options import DatasetFolder, DatasetOptions, TrainingOptions
from tilewright.tuning.options import ClusterOptions

if TYPE_CHECKING:
    from tilewright.evaluation.datasets.folder import DatasetMetadata
    from tilewright.search.events import Listener


dataset_commands = typer.Typer(
    help="Build datasets for training cost models.", no_args_is_help=True
)


@dataset_commands.callback()
def _group() -> None:
    """Make the commands a group, although there is only one."""


@dataset_commands.command("build")
@with_options
def build(
    folder: DatasetFolder,
    options: Annotated[DatasetOptions, OfferedFields("rows", "seed", "cpu_rows", "targets")],
    workers: ClusterOptions,
    bare: Annotated[
        bool, typer.Option("--bare", help="Only write the dataset, without Prefect.")
    ] = (False),
) -> None:
    """Measure schedules on many accelerators.

    The workloads are layers of the built-in networks. By default, the accelerators are drawn at
    random; with --target, the command measures only on the given hardware. Repeating the command
    resumes a build that was stopped.
    """
    from tilewright.cli.views.models import show_building, show_built
    from tilewright.cli.views.terminal import Terminal
    from tilewright.evaluation.datasets.build import kept_rows
    from tilewright.evaluation.datasets.plan import check_options
    from tilewright.targets.cluster.connection import check_address
    from tilewright.tuning.output_dir import check_folder

    out, cluster = folder.out, workers.cluster
    check_options(options)
    if cluster:
        check_address(cluster)
    check_folder(out.parent)
    keep_count("row", lambda: kept_rows(out))
    with show_building(Terminal(stderr=True)) as listen:
        build_it = _build_bare if bare else _build_tracked
        about = build_it(out, options, cluster, listen)
    show_built(about, out, Terminal())


def _build_bare(
    out: Path, options: DatasetOptions, cluster: str, listen: Listener
) -> DatasetMetadata:
    from tilewright.flows.dataset import build_dataset
    from tilewright.search import LocalRunner

    return build_dataset(LocalRunner(listen), out, options, cluster)


def _build_tracked(
    out: Path, options: DatasetOptions, cluster: str, listen: Listener
) -> DatasetMetadata:
    from tilewright.services.start_servers import embedded

    with embedded(_prepare_dataset):
        from tilewright.flows.dataset_prefect import dataset_flow
        from tilewright.flows.forms import fields_of

        place, workers = DatasetFolder(out=out), ClusterOptions(cluster=cluster)
        about: DatasetMetadata = dataset_flow(listen)(**fields_of(place, options, workers))
        return about


def _prepare_dataset() -> None:
    """Import slow modules while the Prefect server starts."""
    import tilewright.flows.dataset_prefect
    import tilewright.networks.network  # noqa: F401


model_commands = typer.Typer(
    help="Train cost models that transfer between hardware.", no_args_is_help=True
)

Dataset = Annotated[
    Path, typer.Option(help="Folder of a dataset that 'tilewright dataset build' wrote.")
]
RowCount = Annotated[
    int | None, typer.Option(help="Use only this many rows, drawn at random.", min=2)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@model_commands.command("train")
@with_options
def train(
    options: TrainingOptions,
    bare: Annotated[
        bool, typer.Option("--bare", help="Only write the model, without Prefect and MLflow.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train or fine-tune a model, and evaluate it.

    The model is trained on most of a dataset and evaluated on the rest.
    """
    from tilewright.evaluation.datasets.training import check_training
    from tilewright.tuning.output_dir import check_folder

    options = check_training(options)
    check_folder(Path(options.out))
    _train(options, bare, as_json)


@model_commands.command("score")
def score(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained model.")],
    dataset: Dataset,
    rows: RowCount = None,
    seed: Annotated[int, typer.Option(help="Seed for drawing the rows of --rows.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Evaluate a trained model on a dataset.

    The model and the dataset may have been made on other machines.
    """
    from tilewright.cli.views.models import show_scores
    from tilewright.cli.views.terminal import Terminal
    from tilewright.evaluation.datasets.training import judge_elsewhere

    result = judge_elsewhere(model, dataset, rows, seed)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        show_scores(result, Terminal())


@model_commands.command("trust")
def trust(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained model.")],
) -> None:
    """Trust a model that was trained elsewhere.

    Afterwards, commands in this workspace load the model. Loading a model can run code, so only
    trust models from people whom you trust.
    """
    from tilewright.models.transfer.files import trust_model

    trust_model(model)
    typer.echo(
        f"commands on this workspace now load {as_typed(str(model))}; if the model "
        "changes, trust it again"
    )


def _train(options: TrainingOptions, bare: bool, as_json: bool) -> None:
    from tilewright.cli.views.models import show_registered, show_scores, training_shown
    from tilewright.cli.views.terminal import Terminal

    console = Terminal()
    registered = None
    with training_shown(Terminal(stderr=True)) as listen:
        if bare:
            from tilewright.flows.training import train_model
            from tilewright.search import LocalRunner

            model = train_model(LocalRunner(listen), options)
        else:
            from tilewright.services.start_servers import embedded

            with embedded(_prepare_training):
                from tilewright.flows.forms import fields_of
                from tilewright.flows.training_prefect import training_flow

                model, registered = training_flow(listen)(**fields_of(options))
    if as_json:
        typer.echo(json.dumps(model, indent=2))
        return
    show_scores(model, console)
    if registered is not None:
        show_registered(registered, console)


def _prepare_training() -> None:
    import tilewright.flows.training_prefect  # noqa: F401
    from tilewright.tasks import tracking

    tracking.connect()
