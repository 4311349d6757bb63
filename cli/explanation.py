"""`tilewright explain` as a command: refit, look, print, draw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from evaluation.compare.trace import ROLES
from evaluation.explain.folder import TunedFolder, read_folder
from evaluation.explain.workloads import (
    Explained,
    ExplainError,
    brier,
    discrimination,
    explain_workload,
    mean_rank,
    pooled,
    ranked,
    rmse,
    vetoed,
)
from reports.explain.page import (
    CHANGED,
    FAST,
    PAGE,
    PICTURE,
    corrects,
    decimal,
    effect,
    explanation_page,
    methods,
    share,
)
from reports.explain.plots import picture
from reports.figures import percent
from targets.files import write_atomically
from tuning.folders import check_folder

_SHOWN = 6  # features of a model in the terminal
_BAR = 12  # characters of the longest bar


def run_explanation(
    path: Path, out: Path, console: Console, *, samples: int, seed: int
) -> list[Explained]:
    """Explain a finished run; writes `explain.png` and `explain.html`. Raises `FolderError` or
    `ExplainError`."""
    if samples < 1:
        raise ExplainError(f"--samples {samples}: judge the models on at least 1 config")
    folder = read_folder(path)
    check_folder(out)
    if folder.changed:
        console.print(CHANGED, style="yellow", highlight=False)
    explained = _explain(folder, console, samples, seed)
    drawn = picture(explained)
    write_atomically(out / PICTURE, drawn)
    write_atomically(out / PAGE, explanation_page(folder, explained, drawn))
    return explained


def show(explained: Sequence[Explained], out: Path, console: Console) -> None:
    """What drove each model, how right they were, and where the picture is."""
    for role in ROLES:
        if any(role in each.influences for each in explained):
            _show_features(explained, role, console)
    console.print("[bold]How right they were[/]")
    console.print("[dim]own trials: before the models learned from them[/]")
    console.print(_accuracy(explained))
    console.print(
        f"calibration and predictions in {out / PAGE} and {out / PICTURE}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


def _show_features(explained: Sequence[Explained], role: str, console: Console) -> None:
    note = methods(explained)[role]
    if corrects(explained, role):
        note += "; learns the error of the closed-form estimate"
    console.print(f"[bold]{ROLES[role]}[/]\n[dim]{note}[/]", highlight=False)
    rows = [row for row in ranked(explained, role) if row.share > 0][:_SHOWN]
    if not rows:
        console.print("it learned a constant: all it saw had one outcome\n", highlight=False)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("feature", "influence", "", "if large"):
        table.add_column(name, justify="right" if name == "influence" else "left", no_wrap=True)
    for row in rows:
        bar = "█" * max(1, round(_BAR * row.share / rows[0].share))
        table.add_row(row.name, percent(row.share), bar, effect(row.direction, role))
    console.print(table)
    console.print()


def _accuracy(explained: Sequence[Explained]) -> Table:
    """All workloads together: on random configs, and on trials before they were measured."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("judged on", no_wrap=True)
    for name in ("P rmse", "P rank", "A rmse", "A rank", "V auc", "V brier", "fast\nvetoed"):
        table.add_column(name, justify="right")
    for text, judged, missed in (
        ("random configs", [each.unseen for each in explained], share(vetoed(explained, FAST))),
        ("own trials", [each.before for each in explained], ""),
    ):
        p, a, v = (pooled(judged, role) for role in "PAV")
        table.add_row(
            text, decimal(rmse(p)), decimal(mean_rank(judged, "P")), decimal(rmse(a)),
            decimal(mean_rank(judged, "A")), decimal(discrimination(v)), decimal(brier(v)), missed,
        )  # fmt: skip
    return table


def _explain(folder: TunedFolder, console: Console, samples: int, seed: int) -> list[Explained]:
    explained = []
    columns = BarColumn(24), MofNCompleteColumn(), TextColumn("{task.description}")
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        bar = progress.add_task("explaining", total=len(folder.workloads))
        for workload in folder.workloads:
            progress.update(bar, description=str(workload))
            explained.append(explain_workload(folder, workload, samples, seed))
            progress.advance(bar)
    return explained
