"""Describes the rounds of a run to those who watch it, and to those who share its trials."""

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
    """What one round did. `lowered` and `failed_compiles` count configs beyond the trials; `best`
    is the fastest of the whole run so far, None if nothing was valid. `session` is the one after
    the round."""

    index: int
    candidates: int  # that the explorer named
    vetoed: int  # of those looked at, by Model V
    lowered: int
    failed_compiles: int
    configs: Configs  # the trials, in order
    measured: Measurements
    best: Latency | None
    best_config: Configs | None  # shape (knobs,)
    model_errors: dict[str, float] = field(default_factory=dict)
    stage_seconds: dict[str, float] = field(default_factory=dict)
    reused: bool = False  # read from the trial store, not done now
    session: Session = field(kw_only=True, repr=False)

    @property
    def best_latency(self) -> float | None:
        """In the unit of `Measurements.latency`: cycles where the target counts them."""
        if self.best is None or self.best.cycles > 0:
            return self.best_cycles
        return self.best.seconds

    @property
    def best_cycles(self) -> int | None:
        """None on a target that counts none, too."""
        return None if self.best is None or self.best.cycles < 0 else self.best.cycles


def describe_round(
    session: Session, batch: Batch, recorded: Mapping[str, float] | None = None
) -> Round:
    """Return what the last round of a session did, whose batch was `batch`. For a round that was
    read from the trial store, the errors of the models are those that it `recorded`."""
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
    """A workload that shares its trials waits for the next round, or has nothing left to try.

    Resuming it sets `granted`, 0 to end its rounds, and `made`: the trials of all workloads
    until then. `baseline` is the latency without trials, in the unit of `History.latency`, where it
    is the same each time.
    """

    history: History
    exhausted: bool = False
    baseline: float | None = None
    granted: int = 0
    made: int = 0


class Stopwatch:
    """Wall-clock seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Add the time of what is done within to a stage, unless it fails."""
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


def latency_at(history: History, row: int | None) -> Latency | None:
    """Of one trial; None for no row."""
    if row is None:
        return None
    return Latency(float(history.seconds[row]), int(history.cycles[row]))
