"""Defines what every transferred model can be asked, of any kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from tilewright.core.errors import TilewrightError
from tilewright.models.transfer.training_table import TrainingTable
from tilewright.targets.features import Features


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
    held: float = Field(
        default=0.05, gt=0, le=0.5, description="share of tasks that tell when to stop"
    )


class TransferModel(Protocol):
    """A cost model of programs on hardware. Columns are known by name: their order says nothing,
    those it was not trained with are passed over, those that are missing or NaN are masked."""

    kind: str
    columns: tuple[str, ...]
    """Those it was trained with."""

    def fit(self, table: TrainingTable, validation: TrainingTable | None = None) -> Training:
        """Learn from a table. `validation` tells when to stop; without one some tasks are kept back
        for that. Raises `TransferError` for a table without valid rows."""

    def predict(self, features: Features, chance: bool = True) -> Prediction:
        """What is expected of each row. Without `chance` nobody asks for that: it is 1."""

    def save(self, folder: Path) -> None:
        """Write it in native formats. Raises `OSError` and `UnsafeFile`."""
