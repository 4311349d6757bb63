"""Draws the pictures of a run once: a night in which nothing changed draws none, and does not load
what draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache as once
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from tilewright import reports
from tilewright.core.files import Json, digest
from tilewright.tasks.artifact_store import CacheUse
from tilewright.tasks.cached_task import Key, Made, find_or_do
from tilewright.tasks.import_tasks import NO_TARGET
from tilewright.tuning import outputs
from tilewright.tuning.results import TunedWorkload

_SOURCES = ("convergence.py", "axis_ticks.py", "styles.py")
_OF_THE_RUN = ("wall_seconds", "reused_trials", "timed_again", "model_errors")
"""Of a workload's row, what no picture shows."""


def workload_picture(cache: CacheUse, tuned: TunedWorkload, trials: pd.DataFrame) -> bytes:
    """As `reports.convergence.convergence`."""

    def draw() -> bytes:
        from tilewright.reports.run_pictures import convergence

        return convergence(tuned, trials)

    return _kept(cache, "workload", [tuned], trials, draw)


def network_picture(
    cache: CacheUse, network: str, tuned: Sequence[TunedWorkload], trials: pd.DataFrame
) -> bytes:
    """As `reports.convergence.network_convergence`."""

    def draw() -> bytes:
        from tilewright.reports.run_pictures import network_convergence

        return network_convergence(network, tuned, trials)

    return _kept(cache, network, tuned, trials, draw)


def _kept(
    cache: CacheUse,
    what: str,
    tuned: Sequence[TunedWorkload],
    trials: pd.DataFrame,
    draw: Callable[[], bytes],
) -> bytes:
    def work() -> Made:
        return {}, {"picture": cache.store.put(draw(), bytes, ".png")}

    inputs: dict[str, Json] = {
        "what": what,
        "target": tuned[0].study.target.name,
        "trials": digest(outputs.parquet(trials)),
        "rows": [_shown(each) for each in tuned],
        "code": _code(),
    }
    _, manifest = find_or_do(cache, Key("picture", 1, NO_TARGET, inputs), work)
    return cache.store.get(manifest.files["picture"], bytes)


def _shown(tuned: TunedWorkload) -> Json:
    row: dict[str, Json] = {**tuned.summary()}  # type: ignore[dict-item]
    return {name: value for name, value in row.items() if name not in _OF_THE_RUN}


@once
def _code() -> str:
    """Changes when pictures may."""
    here = Path(str(reports.__file__)).parent
    return digest(
        version("matplotlib").encode() + b"".join((here / f).read_bytes() for f in _SOURCES)
    )
