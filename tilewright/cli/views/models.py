"""Display of datasets and of cost models: the progress and the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tilewright.cli.views.terminal import Bars, columns_of, fitted_table, print_line
from tilewright.core.files import Json, as_list, as_number, as_object, as_text
from tilewright.core.working_folder import as_typed
from tilewright.evaluation.datasets.build import PlannedFile, RowsDone
from tilewright.evaluation.datasets.folder import DatasetMetadata
from tilewright.evaluation.datasets.training import BEFORE
from tilewright.reports.datasets import dataset_line
from tilewright.reports.number_format import count_text, duration, percent
from tilewright.search.events import Event, Listener, Note, ignore

if TYPE_CHECKING:
    from tilewright.tasks.training import Registered


@contextmanager
def show_building(console: Console) -> Iterator[Listener]:
    """Show the progress of building a dataset during a `with` block.

    A terminal shows a progress bar of rows. Other outputs get occasional lines.

    Args:
        console: the terminal.

    Yields:
        A listener for the events of the build.
    """
    with Bars(console) as bars:
        bar = bars.add_task("planning", total=None)

        def hear(event: Event) -> None:
            if isinstance(event, PlannedFile):
                pieces = f"{count_text(event.hardware, 'piece')} of hardware"
                what = f"{count_text(event.workloads, 'workload')} on {pieces}"
                kept = f", {count_text(event.kept, 'row')} kept" if event.kept else ""
                bars.update(bar, description=what, total=event.rows, completed=event.kept)
                print_line(console, f"{what}: {count_text(event.rows, 'row')}{kept}")
            elif isinstance(event, RowsDone):
                bars.advance(bar, event.rows)

        yield hear


def show_built(about: DatasetMetadata, out: Path, console: Console) -> None:
    """Show the size of a dataset and its digest."""
    print_line(console, dataset_line(about, out))


@contextmanager
def training_shown(console: Console) -> Iterator[Listener]:
    """Show the progress of training on the last line of a terminal, during a `with` block.

    Other outputs get nothing.

    Args:
        console: the terminal.

    Yields:
        A listener for the events of the training.
    """
    if not console.is_terminal:
        yield ignore
        return
    with console.status("reading rows") as status:

        def hear(event: Event) -> None:
            if isinstance(event, Note):
                status.update(as_typed(event.text))

        yield hear


def show_scores(result: Mapping[str, Json], console: Console) -> None:
    """Show how well a model ranks schedules by latency, in a table with two rows.

    One row is for predictions with features of the compiled program, the other for predictions
    without them. A line below says how many rows of the dataset were used, and whether the model
    was trained on part of this dataset.

    Args:
        result: metrics of the model, as in `metrics.json`.
        console: the terminal.
    """
    rows = []
    for title, row in (("compiled", result), ("before", as_object(result["visible"]))):
        low, high = (as_number(item) for item in as_list(row["interval"]))
        rows.append(
            {
                "programs": title,
                "right pairs": _share(row["pairwise_accuracy"]),
                "95 % interval": f"{_share(low)}–{_share(high)}",
                "best of 1": f"+{percent(as_number(row['top1_regret']))}",
                "best of 8": ""
                if row["top8_regret"] is None
                else f"+{percent(as_number(row['top8_regret']))}",
            }
        )
    console.print(fitted_table(columns_of(rows), ("95 % interval",), console.width))
    read, seconds = as_number(result["rows"]), duration(as_number(result["seconds"]))
    if "epochs" not in result:
        print_line(console, f"{as_text(result['kind'])} evaluated on {read:,} rows in {seconds}")
        if result["seen"] is True:
            print_line(
                console,
                "note: the model was trained on part of this dataset, so these rows are "
                "not all unseen",
            )
        elif result["hardware_seen"] is not None:
            told = (
                f"{as_number(result[f'{of}_seen']):,} of {as_number(result[of]):,} {title}"
                for of, title in (("hardware", "pieces of hardware"), ("workloads", "workloads"))
            )
            print_line(console, f"the model was trained on other rows of {' and '.join(told)}")
        return
    text = (
        f"{as_text(result['kind'])}, {as_text(result['split'])}: {read:,} rows in "
        f"{seconds}, {as_number(result['epochs']):,} epochs"
    )
    if result["stopped"] == "minutes":
        text += (
            ", stopped by the time limit; all epochs would take "
            f"{_value_text(result['all_epochs_seconds'])}"
        )
    print_line(console, text)
    if BEFORE in result:
        before = result[BEFORE], as_object(result["visible"])[BEFORE]
        print_line(
            console,
            f"pairs in the right order before fine-tuning: {_share(before[0])}; "
            f"predicted without compiling {_share(before[1])}",
        )


def show_registered(registered: Registered, console: Console) -> None:
    """Show the version of a model in MLflow's registry, and the addresses of the run's pages."""
    from tilewright.services.page_addresses import flow_run_url
    from tilewright.tasks.tracking import run_url

    print_line(
        console,
        f"MLflow: {registered.name} version {registered.version} ({', '.join(registered.aliases)})",
    )
    print_line(console, f"MLflow: {run_url(registered.run_id)}")
    print_line(console, f"Prefect: {flow_run_url(registered.flow_run_id)}")


def _share(value: Json) -> str:
    return f"{as_number(value):.4f}"


def _value_text(value: Json) -> str:
    return duration(as_number(value))
