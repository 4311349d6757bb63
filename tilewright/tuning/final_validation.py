"""Final choice among the best trials of a run, on targets whose measurements vary.

The fastest of many noisy trials looks faster than it is, because it was partly lucky (the winner's
curse). The trials therefore only determine the leaders, and the choice and the reported latencies
are based on separate validation measurements:

- The leaders and the baseline, the schedule that is used without tuning, are measured in turns. The
  order alternates, so that drift of the machine's speed affects all of them equally.
- After each block of turns, the better half remains (sequential halving: Karnin, Koren & Somekh,
  Almost Optimal Exploration in Multi-Armed Bandits, 2013).
- The measurements that select the winner are again biased in its favour. The reported latencies
  come from a last block, in which only the winner and the baseline are measured.
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
"""Number of measurements of each schedule in a block that selects the better half."""
REPORT_TURNS = 9
"""Number of measurements of the chosen schedule and of the baseline in the last block.

With nine values, the second lowest and the second highest form a 95 % interval of the median for
any distribution (96.1 %).
"""

Bench = Callable[[int, Sequence[Schedule], int], Sequence[ValidationMeasurement]]
"""Function that measures one block of turns. Its arguments are the index of the block, the
schedules to measure and the number of turns."""


@dataclass(frozen=True)
class FinalChoice:
    """Result of a final choice: the chosen schedule and the baseline, with their latencies.

    Attributes:
        chosen: the chosen schedule, or None if no schedule runs.
        baseline: the schedule that is used without tuning, or None if there is none or it does not
            run.
        validation: statistics of the validation measurements.
    """

    chosen: Schedule | None
    baseline: Schedule | None
    validation: ValidationStats


def leaders_of(task: TuningTask, history: History, count: int) -> list[Schedule]:
    """Return the trials of a workload with the lowest recorded latencies, as schedules.

    Args:
        task: the workload, target and tuner.
        history: trials of the workload.
        count: maximum number of schedules.
    """
    return [trial_schedule(task, history, int(row)) for row in history.fastest(count)]


def choice_name(leaders: Sequence[Schedule], baseline: Schedule | None, trials: int) -> str:
    """Compute the ID under which a final choice is stored in the trial store.

    The ID is a digest of everything on which the choice depends, so that a repeated command finds
    the stored measurements.

    Args:
        leaders: the best trials, which take part in the choice.
        baseline: the schedule that is used without tuning, if there is one.
        trials: number of trials of the run.
    """
    others = [] if baseline is None else [baseline]
    entered: list[Json] = [[e.source, e.space, list(e.config)] for e in [*leaders, *others]]
    return digest(canonical([entered, trials, TURNS, REPORT_TURNS]))[:16]


def choose_validated(
    leaders: Sequence[Schedule], baseline: Schedule | None, bench: Bench
) -> FinalChoice:
    """Choose the best of the leaders and the baseline, and measure the result for the report.

    The chosen schedule and the baseline are measured again in a last block. If the chosen schedule
    fails there, it is dropped and the choice is repeated. A baseline whose `compared` is set is
    measured for the report but cannot be chosen.

    Args:
        leaders: the best trials of the run by their recorded latencies.
        baseline: the schedule that is used without tuning, if there is one.
        bench: function that measures one block. Its arguments are the block's index, the schedules
            and the number of turns. Its exceptions are not caught.

    Returns:
        The choice, with the latencies that were measured in the last block.
    """
    results: list[ValidationMeasurement] = []

    def measure(
        block: int, contenders: Sequence[Schedule], turns: int
    ) -> Sequence[ValidationMeasurement]:
        made = bench(block, contenders, turns)
        results.extend(made)
        return made

    contenders, block = list(leaders), 0
    if baseline is not None and not baseline.compared:
        contenders.append(baseline)
    while True:
        best, block = _best(contenders, measure, block)
        pair = [item for item in (best, baseline) if item is not None]
        if best is baseline:
            pair = pair[:1]
        timed = _reported(measure(block, pair, REPORT_TURNS), pair) if pair else []
        if best is None or timed[0] is not None:
            break
        contenders, block = (
            [contender for contender in contenders if contender is not best],
            block + 1,
        )
    after = timed[0] if best is not None else None
    before = timed[-1] if baseline is not None else None
    spent = sum(item.took for item in results)
    turns, rule_turns = (() if item is None else item[1] for item in (after, before))
    chosen, baseline = (None if item is None else item[0] for item in (after, before))
    return FinalChoice(chosen, baseline, ValidationStats(len(results), spent, turns, rule_turns))


def measure_leaders(
    task: TuningTask, block: int, contenders: Sequence[Schedule], turns: int
) -> list[ValidationMeasurement]:
    """Measure each schedule once per turn, in reverse order in every second turn.

    Drift of the machine's speed therefore affects all schedules equally.

    Args:
        task: the workload, target and tuner.
        block: index of this block of turns, which is stored with the measurements.
        contenders: the schedules to measure.
        turns: number of turns, that is, of measurements per schedule.

    Returns:
        The measurements in the order in which they were made.

    Raises:
        TilewrightError: the target failed.
    """
    measurements, programs = [], _programs(task, contenders)
    for turn in range(turns):
        back = -1 if turn % 2 else 1
        for slots, lowered in programs[::back]:
            begin = time.perf_counter()
            measured = task.target.measure(lowered.rows(np.arange(len(slots))[::back]))
            took = (time.perf_counter() - begin) / len(slots)
            measurements += [
                ValidationMeasurement(
                    block, turn, slot, contenders[slot].source, contenders[slot].config,
                    trial_at(measured, row), took,
                )
                for row, slot in enumerate(slots[::back])
            ]  # fmt: skip
    return measurements


def is_block(
    held: Sequence[ValidationMeasurement], contenders: Sequence[Schedule], turns: int
) -> bool:
    """Return whether recorded measurements are exactly the measurements of one complete block.

    Args:
        held: recorded measurements.
        contenders: schedules that the block measures.
        turns: number of turns of the block.
    """
    wanted = {
        (turn, slot, contender.source, contender.config)
        for turn in range(turns)
        for slot, contender in enumerate(contenders)
    }
    return {(record.turn, record.slot, record.source, record.config) for record in held} == wanted


def _programs(task: TuningTask, contenders: Sequence[Schedule]) -> list[tuple[list[int], Lowered]]:
    """Lower schedules in as few batches as possible: one for all trials, and one for the baseline.

    Args:
        task: the workload, target and tuner.
        contenders: the schedules.

    Returns:
        Batches of programs, each with the indices of its schedules in `contenders`.
    """
    slots = [slot for slot, contender in enumerate(contenders) if contender.source == TRIAL]
    groups = []
    if slots:
        configs = np.array([contenders[slot].config for slot in slots], dtype=np.int32)
        groups.append((slots, task.target.lower(task.workload, configs)))
    others = [slot for slot in range(len(contenders)) if slot not in slots]
    return groups + [([slot], lowered_of(task, contenders[slot])) for slot in others]


def _best(
    contenders: Sequence[Schedule], measure: Bench, block: int
) -> tuple[Schedule | None, int]:
    """Find the best schedule by sequential halving: after each block, the better half remains.

    A schedule that fails in any turn is dropped.

    Args:
        contenders: the schedules.
        measure: function that measures one block of turns.
        block: index of the first block.

    Returns:
        The winner, or None if no schedule runs, and the index of the next block.
    """
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
    """Rank the remaining schedules, best first.

    In each turn, the log cost of a schedule is taken relative to the median of the turn. Schedules
    are ranked by the median of these values over all turns.

    Args:
        costs: cost of each schedule in each turn, shape (turns, contenders).
        left: column indices of the remaining schedules.

    Returns:
        The indices in `left`, best first.
    """
    if not left:
        return []
    logs = np.log2(costs[:, left])
    scores = np.median(logs - np.median(logs, axis=1, keepdims=True), axis=0)
    return [left[k] for k in np.argsort(scores, kind="stable")]


def _figures(
    measurements: Sequence[ValidationMeasurement], contenders: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Arrange measurements as arrays with one row per turn and one column per schedule.

    Args:
        measurements: the measurements of one block; at least one.
        contenders: number of schedules that the block compares.

    Returns:
        Seconds (NaN where not valid) and cycles (-1 where not valid), both of shape (turns,
        contenders).
    """
    turns = max(element.turn for element in measurements) + 1
    seconds, cycles = np.full((turns, contenders), np.nan), np.full((turns, contenders), -1)
    for item in measurements:
        if item.trial.status == "valid":
            seconds[item.turn, item.slot] = item.trial.seconds
            cycles[item.turn, item.slot] = item.trial.cycles
    return seconds, cycles.astype(np.int64)


def _reported(
    measurements: Sequence[ValidationMeasurement], pair: Sequence[Schedule]
) -> list[tuple[Schedule, tuple[float, ...]] | None]:
    """Compute the latency of each schedule as the median of its turns.

    Args:
        measurements: the measurements of one block.
        pair: the schedules that the block compares.

    Returns:
        One entry per schedule: the schedule with the new latency, and its seconds in each turn. The
            entry is None if the schedule does not run in any turn.
    """
    seconds, cycles = _figures(measurements, len(pair))
    timed: list[tuple[Schedule, tuple[float, ...]] | None] = []
    for k, schedule in enumerate(pair):
        runs = np.isfinite(seconds[:, k])
        counted = runs.any() and (cycles[runs, k] > 0).all()
        middle = int(np.median(cycles[runs, k])) if counted else -1
        latency = Latency(float(np.median(seconds[runs, k])) if runs.any() else np.nan, middle)
        runtimes = tuple(seconds[:, k].tolist())
        timed.append((replace(schedule, latency=latency), runtimes) if runs.any() else None)
    return timed


class NotMeasured(Exception):
    """A block of a final choice is missing in the trial store, so the choice is incomplete."""


class ChoiceRecords:
    """A final choice whose validation measurements are kept in the trial store.

    A repeated or resumed command reads the stored measurements instead of measuring again.

    Args:
        task: the workload, target and tuner.
        record: trials of the run; the validation measurements are stored there.
        history: trials of the run.
        baseline: the schedule that is used without tuning, if there is one.
        count: number of the fastest trials that take part.
        winners: schedules that won the final choices of earlier runs. They take part too.
    """

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
        leading = {leader.config for leader in self.leaders}
        self.leaders += [winner for winner in winners if winner.config not in leading]
        self.name = choice_name(self.leaders, baseline, len(history))

    def recorded_choice(self) -> FinalChoice | None:
        """Return the choice from stored measurements alone, or None if measurements are missing."""
        try:
            return choose_validated(self.leaders, self.baseline, self._bench(_measures_nothing))
        except NotMeasured:
            return None

    def make_choice(self, run: LocalRunner) -> FinalChoice:
        """Make the choice, and measure only what is not stored yet.

        Args:
            run: runner that executes the measurements.

        Raises:
            TilewrightError: the target failed, or the trial store cannot be written.
        """

        def measure(
            block: int, contenders: Sequence[Schedule], turns: int
        ) -> list[ValidationMeasurement]:
            return run(measure_leaders, self.task, block, contenders, turns)

        return choose_validated(self.leaders, self.baseline, self._bench(measure))

    def confirm_choice(self, held: FinalChoice, timed: dict[int, Trial]) -> bool:
        """Check the stored latency of the chosen schedule by measuring it again.

        If the stored latency is not plausible, its measurements are marked as rejected in the trial
        store, and the choice must be made again. A chosen baseline is not measured here, because
        the command has already measured it.

        Args:
            held: the stored choice.
            timed: measurements by the flat index of their config; the new one is added.

        Returns:
            Whether the stored latency is plausible.
        """
        chosen = held.chosen
        if chosen is None:
            return True
        now = None if self.baseline is None else self.baseline.latency  # measured by this command
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
        """Return a function that returns stored blocks of turns and measures missing ones.

        Once a block is missing or incomplete, this block and all later blocks are measured.

        Args:
            measure: function that measures a block.
        """
        held = self.record.validations(self.name)

        def bench(
            block: int, contenders: Sequence[Schedule], turns: int
        ) -> Sequence[ValidationMeasurement]:
            results = [record for record in held if record.block == block]
            if is_block(results, contenders, turns):
                return results
            held.clear()
            made = measure(block, contenders, turns)
            self.record.add_validations(self.name, made)
            return made

        return bench


def held_choice(
    choice: ChoiceRecords, timed: dict[int, Trial], emit: Listener
) -> FinalChoice | None:
    """Return the final choice that an earlier command stored, if it is still plausible.

    To check the choice, the chosen schedule is lowered and measured once more on the target. A
    chosen baseline is not measured here. If the stored latency is not plausible, the stored
    measurements of the choice are marked as rejected in the trial store.

    Args:
        choice: the choice and its stored measurements.
        timed: measurements by the flat index of their config; the new one is added.
        emit: receives a note if the stored choice is rejected.

    Returns:
        The choice, or None if it must be made.
    """
    held = choice.recorded_choice()
    if held is None or choice.confirm_choice(held, timed):
        return held
    task = choice.task
    emit(
        Note(
            f"{task.workload}: discarded the recorded final choice, because its latency "
            f"differs from what {task.target_name} measures now; the choice is made again"
        )
    )
    return None


def _measures_nothing(
    block: int, contenders: Sequence[Schedule], turns: int
) -> Sequence[ValidationMeasurement]:
    raise NotMeasured
