"""Display of finished runs: trials, differences of two runs, and explanations of the models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.cli.views.terminal import (
    Bars,
    bare_table,
    columns_of,
    cycles_text,
    fitted_table,
    print_line,
    time_text,
)
from tilewright.core.user_text import printable
from tilewright.evaluation.diff import DiffVerdict
from tilewright.evaluation.explain.figures import ModelSummary, accuracy, vetoed_shares
from tilewright.evaluation.explain.finished_run import TunedFolder
from tilewright.evaluation.explain.recommendations import Advice
from tilewright.evaluation.explain.refitted_models import Explained
from tilewright.reports.diff import figure_rows, headline, latency_rows, setting_rows
from tilewright.reports.explanation import CHANGED, NO_ADVICE, method
from tilewright.reports.number_format import count_text, decimal, percent
from tilewright.search.explorer import ROLES
from tilewright.targets.capabilities import Latency
from tilewright.targets.workload import Workload
from tilewright.tuning.output_dir import EXPLANATION, EXPLANATION_PICTURE
from tilewright.tuning.run_metadata import WorkloadNames


def show_trials(
    frame: pd.DataFrame, names: Mapping[str, WorkloadNames], best: int | None, console: Console
) -> None:
    """Show one table per layer with one line per trial, fastest first.

    A line contains the knobs of a valid trial, or the reason why the trial is invalid.

    Args:
        frame: table of the trials.
        names: names of the workloads, by ID.
        best: maximum number of trials per layer; None for all.
        console: the terminal.
    """
    for workload, trials in frame.groupby("workload", sort=False):
        known = names.get(str(workload))
        ordered = _fastest_first(trials)
        shown = ordered if best is None else ordered.head(best)
        console.print(_title(str(workload), known, trials), highlight=False)
        console.print(_table(shown, console.width))
        console.print()


def best_trials(frame: pd.DataFrame, best: int) -> pd.DataFrame:
    """Return the fastest trials of each workload, fastest first.

    Args:
        frame: table of the trials.
        best: maximum number of trials per workload.
    """
    groups = [trials for _, trials in frame.groupby("workload", sort=False)]
    return pd.concat([frame.head(0), *(_fastest_first(group).head(best) for group in groups)])


def _fastest_first(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the valid trials, fastest first, followed by the invalid trials in their order."""
    valid = trials["status"] == "valid"
    taken = trials["seconds"].where(trials["cycles"] < 0, trials["cycles"])
    order = pd.DataFrame({"invalid": ~valid, "taken": taken.where(valid), "trial": trials["trial"]})
    return trials.loc[order.sort_values(["invalid", "taken", "trial"], kind="stable").index]


def _title(workload: str, known: WorkloadNames | None, trials: pd.DataFrame) -> Text:
    valid = int((trials["status"] == "valid").sum())
    counts = f"  {count_text(len(trials), 'trial')}, {valid:,} valid"
    if known is None:
        return Text.assemble((printable(workload), "bold"), counts)
    layers = ", ".join(known["names"]) or known["workload"]
    text = f"\n{known['workload']}; {known['epilogue']}" if known["names"] else ""
    return Text.assemble((printable(layers), "bold"), counts, (printable(text, keep="\n"), "dim"))


def _table(trials: pd.DataFrame, width: int) -> Table:
    rows = []
    for row in trials.itertuples(index=False):
        valid = row.status == "valid"
        latency = Latency(float(str(row.seconds)), int(str(row.cycles))) if valid else None
        last = _knobs(str(row.knobs)) if valid else f"{row.status}: {row.reason}"
        rows.append(
            {
                "trial": str(row.trial),
                "round": str(row.round),
                "cycles": cycles_text(latency),
                "ms": time_text(latency),
                _WHY: printable(last),
            }
        )
    return fitted_table(columns_of(rows), ("round",), width, folded=(_WHY,), numbered=True)


_WHY = "knobs, or why invalid"


def _knobs(text: str) -> str:
    """Format knobs that are stored as a JSON object, for example as `tile_h=7 tile_w=14`."""
    return " ".join(f"{name}={value}" for name, value in json.loads(text).items())


def show_diff(verdict: DiffVerdict, console: Console) -> None:
    """Show latencies, model errors and changed settings of two runs, and finally the verdict."""
    print_line(console, f"A  {verdict.a}\nB  {verdict.b}\n")
    for rows, total in ((latency_rows(verdict), True), (figure_rows(verdict), False)):
        console.print(fitted_table(columns_of(rows), (), console.width, left=("",), total=total))
    for head, settings in (("changed", verdict.changed), ("asked for", verdict.settings)):
        if settings:
            rows = [{head: row.pop("what")} | row for row in setting_rows(settings)]
            table = fitted_table(columns_of(rows), (), console.width, folded=("A", "B"))
            console.print(table)
    for reason in verdict.reasons:
        print_line(console, f"worse  {reason}")
    print_line(console, headline(verdict))


_SHOWN = 6  # number of features shown per model
_BAR = 8  # length of the longest bar in characters


@contextmanager
def show_explaining(
    folder: TunedFolder, console: Console
) -> Iterator[Callable[[int, Workload], None]]:
    """Show the progress over the workloads of a run during a `with` block.

    Args:
        folder: the run that is explained.
        console: the terminal.

    Yields:
        A function that is called with the index and the workload when a workload begins.
    """
    with Bars(console) as bars:
        bar = bars.add_task("explaining", total=len(folder.workloads))

        def hear(place: int, workload: Workload) -> None:
            bars.update(bar, completed=place, description=folder.titles[workload.id])

        yield hear


def warn_if_changed(folder: TunedFolder, console: Console) -> None:
    """Show a warning if the simulator has changed since the run."""
    if folder.target_changed:
        console.print(CHANGED, style="yellow", highlight=False)


def tell_problems(folder: TunedFolder, console: Console) -> None:
    """Show a note about each stored trial of a run that could not be read."""
    for problem in folder.problems:
        console.print(f"note: {problem}", style="yellow", markup=False, highlight=False)


def show(
    explained: Sequence[Explained],
    models: Sequence[ModelSummary],
    advice: Sequence[Advice],
    out: Path,
    console: Console,
) -> None:
    """Show the explanation of a run's models.

    The explanation lists the most influential features and the accuracy of each model, the files
    with the plots, and recommendations.

    Args:
        explained: explanations of the models, per workload.
        models: summary of each model.
        advice: recommendations.
        out: folder with the page and the picture.
        console: the terminal.
    """
    for model in models:
        _show_features(model, console)
    console.print(Text("How accurate the models were", "bold"))
    console.print(Text("own trials: predicted before the models were trained on them", "dim"))
    console.print(_accuracy(explained, console.width))
    pictures = f"{out / EXPLANATION} and {out / EXPLANATION_PICTURE}"
    print_line(console, f"calibration and predictions are plotted in {pictures}")
    _show_advice(advice, console)


def _show_advice(advice: Sequence[Advice], console: Console) -> None:
    console.print(Text("\nWhat to do next", "bold"))
    for place, recommendation in enumerate(advice, start=1):
        lines = Text.assemble(
            f"{place}. ", (recommendation.action, "bold"), f" {recommendation.finding}"
        )
        console.print(lines)
    if not advice:
        console.print(NO_ADVICE, highlight=False)


def _show_features(model: ModelSummary, console: Console) -> None:
    note = method(model)
    if model.corrects:
        note += "; predicts the error of the closed-form estimate"
    console.print(Text.assemble((ROLES[model.role], "bold"), "\n", (note, "dim")))
    features = model.top_features(_SHOWN)
    if not features:
        console.print(
            "it learned a constant, because all its training data had the same outcome\n",
            highlight=False,
        )
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
    """Return a table of the accuracy of the models P, V and A.

    One row is for random configs that the run never tried. The other row is for the run's own
    trials, which the models predicted before they were trained on them.

    Args:
        explained: explanations of the models, per workload.
        width: width of the terminal in characters.
    """
    heads = ("P\nrmse", "P\nrank", "A\nrmse", "A\nrank", "V\nauc", "V\nbrier", "fast\nvetoed")
    rows, fast = [], percent(vetoed_shares(explained).fast)
    for text, judged, missed in (
        ("random configs", [explanation.unseen for explanation in explained], fast),
        ("own trials", [explanation.before for explanation in explained], ""),
    ):
        of = accuracy(judged)
        figures = (of.p_rmse, of.p_rank, of.a_rmse, of.a_rank, of.v_auc, of.v_brier)
        cells = zip(heads, (*map(decimal, figures), missed), strict=True)
        rows.append({"evaluated on": text} | dict(cells))
    return fitted_table(columns_of(rows), ("A\nrank", "P\nrank"), width)
