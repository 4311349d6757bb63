"""Shows the list of `tilewright trials`."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.cli.views.latency import cycles_text, time_text
from tilewright.cli.views.terminal import columns_of, fitted_table
from tilewright.core.user_text import printable
from tilewright.reports.number_format import counted
from tilewright.targets.capabilities import Latency
from tilewright.tuning.run_metadata import WorkloadNames


def show_trials(
    frame: pd.DataFrame, names: Mapping[str, WorkloadNames], best: int | None, console: Console
) -> None:
    """A table a layer: a line a trial, the fastest first, with its knobs, or the reason where it is
    not valid; of each layer the `best` of them, or all. `names` are known by workload id."""
    for workload, trials in frame.groupby("workload", sort=False):
        known = names.get(str(workload))
        ordered = _fastest_first(trials)
        shown = ordered if best is None else ordered.head(best)
        console.print(_title(str(workload), known, trials), highlight=False)
        console.print(_table(shown, console.width))
        console.print()


def best_trials(frame: pd.DataFrame, best: int) -> pd.DataFrame:
    """Return the fastest `best` trials of each workload, the fastest first."""
    groups = [trials for _, trials in frame.groupby("workload", sort=False)]
    return pd.concat([frame.head(0), *(_fastest_first(each).head(best) for each in groups)])


def _fastest_first(trials: pd.DataFrame) -> pd.DataFrame:
    """Valid ones by what they take, then the others as they were tried."""
    valid = trials["status"] == "valid"
    taken = trials["seconds"].where(trials["cycles"] < 0, trials["cycles"])
    order = pd.DataFrame({"invalid": ~valid, "taken": taken.where(valid), "trial": trials["trial"]})
    return trials.loc[order.sort_values(["invalid", "taken", "trial"], kind="stable").index]


def _title(workload: str, known: WorkloadNames | None, trials: pd.DataFrame) -> Text:
    valid = int((trials["status"] == "valid").sum())
    counts = f"  {counted(len(trials), 'trial')}, {valid:,} valid"
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


_WHY = "knobs, or why not"


def _knobs(text: str) -> str:
    """`tile_h=7 tile_w=14` of the JSON that a table of trials has."""
    return " ".join(f"{name}={value}" for name, value in json.loads(text).items())
