"""Shows the result of `tilewright explain`: what drove each model, and how right they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.cli.views.terminal import Bars, bare_table, columns_of, fitted_table, say
from tilewright.evaluation.explain.figures import ModelSummary, accuracy, vetoed_shares
from tilewright.evaluation.explain.finished_run import TunedFolder
from tilewright.evaluation.explain.recommendations import Advice
from tilewright.evaluation.explain.refitted_models import Explained
from tilewright.reports.explanation import CHANGED, NO_ADVICE, PAGE, PICTURE, method
from tilewright.reports.number_format import decimal, percent
from tilewright.search.explorer import ROLES
from tilewright.targets.workload import Workload

_SHOWN = 6  # features of a model
_BAR = 8  # characters of the longest bar


@contextmanager
def explaining(folder: TunedFolder, console: Console) -> Iterator[Callable[[int, Workload], None]]:
    """Progress over the workloads of a run, shown within: to be told which is next."""
    with Bars(console) as bars:
        bar = bars.add_task("explaining", total=len(folder.workloads))

        def hear(place: int, workload: Workload) -> None:
            bars.update(bar, completed=place, description=folder.titles[workload.id])

        yield hear


def warn_if_changed(folder: TunedFolder, console: Console) -> None:
    """Say so if the run was recorded on another simulator than the present one."""
    if folder.changed:
        console.print(CHANGED, style="yellow", highlight=False)


def tell_problems(folder: TunedFolder, console: Console) -> None:
    """Trials that could not be used."""
    for problem in folder.problems:
        console.print(f"note: {problem}", style="yellow", markup=False, highlight=False)


def show(
    explained: Sequence[Explained],
    models: Sequence[ModelSummary],
    advice: Sequence[Advice],
    out: Path,
    console: Console,
) -> None:
    """What drove each model, how right they were, where the picture is, and what to do."""
    for model in models:
        _show_features(model, console)
    console.print(Text("How right they were", "bold"))
    console.print(Text("own trials: before the models learned from them", "dim"))
    console.print(_accuracy(explained, console.width))
    say(console, f"calibration and predictions in {out / PAGE} and {out / PICTURE}")
    _show_advice(advice, console)


def _show_advice(advice: Sequence[Advice], console: Console) -> None:
    console.print(Text("\nSo do this", "bold"))
    for place, each in enumerate(advice, start=1):
        lines = Text.assemble(f"{place}. ", (each.action, "bold"), f" {each.finding}")
        console.print(lines)
    if not advice:
        console.print(NO_ADVICE, highlight=False)


def _show_features(model: ModelSummary, console: Console) -> None:
    note = method(model)
    if model.corrects:
        note += "; learns the error of the closed-form estimate"
    console.print(Text.assemble((ROLES[model.role], "bold"), "\n", (note, "dim")))
    features = model.most(_SHOWN)
    if not features:
        console.print("it learned a constant: all it saw had one outcome\n", highlight=False)
        return
    table = bare_table()
    table.add_column("feature", overflow="fold")
    for name in ("influence", "", "if large"):
        table.add_column(name, justify="right" if name == "influence" else "left", no_wrap=True)
    for feature in features:
        bar = "█" * max(1, round(_BAR * feature.share / features[0].share))
        words = Text.assemble(feature.name, (f"  {feature.text}", "dim"))
        table.add_row(words, percent(feature.share), bar, model.effect(feature))
    console.print(table)
    console.print()


def _accuracy(explained: Sequence[Explained], width: int) -> Table:
    """All workloads together: on random configs, and on trials before they were measured."""
    heads = ("P\nrmse", "P\nrank", "A\nrmse", "A\nrank", "V\nauc", "V\nbrier", "fast\nvetoed")
    rows, fast = [], percent(vetoed_shares(explained).fast)
    for text, judged, missed in (
        ("random configs", [each.unseen for each in explained], fast),
        ("own trials", [each.before for each in explained], ""),
    ):
        of = accuracy(judged)
        figures = (of.p_rmse, of.p_rank, of.a_rmse, of.a_rank, of.v_auc, of.v_brier)
        cells = zip(heads, (*map(decimal, figures), missed), strict=True)
        rows.append({"judged on": text} | dict(cells))
    return fitted_table(columns_of(rows), ("A\nrank", "P\nrank"), width)
