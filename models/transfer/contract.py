"""Types that all transfer models share: predictions, training results and common options."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from tilewright.core.errors import TilewrightError


class TransferError(TilewrightError):
    """A transfer model cannot be trained on a table, or a folder contains no usable model."""


@dataclass(frozen=True)
class Prediction:
    """Predictions of a transfer model for programs.

    Attributes:
        log_latency: log2 latency plus an unknown constant per task, shape (rows,). Therefore, only
            programs of the same task can be compared. The constant differs between compiled and
            uncompiled programs, so these cannot be compared with each other either.
        spread: expected standard deviation of the error on unseen tasks, shape (rows,).
        chance: probability that the program is valid, shape (rows,).
    """

    log_latency: NDArray[np.float64]
    spread: NDArray[np.float64]
    chance: NDArray[np.float64]


@dataclass(frozen=True)
class Training:
    """Summary of the training of a transfer model.

    Attributes:
        rows: number of rows of the table.
        seconds: duration of the training.
        epochs: number of completed epochs; for boosted trees, the number of trees.
        full_seconds: estimated duration if all requested epochs had been completed.
        stopped: reason for the end: "epochs", "minutes" or "no gain".
    """

    rows: int
    seconds: float
    epochs: float
    full_seconds: float
    stopped: str


class CommonOptions(BaseModel):
    """Options of all kinds of transfer models. Each field has a description."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    minutes: float = Field(
        default=30.0, gt=0, allow_inf_nan=False, description="time limit of the training"
    )
    threads: int = Field(default=2, ge=1, le=256, description="number of threads for training")
    drop_program: float = Field(
        default=0.25, ge=0, lt=1,
        description="fraction of rows from which the hidden features are removed in "
            "training, so that the model can also predict before compiling",
    )  # fmt: skip
    drop_column: float = Field(
        default=0.01, ge=0, lt=1,
        description="fraction of single values that are removed in training, so that the "
            "model tolerates missing features of hardware",
    )  # fmt: skip
    formula: bool = Field(
        default=True,
        description="learn the difference to a hand-written formula of the time, and use its "
            "terms as features; otherwise learn, as published, the latencies of a "
            "task relative to their mean",
    )  # fmt: skip
    held: float = Field(
        default=0.05, gt=0, le=0.5, description="fraction of tasks that decide when to stop"
    )
