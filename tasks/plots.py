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
from tilewright.tasks import codecs
from tilewright.tasks.cached_task import Key, Made, stage
from tilewright.tasks.import_tasks import NO_TARGET
from tilewright.tuning import outputs
from tilewright.tuning.results import TunedWorkload

_SOURCES = ("convergence.py", "axis_ticks.py", "styles.py")
_OF_THE_RUN = ("wall_seconds", "reused_trials", "timed_again", "model_errors")
"""Of a workload's row, what no picture shows."""


def workload_picture(layer: str, tuned: TunedWorkload, trials: pd.DataFrame) -> bytes:
    """As `reports.convergence.convergence`."""
    return _draw_workload([], layer, tuned, trials).record.value


def network_picture(network: str, tuned: Sequence[TunedWorkload], trials: pd.DataFrame) -> bytes:
    """As `reports.convergence.network_convergence`."""
    return _draw_network([], network, tuned, trials).record.value


def _workload_key(layer: str, tuned: TunedWorkload, trials: pd.DataFrame) -> Key:
    return _picture_key("workload", [tuned], trials)


def _picture_key(network: str, tuned: Sequence[TunedWorkload], trials: pd.DataFrame) -> Key:
    inputs: dict[str, Json] = {
        "what": network,
        "target": tuned[0].study.target.name,
        "trials": digest(outputs.parquet(trials)),
        "rows": [_shown(each) for each in tuned],
        "code": _code(),
    }
    return Key("picture", 1, NO_TARGET, inputs)


@stage("{layer}: picture", _workload_key, codecs.PICTURE)
def _draw_workload(layer: str, tuned: TunedWorkload, trials: pd.DataFrame) -> Made[bytes]:
    from tilewright.reports.convergence import convergence

    return Made(convergence(tuned, trials), {})


@stage("picture of {network}", _picture_key, codecs.PICTURE)
def _draw_network(
    network: str, tuned: Sequence[TunedWorkload], trials: pd.DataFrame
) -> Made[bytes]:
    from tilewright.reports.convergence import network_convergence

    return Made(network_convergence(network, tuned, trials), {})


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
