"""Workloads that share their trials, each in a thread of its own, which acts only while it has a
turn: its first steps until all that is recorded of it is known, then a round at a time as
`tuning.task_scheduler` says, at last the choice and proof of its schedule.

Where one has a turn at a time, rounds are dealt while nobody has one, so that nothing depends on
who is faster.
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
    standing: TaskState
    place: _Place = _Place.NEW


class Dealer:
    """Gives turns to workloads, at most `at_a_time` at once, and rounds by the rules. `stop` ends
    it: whoever waits then gets `Stopped`."""

    def __init__(
        self,
        standings: Sequence[TaskState],
        rules: SharingRules,
        at_a_time: int,
        stop: threading.Event,
    ) -> None:
        self.rules = rules
        self._states = [_State(each) for each in standings]
        self._at_a_time = at_a_time
        self._stop = stop
        self._changed = threading.Condition()
        self._outcome: StopGain | None = None

    @property
    def seats(self) -> list[Seat]:
        """A seat for each workload, in their order."""
        return [Seat(self, number) for number in range(len(self._states))]

    @property
    def outcome(self) -> StopGain:
        """What to say of the run, once all of it is over."""
        assert self._outcome is not None, "rounds are dealt until none is"
        return self._outcome

    @property
    def trials(self) -> int:
        """Those of all workloads, with those in hand."""
        return sum(each.made for each in self._standings())

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
            self._deal()
            self._wait(number)

    def tell_baseline(self, number: int, latency: float) -> None:
        """What a call takes without trials, of one that has its first turn."""
        with self._changed:
            state = self._states[number]
            state.standing = replace(state.standing, baseline=latency)

    def ask(self, number: int, history: History) -> int:
        """Give the turn back and wait for a round or for the end: returns how many trials the round
        may have, 0 at the end. Raises `Stopped`."""
        with self._changed:
            state = self._states[number]
            state.standing = replace(state.standing, history=history, exhausted=False)
            self._put(number, _Place.ASKS)
            self._wait(number)
            return state.standing.in_hand if state.place is _Place.ROUND else 0

    def rest(self, number: int) -> None:
        """Wait for the end if it is not there yet: nothing is left to try. Raises `Stopped`."""
        with self._changed:
            state = self._states[number]
            if state.place is _Place.ROUND:
                state.standing = replace(state.standing, exhausted=True)
                self._put(number, _Place.RESTS)
                self._wait(number)

    def leave(self, number: int) -> None:
        """Give the turn back for good."""
        with self._changed:
            self._put(number, _Place.GONE)

    def _put(self, number: int, place: _Place) -> None:
        state = self._states[number]
        state.place, state.standing = place, replace(state.standing, in_hand=0)
        self._deal()

    def _wait(self, number: int) -> None:
        state = self._states[number]
        self._changed.wait_for(lambda: self._stop.is_set() or state.place in _AT_WORK)
        if self._stop.is_set():
            raise Stopped("stopped; the same command goes on from here")

    def _deal(self) -> None:
        """Give all turns that can be given now."""
        while self._count(*_AT_WORK) < self._at_a_time and self._give_turn():
            pass
        self._changed.notify_all()

    def _give_turn(self) -> bool:
        if new := self._those(_Place.NEW):
            first = max(new, key=lambda number: (self._states[number].standing.weight, -number))
            self._states[first].place = _Place.BEGINS
            return True
        if self._count(_Place.BEGINS):  # what is recorded of it counts
            return False
        if found := next_round(self._standings(), self.rules):
            number, trials = found
            state = self._states[number]
            state.place, state.standing = _Place.ROUND, replace(state.standing, in_hand=trials)
            return True
        if self._count(_Place.ROUND):  # after it another may be worth its trials
            return False
        if self._count(_Place.ASKS, _Place.RESTS):
            self._outcome = outcome(self._standings(), self.rules)
        for number in self._those(_Place.ASKS, _Place.RESTS):
            self._states[number].place = _Place.ENDS
        if ends := self._those(_Place.ENDS):
            self._states[ends[0]].place = _Place.LAST
            return True
        return False

    def _standings(self) -> list[TaskState]:
        return [replace(each.standing, asks=each.place is _Place.ASKS) for each in self._states]

    def _those(self, *places: _Place) -> list[int]:
        return [number for number, each in enumerate(self._states) if each.place in places]

    def _count(self, *places: _Place) -> int:
        return len(self._those(*places))


@dataclass
class Seat:
    """A workload's place at the dealer's: a context that begins with its first turn and ends with
    its last. One that fails stops all others. `waited` are seconds without a turn in between."""

    dealer: Dealer
    number: int
    waited: float = field(default=0.0, init=False)

    def __enter__(self) -> Seat:
        self.dealer.begin(self.number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.dealer.stop()
        self.dealer.leave(self.number)

    def tell_baseline(self, latency: float) -> None:
        """What a call takes without trials, in the unit of `History.latency`, before it asks for
        more."""
        self.dealer.tell_baseline(self.number, latency)

    def more(self, history: History) -> int:
        """How many trials the next round may have, once it is this workload's turn; 0 if there is
        to be no other round. Raises `Stopped`."""
        begin = time.perf_counter()
        try:
            return self.dealer.ask(self.number, history)
        finally:
            self.waited += time.perf_counter() - begin

    def rest(self) -> None:
        """Wait until no workload gets another round. Raises `Stopped`."""
        begin = time.perf_counter()
        self.dealer.rest(self.number)
        self.waited += time.perf_counter() - begin
