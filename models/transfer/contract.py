"""Defines what every transferred model can be asked, of any kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from tilewright.core.errors import TilewrightError


class TransferError(TilewrightError):
    """A transferred model that cannot be trained from a table, or a folder that holds none."""


@dataclass(frozen=True)
class Prediction:
    """What a model says of programs, each of shape (rows,): the log2 of their latency up to a
    constant a task (another one for programs that are not compiled yet: compare those with each
    other), how far off that usually is on tasks it has not seen (a standard deviation),
    and the chance that they run."""

    log_latency: NDArray[np.float64]
    spread: NDArray[np.float64]
    chance: NDArray[np.float64]


@dataclass(frozen=True)
class Training:
    """How a training went. An epoch of boosted trees is a tree; `full_seconds` is what all the
    epochs asked for would have taken, `stopped` by what they ended: epochs, minutes, or no gain."""

    rows: int
    seconds: float
    epochs: float
    full_seconds: float
    stopped: str


class CommonOptions(BaseModel):
    """The options of all kinds; each field's description is its documentation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    minutes: float = Field(
        default=30.0, gt=0, allow_inf_nan=False, description="training ends after so long at most"
    )
    threads: int = Field(default=2, ge=1, le=256, description="threads that learn")
    drop_program: float = Field(
        default=0.25, ge=0, lt=1,
        description="share of rows that learn without what compiling reveals, so that programs "
        "can be asked about before they are compiled",
    )  # fmt: skip
    drop_column: float = Field(
        default=0.01, ge=0, lt=1,
        description="share of single values that are taken away, so that hardware may lack some",
    )  # fmt: skip
    formula: bool = Field(
        default=True,
        description="learn the difference to a hand-written time formula, and see what it is made "
        "of; without, as published, latencies of a task about their mean",
    )  # fmt: skip
    held: float = Field(
        default=0.05, gt=0, le=0.5, description="share of tasks that tell when to stop"
    )
