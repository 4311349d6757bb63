"""Task scheduler, which runs the flows of workloads and allocates shared trials to them.

If workloads share their trials, each round goes to the workload with the largest expected saving,
as in Ansor's task scheduler. The decision depends only on the histories of the workloads, so a
resumed run makes the same decisions as an uninterrupted run. A flow is a generator. It yields a
`TrialRequest` and waits until the scheduler grants its next round.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Generic, Literal, TypedDict, TypeVar, cast

from tilewright.search import History, TrialRequest
from tilewright.search.expected_gain import best_latency, expected_saving
from tilewright.tuning.run_flows import Flow, Stopped
from tilewright.tuning.tuning_task import own_targets

R = TypeVar("R")

Why = Literal["gain", "trials", "exhausted", "time"]


class StopGain(TypedDict):
    """Entry about shared trials in `summary.json`.

    Attributes:
        share: the option `--stop-gain`.
        trials: number of trials of all workloads.
        most_trials: maximum number of trials of all workloads.
        why: reason why the run ended. `gain`: no round was expected to save more than `share`.
            `trials`: all trials were spent. `exhausted`: no untried config was left. `time`: the
            time limit was reached.
        expected_gain: fraction of the network's latency that the best next round was expected to
            save; None if there is no next round or no trial is valid.
    """

    share: float
    trials: int
    most_trials: int
    why: Why
    expected_gain: float | None


@dataclass(frozen=True)
class SharingRules:
    """Rules by which workloads share trials.

    Attributes:
        trials: average number of trials per workload.
        batch: number of trials per round.
        share: the run ends when no round is expected to save more than this fraction of the
            network's latency.
    """

    trials: int
    batch: int
    share: float


@dataclass(frozen=True)
class TaskState:
    """Progress of a workload.

    Attributes:
        count: number of calls per inference.
        macs: multiply-accumulates of one call.
        history: trials so far; None before the first request.
        asks: whether the workload waits for the scheduler to grant it a round.
        in_hand: number of trials of the round that is running; 0 if none is running.
        exhausted: whether no untried config is left.
        baseline: latency of one call without tuning, in the unit of `History.latency`; None if it
            is unknown or varies between measurements.
    """

    count: int
    macs: int
    history: History | None = None
    asks: bool = False
    in_hand: int = 0
    exhausted: bool = False
    baseline: float | None = None

    @property
    def latency(self) -> float:
        """Best known latency, summed over all calls of an inference; 0 if no latency is known."""
        best = None if self.history is None else best_latency(self.history)
        known = [item for item in (best, self.baseline) if item is not None]
        return self.count * min(known, default=0.0)

    def saving(self, trials: int) -> float:
        """Return the time per inference that the next round is expected to save.

        The prediction is described in `search.expected_gain`.

        Args:
            trials: maximum number of trials of the round.
        """
        if self.history is None:
            return 0.0
        return expected_saving(self.history, self.count, trials, self.baseline)

    @property
    def made(self) -> int:
        """Number of trials so far, including the trials of the running round."""
        return self.in_hand + (0 if self.history is None else len(self.history))

    @property
    def weight(self) -> int:
        """Multiply-accumulates of all calls of an inference."""
        return self.count * self.macs


def next_round(states: Sequence[TaskState], rules: SharingRules) -> tuple[int, int] | None:
    """Choose the workload that gets the next round, and its number of trials.

    The order of preference is:

    1. workloads without any round, those with the most multiply-accumulates first;
    2. workloads without a valid trial, until they have used the average number of trials;
    3. workloads whose expected saving exceeds `rules.share`, the largest saving first.

    Ties are resolved by the order of `states`.

    Args:
        states: progress of all workloads.
        rules: rules by which trials are shared.

    Returns:
        Index of the workload and its number of trials, or None if no waiting workload is eligible.
    """
    options: list[tuple[tuple[float, ...], int, int]] = []
    left, least = trials_left(states, rules), rules.share * _latency(states)
    for place, state in enumerate(states):
        if not state.asks or state.history is None:
            continue
        own = min(rules.batch, rules.trials - len(state.history))
        if state.history.round == 0:
            options.append(((0, -state.weight), place, own))
        elif best_latency(state.history) is None:
            if min(own, left) > 0:
                options.append(((1, len(state.history), -state.weight), place, min(own, left)))
        elif left > 0:
            saving = state.saving(min(rules.batch, left))
            if saving > least:
                options.append(((2, -saving), place, min(rules.batch, left)))
    return min(options)[1:] if options else None


def trials_left(states: Sequence[TaskState], rules: SharingRules) -> int:
    """Return the number of shared trials that are left.

    Args:
        states: progress of all workloads.
        rules: rules by which trials are shared.

    Returns:
        The number; negative if more trials were recorded in an earlier run.
    """
    return rules.trials * len(states) - sum(state.made for state in states)


def outcome(states: Sequence[TaskState], rules: SharingRules) -> StopGain:
    """Build the summary entry about shared trials at the end of a run.

    Args:
        states: progress of all workloads. No round may be running.
        rules: rules by which trials are shared.
    """
    left, total = trials_left(states, rules), _latency(states)
    able = [state for state in states if state.history is not None and not state.exhausted]
    savings = [
        item.saving(rules.batch) / total
        for item in able
        if item.history is not None and best_latency(item.history) is not None
    ]
    expected = max(savings, default=None)
    spent = left < 1 and (expected is None or expected > rules.share)
    return {
        "share": rules.share,
        "trials": sum(state.made for state in states),
        "most_trials": rules.trials * len(states),
        "why": "exhausted" if not able else "trials" if spent else "gain",
        "expected_gain": expected,
    }


def _latency(states: Sequence[TaskState]) -> float:
    """Return the best known latency of one inference, summed over the workloads."""
    return sum(state.latency for state in states)


class _Place(Enum):
    """Status of a flow. Flows with status `ASKS`, `RESTS` or `ENDS` wait to be resumed."""

    NEW = auto()
    BEGINS = auto()
    ASKS = auto()
    ROUND = auto()
    RESTS = auto()  # waits without an untried config
    ENDS = auto()  # waits to end, without a further round
    LAST = auto()
    GONE = auto()


@dataclass
class _Running(Generic[R]):
    """A flow that a `TaskScheduler` runs, and the progress of its workload.

    Attributes:
        flow: generator of the workload's steps.
        state: progress of the workload.
        context: context variables with which the flow runs.
        place: status of the flow.
        request: its last request for a round, if the flow waits for a round.
        results: list with the result of the flow; empty until the flow has ended.
    """

    flow: Flow[R]
    state: TaskState
    context: Context
    place: _Place = _Place.NEW
    request: TrialRequest | None = None
    results: list[R] = field(default_factory=list)


class TaskScheduler(Generic[R]):
    """Runs the flows of several workloads.

    If `at_a_time` is 1, all flows run in the calling thread. Otherwise they run in a pool of
    threads.

    Args:
        flows: flows of the workloads.
        states: progress of the workloads, in the same order.
        at_a_time: number of flows that run at the same time.
        rules: rules by which trials are shared. If None, each flow runs to its end, in order.
    """

    def __init__(
        self,
        flows: Sequence[Flow[R]],
        states: Sequence[TaskState],
        at_a_time: int = 1,
        rules: SharingRules | None = None,
    ) -> None:
        self.rules = rules
        self.at_a_time = at_a_time
        self.outcome: StopGain | None = None
        self._stop = threading.Event()
        self._tasks = [
            _Running(flow, state, copy_context()) for flow, state in zip(flows, states, strict=True)
        ]
        if at_a_time > 1 and rules is not None:
            for number, task in enumerate(self._tasks):  # a flow may change threads between rounds
                task.context.run(own_targets, number + 1)

    def run(self) -> list[R]:
        """Run all flows and return their results in order.

        After an error, no further flow starts, waiting flows are stopped, and running flows stop
        after their current round.

        Raises:
            Exception: the first exception of a flow.
        """
        try:
            if self.at_a_time == 1:
                while (task := self._next()) is not None:
                    self._advance(task)
                    self._settle(task)
            else:
                self._run_in_threads()
        except BaseException:
            self._stop.set()
            self._end_waiting()
            raise
        return [result for task in self._tasks for result in task.results]

    def _run_in_threads(self) -> None:
        running: dict[Future[None], _Running[R]] = {}
        pool = ThreadPoolExecutor(self.at_a_time)
        try:
            while True:
                while len(running) < self.at_a_time and (task := self._next()) is not None:
                    running[pool.submit(self._advance, task)] = task
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    task = running.pop(future)
                    future.result()
                    self._settle(task)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _advance(self, task: _Running[R]) -> None:
        """Run a flow until it requests trials or ends; store its request or result in `task`."""
        try:
            task.request = task.context.run(self._until_request, task)
        except StopIteration as end:
            task.results.append(cast(R, end.value))
            task.request = None

    def _until_request(self, task: _Running[R]) -> TrialRequest:
        while True:
            if self._stop.is_set():
                task.flow.throw(Stopped())
            request = next(task.flow)
            if request is None:
                continue
            if task.place is not _Place.LAST:
                return request
            request.granted = 0

    def _settle(self, task: _Running[R]) -> None:
        """Update the status of a flow, after it has requested a round or ended."""
        task.state = replace(task.state, in_hand=0)
        request = task.request
        if request is None:
            task.place = _Place.GONE
        elif request.exhausted:
            task.place = _Place.RESTS
            task.state = replace(task.state, exhausted=True)
        else:
            task.place = _Place.ASKS
            task.state = replace(
                task.state, history=request.history, baseline=request.baseline, exhausted=False
            )

    def _next(self) -> _Running[R] | None:
        """Return the next flow to run, or None if none may run before a running flow advances."""
        if self.rules is None:
            return self._resume(self._at(_Place.NEW), _Place.LAST)
        if new := self._at(_Place.NEW):
            return self._resume([max(new, key=lambda task: task.state.weight)], _Place.BEGINS)
        if self._at(_Place.BEGINS):  # its stored trials are not known yet
            return None
        states = self._states()
        if result := next_round(states, self.rules):
            number, trials = result
            task = self._tasks[number]
            assert task.request is not None, "it asked for this"
            task.request.granted = trials
            task.request.made = sum(state.made for state in states)
            task.state = replace(task.state, in_hand=trials)
            return self._resume([task], _Place.ROUND)
        if self._at(_Place.ROUND):  # the result may make another round worthwhile
            return None
        waiting = self._at(_Place.ASKS, _Place.RESTS)
        if waiting:
            self.outcome = outcome(states, self.rules)
        for task in waiting:
            task.place = _Place.ENDS
        return self._resume(self._at(_Place.ENDS), _Place.LAST)

    def _resume(self, tasks: Sequence[_Running[R]], place: _Place) -> _Running[R] | None:
        """Set the status of the first flow in `tasks` to `place`, and return this flow.

        Returns:
            The flow, or None if `tasks` is empty.
        """
        if not tasks:
            return None
        tasks[0].place = place
        return tasks[0]

    def _at(self, *places: _Place) -> list[_Running[R]]:
        return [task for task in self._tasks if task.place in places]

    def _states(self) -> list[TaskState]:
        return [replace(task.state, asks=task.place is _Place.ASKS) for task in self._tasks]

    def _end_waiting(self) -> None:
        """Stop the waiting flows, so that each of them reports that it was stopped."""
        for task in self._at(_Place.ASKS, _Place.RESTS, _Place.ENDS):
            with suppress(Exception):
                task.context.run(task.flow.throw, Stopped())
