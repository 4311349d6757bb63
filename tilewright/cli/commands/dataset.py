"""Implements `tilewright dataset build`: measured programs on many machines, for training cost
models.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.arguments import Cluster
from tilewright.cli.paths import target_texts
from tilewright.cli.signals import keep_count

if TYPE_CHECKING:
    from tilewright.evaluation.datasets.metadata import DatasetMetadata
    from tilewright.evaluation.datasets.plan import DatasetOptions
    from tilewright.search.events import Listener

commands = typer.Typer(help="Build datasets that cost models learn from.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="dataset")


@commands.callback()
def _group() -> None:
    """A group, though it has one command."""


@commands.command("build")
def build(
    out: Annotated[Path, typer.Option(help="Folder for the dataset.")],
    rows: Annotated[
        int, typer.Option(help="How many rows of simulated accelerators.", min=0)
    ] = 2_000_000,
    seed: Annotated[int, typer.Option(help="Same seed, same rows.", min=0)] = 0,
    cpu_rows: Annotated[
        int,
        typer.Option(
            help="How many measured on this processor, half a second each; none are without a C "
            "compiler.",
            min=0,
        ),
    ] = 256,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="Hardware that the rows are of, may be given again: a preset, a file, cpu:…  "
            "[default: accelerators drawn by the seed, and this processor]",
            callback=target_texts,
        ),
    ] = None,
    cluster: Cluster = "",
    bare: Annotated[bool, typer.Option("--bare", help="Write the dataset only: no Prefect.")] = (
        False
    ),
) -> None:
    """Lower and measure schedules of the built-in networks' layers on many accelerators, or on
    hardware that is named. Repeating the command resumes a build that was stopped."""
    from tilewright.cli.views.dataset import building, show_built
    from tilewright.cli.views.terminal import Terminal
    from tilewright.evaluation.datasets.build import kept_rows
    from tilewright.evaluation.datasets.plan import DatasetOptions
    from tilewright.targets.cluster.connection import check_address
    from tilewright.tuning.output_dir import check_folder

    options = DatasetOptions(rows, cpu_rows, seed, targets=tuple(target or ()))
    options.check()
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

        return dataset_flow(listen, cluster)(options, str(out))


def _prepare() -> None:
    """While the server starts."""
    import tilewright.flows.dataset_prefect
    import tilewright.networks.network  # noqa: F401
