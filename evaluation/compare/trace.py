"""Watching a tuner learn: which features its models saw, by name, and what they said.

An explorer gets features and untrained models from a `Learners` and from nowhere else; so one that
watches tells of any tuner, also of one written later, what no tuner has to tell by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from evaluation.compare.plan import TunerConfig
from models import LEARNERS
from search import Explorer, ExplorerState, Problem, create
from search.learning import CostModel, Learners, Matrix
from targets.base import Target

ROLES = {
    "P": "Model P: performance, from what is known before compiling",
    "V": "Model V: validity",
    "A": "Model A: performance, with what compiling reveals",
}
_VIEWS = 12  # feature matrices remembered
_MODEL = ("fit", "predict", "save", "load")


@dataclass(frozen=True)
class FitRecord:
    """What a model was fitted on: rows (n, names), their targets (n,), the columns' names."""

    x: Matrix
    y: NDArray[np.float64]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Query:
    """What a model was asked and what it said."""

    x: Matrix
    predicted: NDArray[np.float64]


@dataclass
class TracedModel:
    """A model that remembers what it was fitted on, and what it was asked while somebody listens.
    Everything else is the model's own."""

    inner: CostModel
    learners: TracedLearners
    fit_record: FitRecord | None = None
    queries: list[Query] = field(default_factory=list)

    def fit(self, x: Matrix, y: NDArray[np.float64]) -> None:
        self.fit_record = FitRecord(x, y, self.learners.names_of(x))
        self.inner.fit(x, y)

    def predict(self, x: Matrix) -> NDArray[np.float64]:
        predicted = self.inner.predict(x)
        if self.learners.listening:
            self.queries.append(Query(x, predicted))
        return predicted

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class TracedLearners:
    """The learners of `models`, watched: whatever they give, features are noted and models traced.

    `estimates` and `hidden` name the columns that a tuner may put behind a view of the knobs."""

    def __init__(self, estimates: tuple[str, ...], hidden: tuple[str, ...]) -> None:
        self.estimates = estimates
        self.hidden = hidden
        self.listening = False
        self._views: deque[tuple[Matrix, tuple[str, ...]]] = deque(maxlen=_VIEWS)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(LEARNERS, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            given = method(*args, **kwargs)
            if all(hasattr(given, part) for part in _MODEL):
                return TracedModel(given, self)
            if isinstance(given, tuple) and len(given) == 2:
                self._views.append(given)
            return given

        return call

    def names_of(self, x: Matrix) -> tuple[str, ...]:
        """The names of a matrix's columns: those of the views it is put together from; columns
        between them are estimates and hidden features, told by how many there are."""
        width = int(x.shape[1])
        found: tuple[str, ...] = ()
        at = begin = 0
        while at < width:
            names = self._view_at(x, at)
            if names:
                found += self._behind(at - begin, found) + names
                begin = at + len(names)
            at += max(len(names), 1)
        return found + self._behind(width - begin, found) if found else _numbered("feature", width)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Within, models remember what they are asked."""
        self.listening = True
        try:
            yield
        finally:
            self.listening = False

    def _view_at(self, x: Matrix, at: int) -> tuple[str, ...]:
        """The names of the widest view whose columns `x` holds from column `at` on."""
        for matrix, names in sorted(self._views, key=lambda view: -view[0].shape[1]):
            part = x[:1, at : at + len(names)]
            if part.size and part.shape[1] == len(names) and (matrix == part).all(axis=1).any():
                return names
        return ()

    def _behind(self, count: int, before: tuple[str, ...]) -> tuple[str, ...]:
        """The names of columns behind those `before`."""
        estimates = tuple(f"estimated {name}" for name in self.estimates)
        counts = tuple(f"hidden {name}" for name in self.hidden)
        for names in ((), counts, estimates, (*estimates, *counts)):
            if len(names) == count:
                return names
        if count == 1:
            return ("draft",) if before and before[-1].startswith("hidden") else ("estimate",)
        return _numbered("estimate", count)


def traced(
    tuner_config: TunerConfig, target: Target, problem: Problem
) -> tuple[Explorer, TracedLearners]:
    """A tuner, and who watches it."""
    estimates = () if problem.estimate is None else problem.estimate(_first(problem))[1]
    learners = TracedLearners(tuple(estimates), hidden_names(target, problem))
    explorer = create(tuner_config.tuner, cast(Learners, learners), dict(tuner_config.settings))
    return explorer, learners


def hidden_names(target: Target, problem: Problem) -> tuple[str, ...]:
    """What lowering on this target reveals."""
    return target.lower(problem.workload, _first(problem)).hidden_names


def fit_records(state: ExplorerState) -> dict[str, FitRecord]:
    """What the models of a watched tuner were last fitted on, by role."""
    return {
        role: model.fit_record
        for role, model in state.models.items()
        if isinstance(model, TracedModel) and model.fit_record is not None
    }


def plain(state: ExplorerState) -> ExplorerState:
    """The models themselves."""
    return ExplorerState(
        {
            role: model.inner if isinstance(model, TracedModel) else model
            for role, model in state.models.items()
        },
        state.arrays,
    )


def _first(problem: Problem) -> NDArray[np.int32]:
    """A config of the space, shape (1, knobs)."""
    space = problem.space
    flat = np.zeros(1, np.int64) if space.listed is None else np.array(space.listed[:1])
    return space.unravel(flat)


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name} {k + 1}" for k in range(count))
