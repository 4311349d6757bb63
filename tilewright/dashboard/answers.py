"""Data for the start page: the list of runs, convergence curves, and the effect of the knobs.

All times are in milliseconds. Unknown values are null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.core.files import Json, as_object
from tilewright.dashboard.deletion import delete_run, plan_deletion
from tilewright.dashboard.listing import FIGURE_KEYS, RUNNING, KnownRuns, ListedRun, figures_row
from tilewright.evaluation.compare.record import to_json
from tilewright.reports.leaderboard import leaderboard_rows, verdict
from tilewright.services.page_addresses import other_pages
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.optuna_study import knob_importance
from tilewright.tuning.run_figures import (
    CurveLayer,
    network_curve,
    trial_latencies,
)
from tilewright.tuning.run_trials import RunLayer, RunTrials, RunUnreadable

MOST_ROWS = 2000
"""Maximum number of trials per workload that the page draws. Half of the drawn trials are the
fastest ones."""
MOST_RUNS = 60
"""Maximum number of runs whose convergence curves one answer contains."""

Answer = Mapping[str, Json]


def answer_or_error(ask: Callable[[], Answer]) -> tuple[Answer, bool]:
    """Call a function that computes data for the page, and convert expected errors to messages.

    Only `TilewrightError`, `OSError` and `MlflowException` are converted; other exceptions
    propagate.

    Args:
        ask: function that returns the data.

    Returns:
        The result and True. If `ask` failed, `{"error": message}` and False.
    """
    try:
        return ask(), True
    except MlflowException as error:
        return {"error": f"MLflow does not respond: {error}"}, False
    except (TilewrightError, OSError) as error:
        return {"error": str(error)}, False


def list_runs(known: KnownRuns) -> Answer:
    """Return the data of the list of runs, for the start page.

    Args:
        known: the runs of the start page.

    Returns:
        The runs, latest first (`runs`); the folder of the workspace; the addresses of other pages;
        and a description of each option of a run (`meanings`).
    """
    rows = [run.row for run in known.runs()]
    meanings: dict[str, Json] = {
        name: field.description for name, field in TuningOptions.model_fields.items()
    }
    return {
        "runs": rows,
        "workspace": str(known.workspace.root),
        "pages": other_pages(),
        "meanings": meanings,
    }


def describe_deletion(known: KnownRuns, run_id: str) -> Answer:
    """Return sentences for the user about the records and files that deleting a run would delete.

    Raises the errors of `deletion.plan_deletion`.

    Args:
        known: the runs of the start page.
        run_id: ID of the run.
    """
    return {"sentences": list[Json](plan_deletion(known, run_id).sentences)}


def delete_and_describe(known: KnownRuns, run_id: str) -> Answer:
    """Delete a run, and return sentences for the user about what was deleted and kept.

    Raises the errors of `deletion.delete_run`.

    Args:
        known: the runs of the start page.
        run_id: ID of the run.
    """
    return {"sentences": list[Json](delete_run(known, run_id).sentences)}


def list_comparisons(known: KnownRuns) -> Answer:
    """Return the leaderboards of all comparisons of tuners, for the start page.

    Each leaderboard also has the table (`rows`) and the sentence (`verdict`) that the page shows.

    Args:
        known: the runs and comparisons of the start page.
    """
    comparisons: list[Json] = [
        {"folder": str(comparison.folder), "name": comparison.folder.name, **written}
        | {"verdict": verdict(board), "rows": list[Json](leaderboard_rows([board]))}
        for comparison in known.comparisons()
        for board, written in zip(
            comparison.leaderboards, map(as_object, to_json(comparison.leaderboards)), strict=True
        )
    ]
    return {"comparisons": comparisons}


def curves(known: KnownRuns, ids: Iterable[str]) -> Answer:
    """Return the convergence curves of several runs: the best latency over the number of trials.

    Args:
        known: the runs of the start page.
        ids: IDs of the runs. Unknown IDs are ignored, and so are all after the first `MOST_RUNS`.

    Returns:
        The curves by ID of the run. If a run cannot be read, an error message replaces its curves.
    """
    by_id = {run.id: run for run in known.runs()}
    wanted = [by_id[id_] for id_ in dict.fromkeys(ids) if id_ in by_id][:MOST_RUNS]
    return {run.id: answer_or_error(lambda run=run: _curve(known, run))[0] for run in wanted}  # type: ignore[misc]


def knobs(known: KnownRuns, run_id: str, workload: str) -> Answer:
    """Return the trials of a workload with their knob values, and the importance of each knob.

    If there are more than `MOST_ROWS` trials, the fastest ones and a sample of the others are
    returned. The importance is computed only for runs that have ended.

    Args:
        known: the runs of the start page.
        run_id: ID of the run.
        workload: ID of the workload.

    Raises:
        RunUnreadable: the run or the trials do not exist, or the knobs are invalid.
    """
    run = known.find(run_id)
    result = known.trials(run)
    trials = result.trials_of_workload(workload)
    if not len(trials):
        raise RunUnreadable("this layer has no trial yet")
    try:
        values = [{str(k): int(v) for k, v in json.loads(text).items()} for text in trials["knobs"]]
    except (ValueError, TypeError, AttributeError) as error:
        raise RunUnreadable(f"its knobs cannot be read: {error}") from None
    names = list(dict.fromkeys(name for item in values for name in item))
    times = _times(trials)
    rows: list[Json] = [
        [int(number), _number_or_none(time), status, reason, *[item.get(name) for name in names]]
        for number, time, status, reason, item in zip(
            trials["trial"], times, trials["status"], trials["reason"], values, strict=True
        )
    ]
    chosen = sorted(_select_drawn(times).tolist())
    # For a run in progress, random forests would be trained every few seconds.
    ended = run.row["state"] != RUNNING
    return {
        "knobs": names,
        "rows": [rows[place] for place in chosen],
        "trials": len(rows),
        "importance": _importance(trials) if ended else None,
    }


def _importance(trials: pd.DataFrame) -> Answer:
    return {name: round(float(share), 4) for name, share in knob_importance(trials).items()}


def _curve(known: KnownRuns, run: ListedRun) -> Answer:
    trials = known.trials(run)
    table = trials.table
    layers = [CurveLayer(layer.id, layer.count, layer.figures) for layer in trials.layers]
    best = network_curve(table, layers, "seconds")
    return {
        "trials": len(table),
        "of": int(str(run.row["trials"])) * len(trials.layers),
        "network": _steps(1 + np.arange(len(best)), 1e3 * best),
        "layers": [_layer(trials, layer) for layer in trials.layers],
    }


def _layer(run_trials: RunTrials, layer: RunLayer) -> Answer:
    trials = run_trials.trials_of_workload(layer.id)
    times = _times(trials)
    best = 1e3 * network_curve(trials, [CurveLayer(layer.id, 1, layer.figures)], "seconds")
    return {
        "id": layer.id, "name": layer.name, "text": layer.text, "count": layer.count,
        "trials": len(trials), "valid": int(np.isfinite(times).sum()),
        "points": _steps(1 + np.arange(len(times)), best),
        **(figures_row(layer.figures) if layer.figures else dict.fromkeys(FIGURE_KEYS)),
    }  # fmt: skip


def _times(trials: pd.DataFrame) -> NDArray[np.float64]:
    """Return the latency of each trial in milliseconds, float array of shape (trials,).

    Invalid trials are NaN.
    """
    return 1e3 * trial_latencies(trials, "seconds")


def _select_drawn(times: NDArray[np.float64]) -> NDArray[np.int64]:
    """Select the trials that the page draws: all, or the fastest and a sample of the others.

    Args:
        times: latency of each trial in milliseconds, float array of shape (trials,); NaN for
            invalid trials.

    Returns:
        Indices of at most `MOST_ROWS` trials, int array of shape (n,).
    """
    order = np.argsort(times, kind="stable")  # NaN last
    if len(order) <= MOST_ROWS:
        return order
    half = MOST_ROWS // 2
    others = np.linspace(half, len(order) - 1, MOST_ROWS - half).astype(np.int64)
    return np.concatenate([order[:half], order[others]])


def _steps(at: NDArray[np.int64], values: NDArray[np.float64]) -> Sequence[Json]:
    """Reduce a curve to its last point and the points at which its value changes.

    Args:
        at: trial numbers, int array of shape (n,).
        values: best latency in milliseconds at these trials, float array of shape (n,); NaN if it
            is unknown.

    Returns:
        Pairs of trial number and latency.
    """
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):
        return []
    shown, last = values[known], len(known) - 1
    steps = [k for k in range(len(known)) if k in (0, last) or shown[k] != shown[k - 1]]
    return [[int(at[known[k]]), float(shown[k])] for k in steps]


def _number_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
