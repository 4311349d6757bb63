"""Draws the pictures of a run once: a night in which nothing changed draws none, and does not load
what draws."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache as once
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from tilewright import reports
from tilewright.core.files import Json, digest
from tilewright.tasks.cached_task import Key, Stage
from tilewright.tasks.steps_prefect import NO_TARGET
from tilewright.tuning import outputs
from tilewright.tuning.results import TunedWorkload

_SOURCES = ("run_pictures.py", "plot_style.py")
_OF_THE_RUN = ("wall_seconds", "reused_trials", "timed_again", "model_errors")
"""Of a workload's row, what no picture shows."""


def workload_picture(layer: str, tuned: TunedWorkload, trials: pd.DataFrame) -> bytes:
    """As `reports.run_pictures.convergence`."""
    return _WORKLOAD.run([], {"layer": layer}, tuned, trials).value


def network_picture(network: str, tuned: Sequence[TunedWorkload], trials: pd.DataFrame) -> bytes:
    """As `reports.run_pictures.network_convergence`."""
    return _NETWORK.run([], {}, network, tuned, trials).value


def draw_workload(tuned: TunedWorkload, trials: pd.DataFrame) -> bytes:
    """Draw the convergence of a workload."""
    from tilewright.reports.run_pictures import convergence

    return convergence(tuned, trials)


def draw_network(network: str, tuned: Sequence[TunedWorkload], trials: pd.DataFrame) -> bytes:
    """Draw the convergence of a network."""
    from tilewright.reports.run_pictures import network_convergence

    return network_convergence(network, tuned, trials)


def _workload_key(tuned: TunedWorkload, trials: pd.DataFrame) -> Key:
    return _network_key("workload", [tuned], trials)


def _network_key(network: str, tuned: Sequence[TunedWorkload], trials: pd.DataFrame) -> Key:
    inputs: dict[str, Json] = {
        "what": network,
        "target": tuned[0].task.target.name,
        "trials": digest(outputs.parquet(trials)),
        "rows": [_shown(each) for each in tuned],
        "code": _code(),
    }
    return Key("picture", 1, NO_TARGET, inputs)


_WORKLOAD = Stage(draw_workload, "{layer}: picture", _workload_key)
_NETWORK = Stage(draw_network, "picture of {network}", _network_key)


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
