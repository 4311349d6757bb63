"""Implements `tilewright dataset build`: measured programs on many machines, for training cost
models.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.options import OfferedFields, with_options
from tilewright.cli.signals import keep_count
from tilewright.evaluation.datasets.options import DatasetFolder, DatasetOptions
from tilewright.tuning.options import ClusterOptions

if TYPE_CHECKING:
    from tilewright.evaluation.datasets.metadata import DatasetMetadata
    from tilewright.search.events import Listener

commands = typer.Typer(help="Build datasets that cost models learn from.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="dataset")


@commands.callback()
def _group() -> None:
    """A group, though it has one command."""


@commands.command("build")
@with_options
def build(
    folder: DatasetFolder,
    options: Annotated[DatasetOptions, OfferedFields("rows", "seed", "cpu_rows", "targets")],
    workers: ClusterOptions,
    bare: Annotated[bool, typer.Option("--bare", help="Write the dataset only: no Prefect.")] = (
        False
    ),
) -> None:
    """Lower and measure schedules of the built-in networks' layers on many accelerators, or on
    hardware that is named. Repeating the command resumes a build that was stopped."""
    from tilewright.cli.views.dataset import building, show_built
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
    with building(Terminal(stderr=True)) as listen:
        build_it = _bare if bare else _tracked
        about = build_it(out, options, cluster, listen)
    show_built(about, out, Terminal())


def _bare(out: Path, options: DatasetOptions, cluster: str, listen: Listener) -> DatasetMetadata:
    from tilewright.flows.dataset import build_dataset
    from tilewright.search import LocalRunner

    return build_dataset(LocalRunner(listen), out, options, cluster)


def _tracked(out: Path, options: DatasetOptions, cluster: str, listen: Listener) -> DatasetMetadata:
    from tilewright.services.local_services import embedded

    with embedded(_prepare):
        from tilewright.flows.dataset_prefect import dataset_flow
        from tilewright.flows.forms import fields_of

        place, workers = DatasetFolder(out=out), ClusterOptions(cluster=cluster)
        about: DatasetMetadata = dataset_flow(listen)(**fields_of(place, options, workers))
        return about


def _prepare() -> None:
    """While the server starts."""
    import tilewright.flows.dataset_prefect
    import tilewright.networks.network  # noqa: F401
