"""Implements neural transfer models: an MLP, and the network of Verma et al. (ExHET 2023).

That network has three bidirectional LSTMs over the schedule's decisions, its tokens, each with its
columns, and two attention heads. `models.transfer.jax_networks` computes and trains the networks,
and loads JAX, which takes a second. A trained MLP predicts without it
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
"""Deviations beyond which a value counts as no further away: hardware may be of any size."""


class NeuralOptions(CommonOptions):
    """Of neural models."""

    epochs: int = Field(default=200, ge=1, le=10_000, description="passes over the data at most")
    learning_rate: float = Field(default=1e-3, gt=0, le=1, description="of Adam")
    fall: float = Field(
        default=0.3, ge=0, le=1,
        description="last share of the training in which the learning rate falls to nothing",
    )  # fmt: skip


class MLPOptions(NeuralOptions):
    """Of the MLP."""

    batch: int = Field(default=1024, ge=1, le=65536, description="rows a step")
    units: int = Field(default=256, ge=1, le=4096, description="units a layer")
    layers: int = Field(default=3, ge=1, le=16, description="hidden layers")


class AttentionOptions(NeuralOptions):
    """Of the published network; the defaults of batch, epochs, rate, layers and heads are those
    published. Its unrolling of two steps changes how an LSTM is computed, not what."""

    batch: int = Field(default=16, ge=1, le=65536, description="rows a step")
    units: int = Field(default=48, ge=2, le=1024, description="units of an LSTM, each direction")
    layers: int = Field(default=3, ge=1, le=8, description="bidirectional LSTMs")
    heads: int = Field(default=2, ge=1, le=16, description="heads of attention")

    @model_validator(mode="before")
    @classmethod
    def _without_unrolling(cls, given: dict[str, object]) -> dict[str, object]:
        """Models of 0.2 and before say how many steps were unrolled."""
        return {name: value for name, value in given.items() if name != "unroll"}


_REFINING = {"epochs": 30, "learning_rate": 1e-4, "held": 0.2}


class _Neural(Transferred):
    """Weights, with the mean and deviation of every column."""

    file: ClassVar[str] = "model.safetensors"
    options: Any
    _weights: NamedWeights
    _scale: NamedWeights

    @abstractmethod
    def _network(self) -> Any:
        """A `models.transfer.jax_networks.JaxNetwork` over this model's columns."""

    def _learn(self, lesson: Lesson, start: Self | None) -> LearningOutcome:
        from tilewright.models.transfer.jax_networks import descend

        self._scale = _scale_of(lesson.x) if start is None else start._scale
        self._weights, learned = descend(
            self._network(), lesson, self._scaled, self.options, self.seed,
            None if start is None else start._weights,
        )  # fmt: skip
        return learned

    def _rank(self, x: Matrix) -> NDArray[np.float64]:
        from tilewright.models.transfer.jax_networks import ask

        return ask(self._network(), self._weights, x, self._scaled)

    def _scaled(self, x: Matrix) -> Matrix:
        """Deviations from the mean, NaN where nothing is known; shape (rows, columns)."""
        found = (x - self._scale["mean"]) / self._scale["deviation"]
        return np.clip(found, -_CLIP, _CLIP, out=found)

    def _packed(self) -> bytes:
        return pack_weights({**self._weights, **self._scale})

    def _unpack(self, data: bytes) -> None:
        found = unpack_weights(data)
        self._scale = {name: found.pop(name) for name in ("mean", "deviation")}
        self._weights = found


def _scale_of(x: Matrix) -> NamedWeights:
    """Mean and deviation of each column of rows (rows, columns)."""
    mean = np.nanmean(x, axis=0, dtype=np.float64)
    deviation = np.nanstd(x, axis=0, dtype=np.float64)
    return {
        "mean": np.asarray(np.nan_to_num(mean), dtype=np.float32),
        "deviation": np.asarray(np.where(deviation > 1e-6, deviation, 1.0), dtype=np.float32),
    }


class MLP(_Neural):
    """Layers of units over all columns."""

    kind: ClassVar[str] = "mlp"
    options_type = MLPOptions
    refining: ClassVar[Mapping[str, object]] = _REFINING | {"batch": 64}
    lasting = ("formula", "units", "layers")

    def _network(self) -> Any:
        from tilewright.models.transfer.jax_networks import Perceptron

        return Perceptron(len(self.columns), self.options.units, self.options.layers)

    def _rank(self, x: Matrix) -> NDArray[np.float64]:
        return numpy_mlp.ask(self._weights, self.options.layers, self._scaled(x))


class Attention(_Neural):
    """Bidirectional LSTMs and attention over knobs, in the light of all other columns."""

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
"""How columns begin that speak of one knob: of two that fit, the first."""


@dataclass(frozen=True)
class TransferTokens:
    """Knobs in the order of their columns; of each, the places of its columns; and the places of
    all columns that speak of no knob alone."""

    knobs: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]
    others: tuple[int, ...]


def tokens_of(names: Sequence[str]) -> TransferTokens:
    """Columns of these names by knob. Every log2 of a knob's value makes a token, but volumes and
    numbers of parts, which follow from knobs."""
    found: dict[str, list[int]] = {}
    for name in names:
        knob = _knob(name, "log2_")
        if knob and not knob.endswith("_volume") and not _is_parts(knob, names):
            found[knob] = []
    others = []
    for place, name in enumerate(names):
        knob = next((k for k in (_knob(name, start) for start in _ABOUT) if k in found), "")
        if knob:
            found[knob].append(place)
        else:
            others.append(place)
    return TransferTokens(
        tuple(found), tuple(tuple(each) for each in found.values()), tuple(others)
    )


def _is_parts(knob: str, names: Sequence[str]) -> bool:
    """Whether `parts_X` is the number of parts that knob X makes, and no knob of that name."""
    return knob.startswith("parts_") and f"{_GROUP}log2_{knob.removeprefix('parts_')}" in names


def _knob(name: str, start: str) -> str:
    """What follows `start` in the name of a column of a schedule, else ""."""
    whole = _GROUP + start
    return name.removeprefix(whole) if name.startswith(whole) else ""
