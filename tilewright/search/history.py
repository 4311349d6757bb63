"""Trials of a run as arrays, with estimates of measurement noise and detection of equal programs.

If a target's measurements vary, it repeats each measurement and reports the median. The error of
the median is estimated from the repeats of each trial, so that models give precise trials more
weight.

Some knobs have no effect on some workloads, so different configs can compile to equal programs.
Equal programs are recognised after compilation by their equal hidden features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilewright.search.problem import Problem
from tilewright.targets.base import Configs, Lowered, Measurements, Ragged, Space, latency_of
from tilewright.targets.features import Features

_PRIOR = 4.0  # weight of the common variance, in degrees of freedom
_MEDIAN = np.pi / 2.0  # variance of the median / variance of the mean, for normal noise


@dataclass(frozen=True)
class History:
    """All trials of complete rounds, oldest first.

    Attributes:
        configs: knob indices, int32 array of shape (n, knobs).
        status: status of each trial as in `Measurements`, shape (n,).
        cycles: measured cycles, int64, shape (n,).
        seconds: measured seconds, float64, shape (n,).
        rounds: index of the round of each trial, int32, shape (n,).
        hidden: hidden features (counters from compilation) with one row per trial; NaN where
            compilation failed.
        failed: configs that were lowered, did not compile and are not trials, shape (m, knobs).
        round: index of the next round.
        pending: configs that other processes are measuring at this moment, shape (p, knobs), or
            None.
        repeats: seconds of each repetition of each trial; None if the target does not repeat
            measurements.
        compiled: configs that compiled but were not measured, shape (k, knobs). They are kept only
            for tuners that set `BatchChoice.keep_compiled`.
        compiled_hidden: hidden features of `compiled`.
    """

    configs: Configs
    status: NDArray[np.object_]
    cycles: NDArray[np.int64]
    seconds: NDArray[np.float64]
    rounds: NDArray[np.int32]
    hidden: Features
    failed: Configs
    round: int = 0
    pending: Configs | None = None
    repeats: Ragged | None = None
    compiled: Configs | None = None
    compiled_hidden: Features | None = None

    @staticmethod
    def empty(space: Space) -> History:
        """Return the history before the first round, without trials.

        Args:
            space: the search space; it determines the number of knobs.
        """
        knobs = len(space.knobs)
        return History(
            np.empty((0, knobs), np.int32), np.empty(0, object), np.empty(0, np.int64),
            np.empty(0), np.empty(0, np.int32), Features.empty(0), np.empty((0, knobs), np.int32),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.configs)

    @cached_property
    def valid(self) -> NDArray[np.bool_]:
        """Bool array of shape (n,): True for trials that ran and gave correct results."""
        return np.asarray(self.status == "valid", dtype=np.bool_)

    @cached_property
    def latency(self) -> NDArray[np.float64]:
        """Latency of each trial, shape (n,); NaN where a trial is not valid.

        The unit is cycles if the target counts them, otherwise seconds.
        """
        return np.where(self.valid, latency_of(self.cycles, self.seconds), np.nan)

    @cached_property
    def possible_latency(self) -> NDArray[np.float64]:
        """Latency of each trial, shape (n,); infinite where it is not valid or not positive."""
        latency = self.latency
        return np.where(np.isfinite(latency) & (np.nan_to_num(latency) > 0), latency, np.inf)

    @property
    def log_latency(self) -> NDArray[np.float64]:
        """log2 of `latency`, shape (n,); the training target of the performance models."""
        return np.log2(self.latency)

    @property
    def throughput(self) -> NDArray[np.float64]:
        """Reciprocal of the latency, shape (n,); 0 where a trial is not valid."""
        return np.where(self.valid, 1.0 / self.latency, 0.0)

    @property
    def best(self) -> int | None:
        """Row of the fastest valid trial, or None if no trial is valid."""
        return int(self.fastest(1)[0]) if self.valid.any() else None

    def fastest(self, count: int) -> NDArray[np.int64]:
        """Return the rows of the fastest valid trials, fastest first.

        Args:
            count: maximum number of rows to return.

        Returns:
            Row indices of shape (at most count,).
        """
        valid = np.flatnonzero(self.valid)
        return valid[np.argsort(self.latency[valid], kind="stable")[:count]]

    def tried_indices(self, space: Space) -> NDArray[np.int64]:
        """Return the flat indices of configs that must not be proposed again, ascending.

        These are the trials, the configs that did not compile, and the configs that other processes
        are measuring.

        Args:
            space: the space of the configs.
        """
        known = np.concatenate(
            [self.configs, self.failed, *([] if self.pending is None else [self.pending])]
        )
        return np.unique(space.ravel(known)) if len(known) else np.empty(0, np.int64)

    def unmeasured_configs(self, space: Space) -> tuple[Configs, Features]:
        """Return the configs that compiled but have not been measured, with their hidden features.

        Configs that other processes are measuring now are left out.

        Args:
            space: the space of the configs.

        Returns:
            Configs of shape (k, knobs), and hidden features with one row per config.
        """
        if self.compiled is None or self.compiled_hidden is None:
            return self.configs[:0], Features.empty(0)
        left = ~np.isin(space.ravel(self.compiled), self.tried_indices(space))
        return self.compiled[left], self.compiled_hidden.rows(left)

    def extend(
        self, lowered: Lowered, measured: Measurements, failed: Configs,
        compiled: Lowered | None = None,
    ) -> History:  # fmt: skip
        """Return the history with one more round, whose trials have been measured.

        Args:
            lowered: the measured configs after lowering, in the order of the trials.
            measured: measurements of `lowered`, one per row.
            failed: configs that were lowered in this round, did not compile and are not trials,
                shape (m, knobs).
            compiled: programs that compiled but were not measured, which a later round may measure;
                None if the tuner does not keep them.
        """
        columns = lowered.hidden.columns if len(self) == 0 else self.hidden.columns
        new = lowered.hidden.matrix if lowered.hidden.columns == columns else None
        if new is None:  # no config of this round compiled, so the target reported other columns
            new = np.full((len(lowered), len(columns)), np.nan)
        past = self.hidden.matrix if len(self) else np.empty((0, len(columns)))
        kept, kept_hidden = self._compiled_after(lowered, compiled)
        return replace(
            self,
            configs=np.concatenate([self.configs, lowered.configs]),
            status=np.concatenate([self.status, measured.status]),
            cycles=np.concatenate([self.cycles, measured.cycles]),
            seconds=np.concatenate([self.seconds, measured.seconds]),
            rounds=np.concatenate([self.rounds, np.full(len(lowered), self.round, dtype=np.int32)]),
            hidden=Features(np.concatenate([past, new]), columns),
            failed=np.concatenate([self.failed, failed]),
            round=self.round + 1,
            repeats=self._repeats(len(lowered), measured.repeats),
            compiled=kept,
            compiled_hidden=kept_hidden,
        )

    def _compiled_after(
        self, measured: Lowered, new: Lowered | None
    ) -> tuple[Configs | None, Features | None]:
        """Return the compiled but unmeasured configs after a round, and their hidden features.

        They are the configs of earlier rounds that are still unmeasured, followed by the configs of
        `new`. Both results are None if the tuner does not keep such configs.

        Args:
            measured: the configs that this round has measured.
            new: the configs that this round compiled but did not measure, or None.
        """
        configs, hidden = self.compiled, self.compiled_hidden
        if configs is not None and hidden is not None:
            left = ~_occur_in(configs, measured.configs)
            configs, hidden = configs[left], hidden.rows(left)
        if new is None or not len(new):
            return configs, hidden
        if configs is None or hidden is None or not len(configs):
            return new.configs, new.hidden
        if hidden.columns != new.hidden.columns:
            return configs, hidden
        new = new.rows(~_occur_in(new.configs, configs))  # some configs were lowered a second time
        matrix = np.concatenate([hidden.matrix, new.hidden.matrix])
        return np.concatenate([configs, new.configs]), Features(matrix, hidden.columns)

    def _repeats(self, rows: int, new: Ragged | None) -> Ragged | None:
        if self.repeats is None and new is None:
            return None
        return Ragged.concatenate([(len(self), self.repeats), (rows, new)])


def _occur_in(configs: Configs, others: Configs) -> NDArray[np.bool_]:
    """Return a bool array of shape (n,) that is True for rows of `configs` that occur in `others`.

    Args:
        configs: configs of shape (n, knobs).
        others: configs of shape (m, knobs).
    """
    known = {config.tobytes() for config in others}
    return np.array([config.tobytes() in known for config in configs], dtype=np.bool_)


def trials_of(problem: Problem, history: History) -> Lowered:
    """Convert the valid trials to a `Lowered` batch, the input format of the models.

    The batch contains no programs.

    Args:
        problem: the problem that was tuned.
        history: its trials.

    Returns:
        A batch with one row per valid trial.
    """
    rows = np.flatnonzero(history.valid)
    texts = np.full(len(rows), "", dtype=object)
    return Lowered(problem.workload, history.configs[rows], texts, texts, history.hidden.rows(rows))


def noise_of(problem: Problem, history: History) -> NDArray[np.float64] | None:
    """Estimate the noise variance of the log2 latency of each valid trial from its repeats.

    Args:
        problem: the problem that was tuned.
        history: its trials.

    Returns:
        Array of shape (valid trials,). None if the target is deterministic or no trial was
        repeated.
    """
    if problem.deterministic or history.repeats is None:
        return None
    return figure_variance(history.repeats.rows(history.valid))


def figure_variance(repeats: Ragged) -> NDArray[np.float64] | None:
    """Estimate the variance of each trial's median latency, on a log2 scale.

    A variance that is estimated from few repeats is uncertain. Each estimate is therefore shrunk
    towards the common variance of all trials, as in empirical Bayes (Smyth, Linear models and
    empirical Bayes methods, 2004).

    Args:
        repeats: repeated measurements of each trial in seconds.

    Returns:
        Array of shape (trials,), or None if no trial has two valid repeats.
    """
    rows = [repeats[place] for place in range(len(repeats))]
    logs = [np.log2(row[np.isfinite(row) & (row > 0)]) for row in rows]
    counts = np.array([len(row) for row in logs], dtype=np.float64)
    several = counts >= 2
    if not several.any():
        return None
    own = np.array([row.var(ddof=1) if len(row) >= 2 else 0.0 for row in logs])
    common = float(np.median(own[several]))
    freedom = np.where(several, counts - 1.0, 0.0)
    shrunk = (freedom * own + _PRIOR * common) / (freedom + _PRIOR)
    return np.asarray(_MEDIAN * shrunk / np.maximum(counts, 1.0))


def new_programs(history: History, hidden: Features) -> NDArray[np.int64]:
    """Find the compiled programs that do not duplicate a measured program or a preceding row.

    Different configs can compile to equal programs, which need not be measured twice. Two programs
    are treated as equal if their hidden features are equal.

    Args:
        history: trials so far. Only valid trials count as measured.
        hidden: hidden features of the compiled programs, one row per program.

    Returns:
        Row indices into `hidden`, ascending; all rows if there are no hidden features.
    """
    if not hidden.columns:
        return np.arange(len(hidden))
    seen = _measured_variance(history, hidden)
    _, first = np.unique(np.concatenate([seen, hidden.matrix]), axis=0, return_index=True)
    return np.sort(first[first >= len(seen)]) - len(seen)


def _measured_variance(history: History, hidden: Features) -> NDArray[np.float64]:
    """Return the hidden features of the valid trials, as a matrix with one row per trial.

    Args:
        history: trials so far.
        hidden: hidden features of other programs. If the trials have other columns than these, the
            matrix has no rows.
    """
    seen = history.hidden.rows(history.valid)
    return seen.matrix if seen.columns == hidden.columns else np.empty((0, len(hidden.columns)))
