"""Workloads that share their trials, each in a thread of its own, which acts only while it has a
turn: its first steps until all that is recorded of it is known, then a round at a time as
`tuning.task_scheduler` says, at last the choice and proof of its schedule.

Where one has a turn at a time, the next round is chosen while none has one, so that the choice does
not depend on speed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import TracebackType

from tilewright.core.errors import TilewrightError
from tilewright.search import History
from tilewright.tuning.task_scheduler import SharingRules, StopGain, TaskState, next_round, outcome


class Stopped(TilewrightError):
    """A workload that was given up since another one failed, or a person stopped the run."""


class _Place(Enum):
    """Where a workload is on its way: `ASKS`, `RESTS` and `ENDS` wait for a turn."""

    NEW = auto()
    BEGINS = auto()
    ASKS = auto()
    ROUND = auto()
    RESTS = auto()  # nothing left to try
    ENDS = auto()  # gets no more rounds
    LAST = auto()
    GONE = auto()


_AT_WORK = (_Place.BEGINS, _Place.ROUND, _Place.LAST)


@dataclass
class _State:
    task: TaskState
    place: _Place = _Place.NEW


class TaskScheduler:
    """Gives turns to workloads, at most `at_a_time` at once, and rounds by the rules. `stop` ends
    it: a waiting task then gets `Stopped`."""

    def __init__(
        self,
        states: Sequence[TaskState],
        rules: SharingRules,
        at_a_time: int,
        stop: threading.Event,
    ) -> None:
        self.rules = rules
        self._states = [_State(each) for each in states]
        self._at_a_time = at_a_time
        self._stop = stop
        self._changed = threading.Condition()
        self._outcome: StopGain | None = None

    @property
    def tasks(self) -> list[ScheduledTask]:
        """A task for each workload, in their order."""
        return [ScheduledTask(self, number) for number in range(len(self._states))]

    @property
    def outcome(self) -> StopGain:
        """What to say of the run, once all of it is over."""
        assert self._outcome is not None, "rounds are given until none is left"
        return self._outcome

    @property
    def trials(self) -> int:
        """Those of all workloads, with those in hand."""
        return sum(each.made for each in self._task_states())

    @property
    def most_trials(self) -> int:
        """That all workloads may make together."""
        return self.rules.trials * len(self._states)

    def stop(self) -> None:
        """No more turns."""
        with self._changed:
            self._stop.set()
            self._changed.notify_all()

    def begin(self, number: int) -> None:
        """Wait for the first turn. Raises `Stopped`."""
        with self._changed:
            self._give_turns()
            self._wait(number)

    def tell_baseline(self, number: int, latency: float) -> None:
        """What a call takes without trials, of one that has its first turn."""
        with self._changed:
            state = self._states[number]
            state.task = replace(state.task, baseline=latency)

    def ask(self, number: int, history: History) -> int:
        """Give the turn back and wait for a round or for the end: returns how many trials the round
        may have, 0 at the end. Raises `Stopped`."""
        with self._changed:
            state = self._states[number]
            state.task = replace(state.task, history=history, exhausted=False)
            self._put(number, _Place.ASKS)
            self._wait(number)
            return state.task.in_hand if state.place is _Place.ROUND else 0

    def rest(self, number: int) -> None:
        """Wait for the end if it is not there yet: nothing is left to try. Raises `Stopped`."""
        with self._changed:
            state = self._states[number]
            if state.place is _Place.ROUND:
                state.task = replace(state.task, exhausted=True)
                self._put(number, _Place.RESTS)
                self._wait(number)

    def leave(self, number: int) -> None:
        """Give the turn back for good."""
        with self._changed:
            self._put(number, _Place.GONE)

    def _put(self, number: int, place: _Place) -> None:
        state = self._states[number]
        state.place, state.task = place, replace(state.task, in_hand=0)
        self._give_turns()

    def _wait(self, number: int) -> None:
        state = self._states[number]
        self._changed.wait_for(lambda: self._stop.is_set() or state.place in _AT_WORK)
        if self._stop.is_set():
            raise Stopped("stopped; the same command goes on from here")

    def _give_turns(self) -> None:
        """Give all turns that can be given now."""
        while self._count(*_AT_WORK) < self._at_a_time and self._give_turn():
            pass
        self._changed.notify_all()

    def _give_turn(self) -> bool:
        if new := self._those(_Place.NEW):
            first = max(new, key=lambda number: (self._states[number].task.weight, -number))
            self._states[first].place = _Place.BEGINS
            return True
        if self._count(_Place.BEGINS):  # what is recorded of it counts
            return False
        if found := next_round(self._task_states(), self.rules):
            number, trials = found
            state = self._states[number]
            state.place, state.task = _Place.ROUND, replace(state.task, in_hand=trials)
            return True
        if self._count(_Place.ROUND):  # after it another may be worth its trials
            return False
        if self._count(_Place.ASKS, _Place.RESTS):
            self._outcome = outcome(self._task_states(), self.rules)
        for number in self._those(_Place.ASKS, _Place.RESTS):
            self._states[number].place = _Place.ENDS
        if ends := self._those(_Place.ENDS):
            self._states[ends[0]].place = _Place.LAST
            return True
        return False

    def _task_states(self) -> list[TaskState]:
        return [replace(each.task, asks=each.place is _Place.ASKS) for each in self._states]

    def _those(self, *places: _Place) -> list[int]:
        return [number for number, each in enumerate(self._states) if each.place in places]

    def _count(self, *places: _Place) -> int:
        return len(self._those(*places))


@dataclass
class ScheduledTask:
    """One workload of a shared run: a context that begins with its first turn and ends with
    its last. One that fails stops all others. `waited` are seconds without a turn in between."""

    scheduler: TaskScheduler
    number: int
    waited: float = field(default=0.0, init=False)

    def __enter__(self) -> ScheduledTask:
        self.scheduler.begin(self.number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.scheduler.stop()
        self.scheduler.leave(self.number)

    def tell_baseline(self, latency: float) -> None:
        """What a call takes without trials, in the unit of `History.latency`, before it asks for
        more."""
        self.scheduler.tell_baseline(self.number, latency)

    def more(self, history: History) -> int:
        """How many trials the next round may have, once it is this workload's turn; 0 if there is
        to be no other round. Raises `Stopped`."""
        begin = time.perf_counter()
        try:
            return self.scheduler.ask(self.number, history)
        finally:
            self.waited += time.perf_counter() - begin

    def rest(self) -> None:
        """Wait until no workload gets another round. Raises `Stopped`."""
        begin = time.perf_counter()
        self.scheduler.rest(self.number)
        self.waited += time.perf_counter() - begin
