"""Watching a tuner learn: which features its models saw, by name, and what they said.

An explorer gets features and untrained models from a `Learners` and from nowhere else; so one that
watches tells of any tuner, also of one written later, what no tuner has to tell by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.learners import Toolbox
from search import Explorer, Memory, Problem, create
from search.learning import CostModel, Matrix, VetoModel
from targets.base import Configs
from tasks.contest import Entrant

ROLES = {
    "P": "Model P: performance, from what is known before compiling",
    "V": "Model V: validity",
    "A": "Model A: performance, with what compiling reveals",
}
_VIEWS = 12  # feature matrices remembered


@dataclass(frozen=True)
class Lesson:
    """What a model was fitted on: rows (n, names), their targets (n,), the columns' names."""

    x: Matrix
    y: NDArray[np.float64]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """What a model was asked and what it said."""

    x: Matrix
    predicted: NDArray[np.float64]


@dataclass
class TracedModel:
    """A model that remembers what it was fitted on, and what it was asked while somebody listens.
    Everything else is the model's own."""

    inner: CostModel
    learners: TracedLearners
    lesson: Lesson | None = None
    answers: list[Answer] = field(default_factory=list)
    kind: str = ""
    suffix: str = ""

    def __post_init__(self) -> None:
        self.kind, self.suffix = self.inner.kind, self.inner.suffix

    @property
    def threshold(self) -> float:
        return float(getattr(self.inner, "threshold", 0.0))

    @property
    def classify(self) -> bool:
        return bool(getattr(self.inner, "classify", False))

    def fit(self, x: Matrix, y: NDArray[np.float64]) -> None:
        self.lesson = Lesson(x, y, self.learners.names_of(x))
        self.inner.fit(x, y)

    def predict(self, x: Matrix) -> NDArray[np.float64]:
        predicted = self.inner.predict(x)
        if self.learners.listening:
            self.answers.append(Answer(x, predicted))
        return predicted

    def spread(self, x: Matrix) -> NDArray[np.float64]:
        return self.inner.spread(x)

    def save(self, path: Path) -> None:
        self.inner.save(path)

    def load(self, path: Path) -> None:
        self.inner.load(path)


class TracedLearners(Toolbox):
    """The learners of `models`, watched. `hidden_names` are those of the target tuned for."""

    def __init__(self, hidden_names: Sequence[str]) -> None:
        self.hidden_names = tuple(hidden_names)
        self.listening = False
        self._views: deque[tuple[Matrix, tuple[str, ...]]] = deque(maxlen=_VIEWS)

    def visible(self, problem: Problem, configs: Configs) -> tuple[Matrix, tuple[str, ...]]:
        return self._seen(super().visible(problem, configs))

    def smooth(self, problem: Problem, configs: Configs) -> tuple[Matrix, tuple[str, ...]]:
        return self._seen(super().smooth(problem, configs))

    def regressor(self, kind: str, seed: int, **parameters: float) -> CostModel:
        return TracedModel(super().regressor(kind, seed, **parameters), self)

    def classifier(self, kind: str, seed: int, **parameters: float) -> CostModel:
        return TracedModel(super().classifier(kind, seed, **parameters), self)

    def validity(self, seed: int, **parameters: float) -> VetoModel:
        return TracedModel(super().validity(seed, **parameters), self)

    def names_of(self, x: Matrix) -> tuple[str, ...]:
        """The names of a matrix's columns: those of the view it begins with, then hidden features
        or estimates, by how many columns are left."""
        for matrix, names in sorted(self._views, key=lambda view: -view[0].shape[1]):
            width = int(matrix.shape[1])
            rest = int(x.shape[1]) - width
            if rest < 0 or not len(x) or not (matrix == x[0, :width]).all(axis=1).any():
                continue
            if rest == len(self.hidden_names):
                return names + self.hidden_names
            if rest <= 1:
                return names + ("estimate",) * rest
            return names + tuple(f"estimate {k + 1}" for k in range(rest))
        return tuple(f"feature {k + 1}" for k in range(x.shape[1]))

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Within, models remember what they are asked."""
        self.listening = True
        try:
            yield
        finally:
            self.listening = False

    def _seen(self, view: tuple[Matrix, tuple[str, ...]]) -> tuple[Matrix, tuple[str, ...]]:
        self._views.append(view)
        return view


def traced(entrant: Entrant, hidden_names: Sequence[str]) -> tuple[Explorer, TracedLearners]:
    """A tuner, and who watches it."""
    learners = TracedLearners(hidden_names)
    return create(entrant.tuner, learners, dict(entrant.settings)), learners


def lessons(memory: Memory) -> dict[str, Lesson]:
    """What the models of a watched tuner were last fitted on, by role."""
    return {
        role: model.lesson
        for role, model in memory.models.items()
        if isinstance(model, TracedModel) and model.lesson is not None
    }


def plain(memory: Memory) -> Memory:
    """The models themselves."""
    return Memory(
        {
            role: model.inner if isinstance(model, TracedModel) else model
            for role, model in memory.models.items()
        },
        memory.arrays,
    )
