"""Heavy tasks first: the workloads of a network share its trials, and each round goes to the one
whose next round is expected to save the most of the network's latency.

Every workload is tuned in a thread of its own, which acts only while it has a turn: its first steps
until all that is recorded of it is known, then a round at a time, at last the choice and proof of
its schedule. Where one has a turn at a time, rounds are dealt while nobody has one, so by what
their histories hold alone: a run that goes on deals as the one that was not stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import TracebackType
from typing import Literal, TypedDict

from search import History
from search.gain import best_latency, expected_saving
from targets.errors import TilewrightError

Why = Literal["gain", "trials", "exhausted"]


class Stopped(TilewrightError):
    """A workload that was given up since another one failed, or a person stopped the run."""


class StopGain(TypedDict):
    """What became of a run's trials, in `summary.json`. `share` is what was asked for, `trials` are
    those of all workloads, of at most so many. `why` no more were made: no next round was expected
    to save more than the share (`gain`), they were spent (`trials`), or nothing is left to try
    (`exhausted`). `expected_gain` is the share of the latency that the best next round would have
    been expected to save; null where none is left, or nothing was valid."""

    share: float
    trials: int
    most_trials: int
    why: Why
    expected_gain: float | None


@dataclass(frozen=True)
class Rules:
    """What the trials are dealt by: `trials` a workload on average, `batch` a round, until no round
    is expected to save more than a `share` of the whole."""

    trials: int
    batch: int
    share: float


@dataclass(frozen=True)
class Standing:
    """Where a workload stands: how often an inference calls it, what a call multiplies, and what
    its rounds have shown. `asks` says whether it waits for a round, `in_hand` are trials of one
    that is under way, `exhausted` is who has nothing left to try. `untuned` is what a call takes
    with the schedule there is without trials, in the unit of `History.latency`, if one is known
    that takes the same each time."""

    count: int
    macs: int
    history: History | None = None
    asks: bool = False
    in_hand: int = 0
    exhausted: bool = False
    untuned: float | None = None

    @property
    def latency(self) -> float:
        """Of all calls, with what is known by now; 0 if nothing is."""
        best = None if self.history is None else best_latency(self.history)
        known = [each for each in (best, self.untuned) if each is not None]
        return self.count * min(known, default=0.0)

    def saving(self, trials: int) -> float:
        """Expected of a round of so many trials (`search.gain`)."""
        if self.history is None:
            return 0.0
        return expected_saving(self.history, self.count, trials, self.untuned)

    @property
    def made(self) -> int:
        """Trials, with those in hand."""
        return self.in_hand + (0 if self.history is None else len(self.history))

    @property
    def weight(self) -> int:
        """Multiply-accumulates of all calls."""
        return self.count * self.macs


def next_round(standings: Sequence[Standing], rules: Rules) -> tuple[int, int] | None:
    """Whose the next round is, and of how many trials; None if it is nobody's of those who ask.

    Who has no round yet comes first, the heaviest before all; then who has no valid trial, up to
    the average; then the greatest expected saving. Equals come in their order."""
    found: list[tuple[tuple[float, ...], int, int]] = []
    left, least = trials_left(standings, rules), rules.share * _latency(standings)
    for place, each in enumerate(standings):
        if not each.asks or each.history is None:
            continue
        own = min(rules.batch, rules.trials - len(each.history))
        if each.history.round == 0:
            found.append(((0, -each.weight), place, own))
        elif best_latency(each.history) is None:
            if min(own, left) > 0:
                found.append(((1, len(each.history), -each.weight), place, min(own, left)))
        elif left > 0:
            saving = each.saving(min(rules.batch, left))
            if saving > least:
                found.append(((2, -saving), place, min(rules.batch, left)))
    return min(found)[1:] if found else None


def trials_left(standings: Sequence[Standing], rules: Rules) -> int:
    """Of those that all workloads share; below 0 where more were recorded before."""
    return rules.trials * len(standings) - sum(each.made for each in standings)


def outcome(standings: Sequence[Standing], rules: Rules) -> StopGain:
    """What to say of a run in which no round is under way, and none is dealt any more."""
    left, total = trials_left(standings, rules), _latency(standings)
    able = [each for each in standings if each.history is not None and not each.exhausted]
    savings = [
        each.saving(rules.batch) / total
        for each in able
        if each.history is not None and best_latency(each.history) is not None
    ]
    expected = max(savings, default=None)
    spent = left < 1 and (expected is None or expected > rules.share)
    return {
        "share": rules.share,
        "trials": sum(each.made for each in standings),
        "most_trials": rules.trials * len(standings),
        "why": "exhausted" if not able else "trials" if spent else "gain",
        "expected_gain": expected,
    }


def _latency(standings: Sequence[Standing]) -> float:
    """Of one inference, as far as it is known."""
    return sum(each.latency for each in standings)


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
    standing: Standing
    place: _Place = _Place.NEW


class Dealer:
    """Gives turns to workloads, at most `at_a_time` at once, and rounds by the rules. `stop` ends
    it: whoever waits then gets `Stopped`."""

    def __init__(
        self, standings: Sequence[Standing], rules: Rules, at_a_time: int, stop: threading.Event
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

    def tell_untuned(self, number: int, latency: float) -> None:
        """What a call takes without trials, of one that has its first turn."""
        with self._changed:
            state = self._states[number]
            state.standing = replace(state.standing, untuned=latency)

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

    def _standings(self) -> list[Standing]:
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

    def tell_untuned(self, latency: float) -> None:
        """What a call takes without trials, in the unit of `History.latency`, before it asks for
        more."""
        self.dealer.tell_untuned(self.number, latency)

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
