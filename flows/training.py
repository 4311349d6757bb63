"""Trains a cost model that transfers to other hardware, as consecutive steps.

read_dataset → fit_model → judge_model → store_model → log_model
"""

from __future__ import annotations

from functools import partial

from tilewright.core.files import Json
from tilewright.evaluation.datasets.options import TrainingOptions
from tilewright.evaluation.datasets.training import (
    fit_model,
    judge_model,
    log_model,
    read_dataset,
    store_model,
)
from tilewright.search import LocalRunner
from tilewright.search.events import Listener, Note


def train_model(run: LocalRunner, options: TrainingOptions) -> dict[str, Json]:
    """Train a model on part of a dataset, judge it on the rest, write its folder. Returns what
    `metrics.json` holds. Raises `DatasetError`, `TransferError`, `UnsafeFile` and `OSError`."""
    table, digest = run(read_dataset, options)
    fitted = run(fit_model, options, table, partial(say, run.emit))
    metrics = run(judge_model, options, fitted, digest)
    folder = run(store_model, options, fitted)
    run.call(log_model, options, folder, metrics)
    return metrics


def say(emit: Listener, text: str) -> None:
    """Tell how the training goes."""
    emit(Note(text))
