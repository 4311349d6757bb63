"""Immutable state of a run: the session of a task, and the batch of a round."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.search.explorer import ExplorerState
from tilewright.search.history import History
from tilewright.search.task import Task
from tilewright.targets.base import Configs, Lowered, Measurements


@dataclass(frozen=True)
class Batch:
    """The configs of one round: their programs, hidden features, predictions and measurements.

    A tuner with Model A lowers more configs than it measures. The attributes `unmeasured_…`
    describe the configs that were lowered but not chosen. A batch that was read from the trial
    store has neither reasons nor scores.

    Attributes:
        rows: the configs to measure, lowered.
        scores: predictions for `rows` by role of the model, each of shape (n,).
        unmeasured_failed: unmeasured configs that did not compile, shape (m, knobs).
        unmeasured_count: number of all unmeasured configs that were lowered.
        reasons: reason of each config that did not compile.
        candidates: number of configs that the tuner proposed.
        vetoed: number of configs that Model V, the validity classifier, vetoed.
        unmeasured_compiled: unmeasured configs that compiled and that a later round may measure,
            without their programs; None if the tuner does not keep them.
        measured: the measurements of `rows`; None before they were made.
        stage_seconds: duration of each step in seconds.
    """

    rows: Lowered
    scores: dict[str, NDArray[np.float64]]
    unmeasured_failed: Configs
    unmeasured_count: int
    reasons: tuple[str, ...] = ()
    candidates: int = 0
    vetoed: int = 0
    unmeasured_compiled: Lowered | None = None
    measured: Measurements | None = None
    stage_seconds: dict[str, float] = field(default_factory=dict)

    def measurements(self) -> Measurements:
        """Return the measurements of the batch, which must have been measured."""
        assert self.measured is not None, "the batch was not measured"
        return self.measured

    def take(self, rows: NDArray[np.int64]) -> Batch:
        """Return the batch with only the given rows.

        Args:
            rows: indices of the rows to keep, shape (n,).
        """
        return replace(
            self,
            rows=self.rows.rows(rows),
            scores={name: values[rows] for name, values in self.scores.items()},
            measured=None if self.measured is None else self.measured.rows(rows),
        )


@dataclass(frozen=True)
class Session:
    """The trials and the fitted models of a task so far.

    Attributes:
        history: the trials.
        models: state that the tuner carries from round to round.
        unlearned: the history after each round from which the models have not learned yet.
            `flows.tuning.learn` retrains the models before they are needed next.
        begun: whether the tuner's method `begin` was called.
    """

    history: History
    models: ExplorerState
    unlearned: tuple[History, ...] = ()
    begun: bool = False

    @staticmethod
    def start(task: Task, models: ExplorerState | None = None) -> Session:
        """Return the session before the first round.

        Args:
            task: the task to tune.
            models: a tuner's state that was learned elsewhere, if there is one.
        """
        return Session(History.empty(task.problem.space), models or ExplorerState())

    def extend(self, batch: Batch) -> Session:
        """Return the session after a batch was measured.

        Args:
            batch: the measured batch.
        """
        history = self.history.extend(
            batch.rows, batch.measurements(), batch.unmeasured_failed, batch.unmeasured_compiled
        )
        return replace(self, history=history, unlearned=(*self.unlearned, history))

    def with_begun(self, models: ExplorerState) -> Session:
        """Return the session with the state that the tuner prepared for the first round.

        Args:
            models: the state that the tuner's method `begin` returned.
        """
        return replace(self, models=models, begun=True)

    def with_learned(self, models: ExplorerState) -> Session:
        """Return the session with retrained models, without the round from which they learned.

        Args:
            models: the tuner's state after it learned from the first round of `unlearned`.
        """
        return replace(self, models=models, unlearned=self.unlearned[1:])

    def with_shared(self, state: ExplorerState) -> Session:
        """Return the session before the first round, with what was learned on other workloads.

        Args:
            state: result of `Explorer.share` for the workloads of the run that are finished.
        """
        if not state.arrays:
            return self
        arrays = {**self.models.arrays, **state.arrays}
        return replace(self, models=replace(self.models, arrays=arrays))

    def with_pending(self, pending: Configs | None) -> Session:
        """Return the session with the configs that other processes are measuring now.

        Args:
            pending: configs of shape (p, knobs), which the tuner must not propose; None leaves the
                session unchanged.
        """
        if pending is None:
            return self
        return replace(self, history=replace(self.history, pending=pending))
