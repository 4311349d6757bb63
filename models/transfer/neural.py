"""Neural transfer models: an MLP, and the network of Verma et al. (ExHET 2023).

The published network has three bidirectional LSTMs and two attention heads. Its tokens are the
decisions of the schedule. The networks are computed and trained by `models.transfer.jax_networks`,
which imports JAX and takes a second to load. A trained MLP predicts without JAX
(`models.transfer.numpy_mlp`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tilewright.models.transfer import numpy_mlp
from tilewright.models.transfer.contract import CommonOptions
from tilewright.models.transfer.model import LearningOutcome, Lesson, Transferred
from tilewright.models.transfer.numpy_mlp import NamedWeights, pack_weights, unpack_weights
from tilewright.models.transfer.training_data import Matrix

_CLIP = 6.0
"""Limit to which normalised values are clipped, in standard deviations. Without it, new hardware
could be far outside the training range."""


class NeuralOptions(CommonOptions):
    """Options of all neural models."""

    epochs: int = Field(
        default=200, ge=1, le=10_000, description="largest number of passes over the data"
    )
    learning_rate: float = Field(default=1e-3, gt=0, le=1, description="learning rate of Adam")
    fall: float = Field(
        default=0.3, ge=0, le=1,
        description="last fraction of the training in which the learning rate falls to zero",
    )  # fmt: skip


class MLPOptions(NeuralOptions):
    """Options of the MLP."""

    batch: int = Field(default=1024, ge=1, le=65536, description="rows per step")
    units: int = Field(default=256, ge=1, le=4096, description="units per layer")
    layers: int = Field(default=3, ge=1, le=16, description="hidden layers")


class AttentionOptions(NeuralOptions):
    """Options of the published network.

    The defaults of `batch`, `epochs`, `learning_rate`, `layers` and `heads` are the published
    values. The published option of unrolling two steps of an LSTM does not exist here, because it
    affects only the speed.
    """

    batch: int = Field(default=16, ge=1, le=65536, description="rows per step")
    units: int = Field(default=48, ge=2, le=1024, description="units of an LSTM in each direction")
    layers: int = Field(default=3, ge=1, le=8, description="bidirectional LSTMs")
    heads: int = Field(default=2, ge=1, le=16, description="attention heads")

    @model_validator(mode="before")
    @classmethod
    def _without_unrolling(cls, given: dict[str, object]) -> dict[str, object]:
        """Ignore the option `unroll`, which models of version 0.2 and earlier contain."""
        return {name: value for name, value in given.items() if name != "unroll"}


_REFINING = {"epochs": 30, "learning_rate": 1e-4, "held": 0.2}


class _Neural(Transferred):
    """Base class of neural models.

    The learned state consists of the weights, and of the mean and standard deviation of each
    column, by which rows are normalised.
    """

    file: ClassVar[str] = "model.safetensors"
    options: Any
    _weights: NamedWeights
    _scale: NamedWeights

    @abstractmethod
    def _network(self) -> Any:
        """Return the JAX network (`jax_networks.JaxNetwork`) for this model's columns."""

    def _learn(self, lesson: Lesson, start: Self | None) -> LearningOutcome:
        from tilewright.models.transfer.jax_networks import descend

        self._scale = _scale_of(lesson.x) if start is None else start._scale
        self._weights, learned = descend(
            self._network(), lesson, self._normalise_rows, self.options, self.seed,
            None if start is None else start._weights,
        )  # fmt: skip
        return learned

    def _rank(self, x: Matrix) -> NDArray[np.float64]:
        from tilewright.models.transfer.jax_networks import ask

        return ask(self._network(), self._weights, x, self._normalise_rows)

    def _normalise_rows(self, x: Matrix) -> Matrix:
        """Normalise and clip rows of shape (rows, columns). Unknown values stay NaN."""
        scaled = (x - self._scale["mean"]) / self._scale["deviation"]
        return np.clip(scaled, -_CLIP, _CLIP, out=scaled)

    def _packed(self) -> bytes:
        return pack_weights({**self._weights, **self._scale})

    def _unpack(self, data: bytes) -> None:
        arrays = unpack_weights(data)
        self._scale = {name: arrays.pop(name) for name in ("mean", "deviation")}
        self._weights = arrays


def _scale_of(x: Matrix) -> NamedWeights:
    """Return the mean and the standard deviation of each column, ignoring NaN.

    Args:
        x: rows of shape (rows, columns).

    Returns:
        Arrays `mean` and `deviation` of shape (columns,). A column without known values has mean 0,
        and a constant column has deviation 1.
    """
    mean = np.nanmean(x, axis=0, dtype=np.float64)
    deviation = np.nanstd(x, axis=0, dtype=np.float64)
    return {
        "mean": np.asarray(np.nan_to_num(mean), dtype=np.float32),
        "deviation": np.asarray(np.where(deviation > 1e-6, deviation, 1.0), dtype=np.float32),
    }


class MLP(_Neural):
    """Multilayer perceptron over all columns."""

    kind: ClassVar[str] = "mlp"
    options_type = MLPOptions
    refining: ClassVar[Mapping[str, object]] = _REFINING | {"batch": 64}
    lasting = ("formula", "units", "layers")

    def _network(self) -> Any:
        from tilewright.models.transfer.jax_networks import Perceptron

        return Perceptron(len(self.columns), self.options.units, self.options.layers)

    def _rank(self, x: Matrix) -> NDArray[np.float64]:
        return numpy_mlp.ask(self._weights, self.options.layers, self._normalise_rows(x))


class Attention(_Neural):
    """Bidirectional LSTMs and attention over knobs, conditioned on all other columns."""

    kind: ClassVar[str] = "attention"
    options_type = AttentionOptions
    refining: ClassVar[Mapping[str, object]] = _REFINING
    lasting = ("formula", "units", "layers", "heads")

    def _network(self) -> Any:
        from tilewright.models.transfer.jax_networks import Decisions

        o, tokens = self.options, tokens_of(self.columns)
        return Decisions(
            len(self.columns), tokens.columns, tokens.others, o.units, o.layers, o.heads
        )


_GROUP = "schedule "
_ABOUT = ("log2_parts_", "log2_", "waste_", "one_", "whole_")
"""Prefixes of column names that describe a single knob, after the name of the group. If several
prefixes match, the first one counts."""


@dataclass(frozen=True)
class TransferTokens:
    """Assignment of columns to the knobs of a schedule.

    Attributes:
        knobs: names of the knobs, in the order of their columns.
        columns: column indices of each knob.
        others: indices of the columns that do not describe a single knob.
    """

    knobs: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]
    others: tuple[int, ...]


def tokens_of(names: Sequence[str]) -> TransferTokens:
    """Group columns by the knob of the schedule that they describe.

    Each log2 column of a knob's value starts a new group. log2 columns of volumes and of numbers of
    parts are not values of knobs.

    Args:
        names: names of all columns.

    Returns:
        Column indices per knob, and of the columns that do not describe a single knob.
    """
    columns_by_knob: dict[str, list[int]] = {}
    for name in names:
        knob = _knob(name, "log2_")
        if knob and not knob.endswith("_volume") and not _is_parts(knob, names):
            columns_by_knob[knob] = []
    others = []
    for place, name in enumerate(names):
        knob = next(
            (k for k in (_knob(name, start) for start in _ABOUT) if k in columns_by_knob), ""
        )
        if knob:
            columns_by_knob[knob].append(place)
        else:
            others.append(place)
    return TransferTokens(
        tuple(columns_by_knob),
        tuple(tuple(item) for item in columns_by_knob.values()),
        tuple(others),
    )


def _is_parts(knob: str, names: Sequence[str]) -> bool:
    """Return whether a name `parts_X` means the number of parts of knob X, not a knob itself.

    Args:
        knob: the name.
        names: names of all columns, which contain a column of knob X in the first case.
    """
    return knob.startswith("parts_") and f"{_GROUP}log2_{knob.removeprefix('parts_')}" in names


def _knob(name: str, start: str) -> str:
    """Return the knob that a schedule column describes, if the column has the given prefix.

    Args:
        name: name of the column.
        start: prefix after the group name, such as `log2_`.

    Returns:
        The rest of the name, or "" if the name does not match.
    """
    whole = _GROUP + start
    return name.removeprefix(whole) if name.startswith(whole) else ""
