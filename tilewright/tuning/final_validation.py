"""Chooses among the leaders of a run on a target whose figures differ from one time to the next.

Measurements made for that alone decide the choice, and give the latency that is reported. The
fastest of many noisy trials looks faster than it is: it was partly lucky (the winner's curse). So
the trials only say which configs lead. These, with the baseline, are measured in turn, there and
back, so that drift hits all alike. After each block of turns the better half stays (sequential
halving: Karnin, Koren & Somekh, Almost Optimal Exploration in Multi-Armed Bandits, 2013). The
survivor was chosen by those figures, which flatter it again. So a last block, of the chosen and the
baseline alone, says what is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import Json, canonical, digest
from tilewright.search import History, LocalRunner, StoredRun
from tilewright.search.events import Listener, Note
from tilewright.search.round_steps import Trial, trial_at
from tilewright.search.validation_records import TRIAL, ValidationMeasurement
from tilewright.targets.base import Lowered
from tilewright.targets.capabilities import Latency
from tilewright.tuning.intervals import ValidationStats
from tilewright.tuning.results import Schedule, trial_schedule
from tilewright.tuning.tuning_task import TuningTask
from tilewright.tuning.verification import latency_of_trial, lowered_of, reproduces

TURNS = 3
"""Measurements of each contender in a block of the choice."""
REPORT_TURNS = 9
"""Of the chosen and the baseline: the second lowest and the second highest are a 95 %
interval of the median whatever the distribution (96.1 %)."""

Bench = Callable[[int, Sequence[Schedule], int], Sequence[ValidationMeasurement]]
"""Measures contenders in so many turns; the first argument counts the blocks."""


@dataclass(frozen=True)
class FinalChoice:
    """The chosen schedule and the baseline with the latencies of the report; None where there is
    none that runs."""

    chosen: Schedule | None
    baseline: Schedule | None
    validation: ValidationStats


def leaders_of(task: TuningTask, history: History, count: int) -> list[Schedule]:
    """The fastest trials by what was recorded of them, at most `count`."""
    return [trial_schedule(task, history, int(row)) for row in history.fastest(count)]


def choice_name(leaders: Sequence[Schedule], baseline: Schedule | None, trials: int) -> str:
    """What identifies a choice in the trial store: who is in it, after how many trials."""
    others = [] if baseline is None else [baseline]
    entered: list[Json] = [[e.source, e.space, list(e.config)] for e in [*leaders, *others]]
    return digest(canonical([entered, trials, TURNS, REPORT_TURNS]))[:16]


def choose_validated(
    leaders: Sequence[Schedule], baseline: Schedule | None, bench: Bench
) -> FinalChoice:
    """The best of the leaders and of the baseline, unless that is only compared, and what
    both take. What does not run when it is measured again is out. Raises what `bench` raises."""
    found: list[ValidationMeasurement] = []

    def measure(
        block: int, contenders: Sequence[Schedule], turns: int
    ) -> Sequence[ValidationMeasurement]:
        made = bench(block, contenders, turns)
        found.extend(made)
        return made

    contenders, block = list(leaders), 0
    if baseline is not None and not baseline.compared:
        contenders.append(baseline)
    while True:
        best, block = _best(contenders, measure, block)
        pair = [each for each in (best, baseline) if each is not None]
        if best is baseline:
            pair = pair[:1]
        timed = _reported(measure(block, pair, REPORT_TURNS), pair) if pair else []
        if best is None or timed[0] is not None:
            break
        contenders, block = [each for each in contenders if each is not best], block + 1
    after = timed[0] if best is not None else None
    before = timed[-1] if baseline is not None else None
    spent = sum(each.took for each in found)
    turns, rule_turns = (() if each is None else each[1] for each in (after, before))
    chosen, baseline = (None if each is None else each[0] for each in (after, before))
    return FinalChoice(chosen, baseline, ValidationStats(len(found), spent, turns, rule_turns))


def measure_leaders(
    task: TuningTask, block: int, contenders: Sequence[Schedule], turns: int
) -> list[ValidationMeasurement]:
    """Measure schedules one after the other, in every second turn in reversed order. Raises
    `TilewrightError` if the target is gone."""
    found, programs = [], _programs(task, contenders)
    for turn in range(turns):
        back = -1 if turn % 2 else 1
        for slots, lowered in programs[::back]:
            begin = time.perf_counter()
            measured = task.target.measure(lowered.rows(np.arange(len(slots))[::back]))
            took = (time.perf_counter() - begin) / len(slots)
            found += [
                ValidationMeasurement(
                    block, turn, slot, contenders[slot].source, contenders[slot].config,
                    trial_at(measured, row), took,
                )
                for row, slot in enumerate(slots[::back])
            ]  # fmt: skip
    return found


def is_block(
    held: Sequence[ValidationMeasurement], contenders: Sequence[Schedule], turns: int
) -> bool:
    """Whether these are all that measuring the contenders in so many turns gives."""
    wanted = {
        (turn, slot, each.source, each.config)
        for turn in range(turns)
        for slot, each in enumerate(contenders)
    }
    return {(each.turn, each.slot, each.source, each.config) for each in held} == wanted


def _programs(task: TuningTask, contenders: Sequence[Schedule]) -> list[tuple[list[int], Lowered]]:
    """Trials as one batch; the baseline, which may be of another space, by itself."""
    slots = [slot for slot, each in enumerate(contenders) if each.source == TRIAL]
    groups = []
    if slots:
        configs = np.array([contenders[slot].config for slot in slots], dtype=np.int32)
        groups.append((slots, task.target.lower(task.workload, configs)))
    others = [slot for slot in range(len(contenders)) if slot not in slots]
    return groups + [([slot], lowered_of(task, contenders[slot])) for slot in others]


def _best(
    contenders: Sequence[Schedule], measure: Bench, block: int
) -> tuple[Schedule | None, int]:
    """Who is left after halving, and the number of the next block. None if nobody runs."""
    left = list(range(len(contenders)))
    costs = np.empty((0, len(contenders)))
    while len(left) > 1:
        made = measure(block, [contenders[k] for k in left], TURNS)
        seconds, cycles = _figures(made, len(left))
        turns = np.full((TURNS, len(contenders)), np.nan)
        turns[:, left] = np.where(cycles > 0, cycles, seconds)
        costs, block = np.concatenate([costs, turns]), block + 1
        half = (len(left) + 1) // 2
        left = _ranked(costs, [k for k in left if np.isfinite(turns[:, k]).all()])[:half]
    return (contenders[left[0]] if left else None), block


def _ranked(costs: NDArray[np.float64], left: list[int]) -> list[int]:
    """Columns `left` of `costs` (turns, contenders), best first: by the median over all turns of
    how they compare within a turn."""
    if not left:
        return []
    logs = np.log2(costs[:, left])
    scores = np.median(logs - np.median(logs, axis=1, keepdims=True), axis=0)
    return [left[k] for k in np.argsort(scores, kind="stable")]


def _figures(
    found: Sequence[ValidationMeasurement], contenders: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Seconds, NaN where one is not valid, and cycles: each (turns, contenders)."""
    turns = max(each.turn for each in found) + 1
    seconds, cycles = np.full((turns, contenders), np.nan), np.full((turns, contenders), -1)
    for each in found:
        if each.trial.status == "valid":
            seconds[each.turn, each.slot] = each.trial.seconds
            cycles[each.turn, each.slot] = each.trial.cycles
    return seconds, cycles.astype(np.int64)


def _reported(
    found: Sequence[ValidationMeasurement], pair: Sequence[Schedule]
) -> list[tuple[Schedule, tuple[float, ...]] | None]:
    """Each with the median of its turns as its latency, and its seconds in each of them; None for
    what does not run in any."""
    seconds, cycles = _figures(found, len(pair))
    timed: list[tuple[Schedule, tuple[float, ...]] | None] = []
    for k, each in enumerate(pair):
        runs = np.isfinite(seconds[:, k])
        counted = runs.any() and (cycles[runs, k] > 0).all()
        middle = int(np.median(cycles[runs, k])) if counted else -1
        latency = Latency(float(np.median(seconds[runs, k])) if runs.any() else np.nan, middle)
        runtimes = tuple(seconds[:, k].tolist())
        timed.append((replace(each, latency=latency), runtimes) if runs.any() else None)
    return timed


class NotMeasured(Exception):
    """There is no record of a part of a choice."""


class ChoiceRecords:
    """The choice among the `count` fastest trials of a history, the `winners` of earlier choices,
    and the baseline; `record` is where its measurements are kept."""

    def __init__(
        self,
        task: TuningTask,
        record: StoredRun,
        history: History,
        baseline: Schedule | None,
        count: int,
        winners: Sequence[Schedule] = (),
    ) -> None:
        self.task = task
        self.record = record
        self.baseline = baseline
        self.leaders = leaders_of(task, history, count)
        leading = {each.config for each in self.leaders}
        self.leaders += [each for each in winners if each.config not in leading]
        self.name = choice_name(self.leaders, baseline, len(history))

    def held(self) -> FinalChoice | None:
        """The choice as it was recorded; None if it was not made, or not to its end."""
        try:
            return choose_validated(self.leaders, self.baseline, self._bench(_measures_nothing))
        except NotMeasured:
            return None

    def make(self, run: LocalRunner) -> FinalChoice:
        """Make the choice, or the part of it that is not recorded; `run` performs the
        measurements. Raises what `measure_leaders` and the record raise."""

        def measure(
            block: int, contenders: Sequence[Schedule], turns: int
        ) -> list[ValidationMeasurement]:
            return run(measure_leaders, self.task, block, contenders, turns)

        return choose_validated(self.leaders, self.baseline, self._bench(measure))

    def confirmed(self, held: FinalChoice, timed: dict[int, Trial]) -> bool:
        """Whether what is recorded of the chosen schedule may be true, by a measurement now, which
        is added to `timed` if it is of a trial. If not, the choice is to be made again: its
        records are set aside."""
        chosen = held.chosen
        if chosen is None:
            return True
        now = None if self.baseline is None else self.baseline.latency  # it was measured just now
        if chosen.source == TRIAL:
            config = np.array([chosen.config], dtype=np.int32)
            measured = self.task.target.measure(self.task.target.lower(self.task.workload, config))
            flat = int(self.task.problem.space.ravel(config)[0])
            timed[flat] = trial_at(measured, 0)
            now = latency_of_trial(timed[flat])
        if now is not None and reproduces(self.task.target, chosen.latency, now):
            return True
        self.record.forget_validations(self.name)
        return False

    def _bench(self, measure: Bench) -> Bench:
        """Gives what is recorded, block by block, and measures from the first on that is not whole:
        nothing that follows it can have been measured."""
        held = self.record.validations(self.name)

        def bench(
            block: int, contenders: Sequence[Schedule], turns: int
        ) -> Sequence[ValidationMeasurement]:
            found = [each for each in held if each.block == block]
            if is_block(found, contenders, turns):
                return found
            held.clear()
            made = measure(block, contenders, turns)
            self.record.add_validations(self.name, made)
            return made

        return bench


def held_choice(
    choice: ChoiceRecords, timed: dict[int, Trial], emit: Listener
) -> FinalChoice | None:
    """The final choice of an earlier command, if it made one of the same trials that still holds;
    `timed` gathers what was measured to see that."""
    held = choice.held()
    if held is None or choice.confirmed(held, timed):
        return held
    task = choice.task
    emit(
        Note(
            f"{task.workload}: the final choice was recorded with another latency than "
            f"{task.target_name} gives now; set aside, and made again"
        )
    )
    return None


def _measures_nothing(
    block: int, contenders: Sequence[Schedule], turns: int
) -> Sequence[ValidationMeasurement]:
    raise NotMeasured
