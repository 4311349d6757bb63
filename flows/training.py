"""Pipeline that trains a cost model, which can be used on other hardware.

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
    """Train a model on one part of a dataset, evaluate it on the other part, and save the model.

    Args:
        run: runner that executes the steps.
        options: dataset, type of model, split and output folder.

    Returns:
        The content of `metrics.json`.

    Raises:
        DatasetError: the dataset cannot be read.
        TransferError: the model cannot be trained.
        UnsafeFile: a path is not a regular file.
        OSError: a file cannot be written.
    """
    table, digest = run(read_dataset, options)
    fitted = run(fit_model, options, table, partial(emit_note, run.emit))
    metrics = run(judge_model, options, fitted, digest)
    folder = run(store_model, options, fitted)
    run.call(log_model, options, folder, metrics)
    return metrics


def emit_note(emit: Listener, text: str) -> None:
    """Emit a note about the progress of training."""
    emit(Note(text))
