"""Summaries of finished rounds, and requests for the next round, which the scheduler answers.

The summaries are used by progress displays and by the scheduler that distributes trials among
workloads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilewright.search.history import History
from tilewright.search.round_steps import model_errors
from tilewright.search.session import Batch, Session
from tilewright.targets.base import Configs, Measurements
from tilewright.targets.capabilities import Latency


@dataclass(frozen=True)
class Round:
    """Result of one round.

    Attributes:
        index: index of the round.
        candidates: number of candidates that the tuner proposed.
        vetoed: number of candidates that Model V, the validity classifier, vetoed.
        lowered: number of configs that were lowered but not measured.
        failed_compiles: number of configs among `lowered` that did not compile.
        configs: configs of the trials, in order, shape (n, knobs).
        measured: measurements of `configs`.
        best: latency of the fastest trial of the run so far, or None if no trial is valid.
        best_config: config of the fastest trial, shape (knobs,), or None.
        model_errors: errors of the models' predictions for this batch, by name.
        stage_seconds: duration of each stage in seconds.
        reused: whether the round was read from the trial store instead of being measured.
        session: session after the round.
    """

    index: int
    candidates: int
    vetoed: int
    lowered: int
    failed_compiles: int
    configs: Configs
    measured: Measurements
    best: Latency | None
    best_config: Configs | None
    model_errors: dict[str, float] = field(default_factory=dict)
    stage_seconds: dict[str, float] = field(default_factory=dict)
    reused: bool = False
    session: Session = field(kw_only=True, repr=False)

    @property
    def best_latency(self) -> float | None:
        """Best latency so far in cycles if the target counts them, else in seconds.

        None if no trial is valid.
        """
        if self.best is None or self.best.cycles > 0:
            return self.best_cycles
        return self.best.seconds

    @property
    def best_cycles(self) -> int | None:
        """Best latency so far in cycles.

        None if no trial is valid or the target does not count cycles.
        """
        return None if self.best is None or self.best.cycles < 0 else self.best.cycles


def describe_round(
    session: Session, batch: Batch, recorded: Mapping[str, float] | None = None
) -> Round:
    """Summarise the last round of a session for progress displays and for the scheduler.

    Args:
        session: session after the round.
        batch: batch of the round.
        recorded: stored errors of the models by name, if the round was read from the trial store.
            If None, the errors are computed from the batch.
    """
    history, measured = session.history, batch.measurements()
    best = history.best
    return Round(
        index=history.round - 1,
        candidates=batch.candidates,
        vetoed=batch.vetoed,
        lowered=batch.unmeasured_count,
        failed_compiles=len(batch.unmeasured_failed),
        configs=batch.rows.configs,
        measured=measured,
        best=latency_at(history, best),
        best_config=None if best is None else history.configs[best],
        model_errors=model_errors(batch.scores, measured) if recorded is None else dict(recorded),
        stage_seconds=batch.stage_seconds,
        reused=recorded is not None,
        session=session,
    )


@dataclass
class TrialRequest:
    """A workload's request for its next round, in a run whose workloads share the trials.

    The workload sets `history`, `exhausted` and `baseline`. The scheduler answers by setting
    `granted` and `made`.

    Attributes:
        history: trials of the workload so far.
        exhausted: whether no untried config is left.
        baseline: latency without tuning, in the unit of `History.latency`; None if it is unknown or
            varies between measurements.
        granted: number of trials that the scheduler grants; 0 ends the tuning of the workload.
        made: number of trials of all workloads so far.
    """

    history: History
    exhausted: bool = False
    baseline: float | None = None
    granted: int = 0
    made: int = 0


class Stopwatch:
    """Measures the wall-clock time of stages.

    The attribute `seconds` contains the total time of each stage so far, by name.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the duration of the `with` block to the total of `stage`, unless the block raises."""
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


def latency_at(history: History, row: int | None) -> Latency | None:
    """Return the latency of one trial.

    Args:
        history: trials of a workload.
        row: index of the trial, or None if there is no such trial.

    Returns:
        The latency in cycles and seconds, or None if `row` is None.
    """
    if row is None:
        return None
    return Latency(float(history.seconds[row]), int(history.cycles[row]))
