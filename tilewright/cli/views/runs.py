"""Display of the list of runs, and of a single run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from tilewright.cli.views.convergence import convergence_lines
from tilewright.cli.views.terminal import BREAK, fitted_table, print_line
from tilewright.core.user_text import printable
from tilewright.dashboard.listing import ListedRun
from tilewright.reports.number_format import count_text, percent, speedup
from tilewright.tuning.gains import FIGURES
from tilewright.tuning.run_trials import RunTrials

_DROPPABLE = ("begun", "seed", "trials", "above\nbound", "over\nrule", "target", BREAK)
"""Columns that are left out, in this order, until the table fits a narrow terminal. After them, the
IDs of runs are broken into several lines."""
_LEFT = ("begun", "network", "target", "tuner", "state")


def show_runs(runs: Sequence[ListedRun], of: int, console: Console) -> None:
    """Show a table with one line per run.

    Args:
        runs: the runs to show, latest first.
        of: number of all runs.
        console: the terminal.
    """
    rows = [_cells(run) for run in runs]
    if rows:
        columns = {head: [row[head] for row in rows] for head in rows[0]}
        console.print(fitted_table(columns, _DROPPABLE, console.width, left=_LEFT))
    more = f"; the latest {len(runs)} are shown" if len(runs) < of else ""
    print_line(console, f"{count_text(of, 'run')}{more}")


def show_run(run: ListedRun, trials: RunTrials | None, console: Console) -> None:
    """Show the latencies of a run, its convergence curve, and the command that repeats it.

    Args:
        run: the run.
        trials: its trials; None if they cannot be read.
        console: the terminal.
    """
    row = run.row
    print_line(
        console, f"{row['question']}: {row['tuner']}, seed {row['seed']}, {row['trials']} trials"
    )
    print_line(
        console, f"{row['state']}: {row['message']}" if row["message"] else str(row["state"])
    )
    figures = [f"{name} {row[f'{name}_ms']:.3g} ms" for name in FIGURES if row[f"{name}_ms"]]
    if figures:
        print_line(console, ", ".join(figures))
    for line in [] if trials is None else convergence_lines(trials):
        print_line(console, line)
    for label, value in (
        ("repeat", row["command"]), ("files", run.folder), ("MLflow", row["mlflow"]),
        ("Prefect", row["prefect"]),
    ):  # fmt: skip
        if value:
            print_line(console, f"{label:8} {value}")


def _cells(run: ListedRun) -> dict[str, str]:
    row = run.row
    tuned, bound, gain = (row[name] for name in ("tuned_ms", "bound_ms", "gain"))
    known = isinstance(tuned, float) and isinstance(bound, float) and bound
    return {
        "run": run.id,
        "begun": str(row["began"])[:16],
        "network": printable(str(row["network"])),
        "target": printable(str(row["target"])),
        "tuner": printable(str(row["tuner"])),
        "seed": str(row["seed"]),
        "trials": str(row["trials"]),
        "tuned\nms": f"{tuned:.3g}" if isinstance(tuned, float) else "",
        "over\nrule": speedup(gain if isinstance(gain, float) else None, 1.0),
        "above\nbound": percent(tuned / bound - 1) if known else "",  # type: ignore[operator]
        "state": str(row["state"]),
    }
