"""Tests the final choice of a schedule on a noisy target.

The choice must be free of the winner's curse, be made only once, and use only its own measurements.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests import warm
from tests.noisy import REPEATS, NoisyTarget, TimedProduct, registered
from tests.trial_tables import frame, rows, tables
from tests.tune_bare import tune_options
from tilewright.models import make_explorer
from tilewright.search import StoredRun, TrialStore, make_task, read_store
from tilewright.search.round_steps import Trial
from tilewright.search.validation_records import TRIAL, ValidationMeasurement
from tilewright.targets.capabilities import Latency
from tilewright.targets.workload import parse_workload
from tilewright.tuning.events import Event, Note
from tilewright.tuning.final_validation import REPORT_TURNS, TURNS, choose_validated, is_block
from tilewright.tuning.intervals import interval_of, ratio_interval
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.outputs import Summary
from tilewright.tuning.results import Schedule

WORKLOAD = "dense:n=1,c=64,o=64"
DRAWN = 600


def schedule(number: int, source: str = TRIAL, compared: bool = False) -> Schedule:
    return Schedule(source, "blocks", (number,), {"n": number}, Latency(1.0), compared)


class Machine:
    """A simulated machine with known true latencies in seconds.

    It has lognormal noise, a drift that all schedules of a turn share, and some schedules that
    never run.
    """

    def __init__(
        self, true: Sequence[float], seed: int, noise: float = 0.1, broken: Sequence[int] = ()
    ) -> None:
        self.true, self.noise, self.broken = true, noise, broken
        self.rng = np.random.default_rng(seed)
        self.blocks: list[int] = []

    def one(self, number: int) -> float:
        return self.true[number] * float(np.exp(self.rng.normal(0.0, self.noise)))

    def __call__(
        self, block: int, contenders: Sequence[Schedule], turns: int
    ) -> list[ValidationMeasurement]:
        self.blocks.append(block)
        results = []
        for turn in range(turns):
            drift = float(np.exp(self.rng.normal(0.0, 0.05)))
            for slot, contender in enumerate(contenders):
                number = contender.config[0]
                trial = Trial("valid", "", -1, drift * self.one(number))
                if number in self.broken:
                    trial = Trial("run_error", "starved", -1, np.nan)
                results.append(
                    ValidationMeasurement(
                        block, turn, slot, contender.source, contender.config, trial, 0.25
                    )
                )
        return results


def leaders_by_luck(machine: Machine, count: int) -> tuple[list[Schedule], float]:
    """Return the schedules with the fastest noisy trials, and the fastest of these latencies."""
    trials = [machine.one(number) for number in range(len(machine.true) - 1)]
    order = np.argsort(trials)[:count]
    return [schedule(int(number)) for number in order], trials[order[0]]


@pytest.mark.slow(seconds=4)
def test_what_is_reported_is_unbiased_and_the_fastest_trial_is_not() -> None:
    """The reported latency is unbiased, while the fastest trial is too optimistic.

    With forty schedules within 20 % of each other and noise of 10 %, the fastest trial is more than
    an eighth too fast.
    """
    true = [*np.linspace(1.0, 1.2, 40), 1.5]  # the last is the baseline
    naive, reported, baseline, regret, covered, gains = [], [], [], [], [], []
    for seed in range(DRAWN):
        machine = Machine(true, seed)
        leaders, fastest = leaders_by_luck(machine, 5)
        final = choose_validated(leaders, schedule(40, "rule"), machine)
        assert final.chosen is not None
        assert final.baseline is not None
        truth = true[final.chosen.config[0]]
        naive.append(fastest / true[leaders[0].config[0]])
        reported.append(final.chosen.latency.seconds / truth)
        baseline.append(final.baseline.latency.seconds / 1.5)
        regret.append(truth)
        interval = final.validation.gain_interval
        assert interval is not None
        covered.append(interval[0] <= 1.5 / truth <= interval[1])
        gain = final.baseline.latency.seconds / final.chosen.latency.seconds
        gains.append(interval[0] <= gain <= interval[1])
    assert np.mean(reported) == pytest.approx(1.0, abs=0.01)
    assert np.mean(baseline) == pytest.approx(1.0, abs=0.01)
    assert np.mean(naive) < 0.88
    assert np.mean(covered) > 0.95
    assert np.mean(gains) > 0.99
    blindly = np.mean([true[leaders_by_luck(Machine(true, s), 1)[0][0].config[0]]
                       for s in range(DRAWN)])  # fmt: skip
    assert np.mean(regret) < blindly - 0.01


def test_who_is_clearly_the_best_is_chosen_whatever_its_place() -> None:
    for place in range(6):
        true = [2.0] * 7
        true[place] = 1.0
        leaders = [schedule(number) for number in range(6)]
        final = choose_validated(leaders, None, Machine(true, place))
        assert final.chosen is not None
        assert final.chosen.config == (place,)
        assert final.baseline is None
        assert final.validation.baseline == ()
        assert final.validation.gain_interval is None


def test_a_drift_from_turn_to_turn_changes_nothing() -> None:
    """The machine gets slower by half in each turn and has no other noise."""

    class Drifting(Machine):
        def __call__(
            self, block: int, contenders: Sequence[Schedule], turns: int
        ) -> list[ValidationMeasurement]:
            return [
                ValidationMeasurement(
                    block, turn, slot, contender.source, contender.config,
                    Trial("valid", "", -1, 1.5**turn * self.true[contender.config[0]]), 0.0,
                )
                for turn in range(turns)
                for slot, contender in enumerate(contenders)
            ]  # fmt: skip

    final = choose_validated([schedule(0), schedule(1)], schedule(2, "rule"),
                          Drifting([1.01, 1.0, 3.0], 0))  # fmt: skip
    assert final.chosen is not None
    assert final.chosen.config == (1,)
    assert final.validation.gain_interval == pytest.approx((3.0, 3.0))


def test_blocks_and_their_measurements_are_counted() -> None:
    machine = Machine([1.0, 1.1, 1.2, 1.3, 1.4, 2.0], 0)
    final = choose_validated([schedule(n) for n in range(5)], schedule(5, "rule"), machine)
    assert machine.blocks == [0, 1, 2, 3]
    assert final.validation.measurements == TURNS * (6 + 3 + 2) + REPORT_TURNS * 2
    assert final.validation.seconds == 0.25 * final.validation.measurements
    assert len(final.validation.tuned) == len(final.validation.baseline) == REPORT_TURNS


def test_the_baseline_schedule_wins_only_where_it_may_be_chosen() -> None:
    best = [1.0, 1.1, 0.5]
    leaders = [schedule(0), schedule(1)]
    final = choose_validated(leaders, schedule(2, "rule"), Machine(best, 0))
    assert final.chosen is not None
    assert final.chosen == final.baseline
    assert final.validation.gain_interval == (1.0, 1.0)
    compared = choose_validated(
        leaders, schedule(2, "rule", compared=True), Machine(best, 0, 0.001)
    )
    assert compared.chosen is not None
    assert compared.baseline is not None
    assert compared.chosen.config == (0,)
    assert compared.baseline.latency.seconds == pytest.approx(0.5, rel=0.15)


def test_what_fails_validation_is_out() -> None:
    leaders = [schedule(0), schedule(1), schedule(2)]
    true = [1.0, 1.5, 2.0, 4.0]
    final = choose_validated(leaders, schedule(3, "rule"), Machine(true, 0, 0.01, broken=[0]))
    assert final.chosen is not None
    assert final.chosen.config == (1,)
    none = choose_validated(leaders, None, Machine(true, 0, broken=[0, 1, 2]))
    assert none.chosen is None
    assert none.baseline is None
    alone = choose_validated([], schedule(3, "rule"), Machine(true, 0))
    assert alone.chosen == alone.baseline
    lost = choose_validated(
        leaders[:1], schedule(3, "rule", compared=True), Machine(true, 0, broken=[0])
    )
    assert lost.chosen is None
    assert lost.baseline is not None
    unknown = choose_validated(leaders, schedule(3, "rule"), Machine(true, 0, broken=[3]))
    assert unknown.chosen is not None
    assert unknown.baseline is None
    assert choose_validated([], None, Machine(true, 0)).validation.measurements == 0


def test_who_fails_in_the_report_alone_is_replaced() -> None:
    class Late(Machine):
        def __call__(
            self, block: int, contenders: Sequence[Schedule], turns: int
        ) -> list[ValidationMeasurement]:
            self.broken = [0] if turns == REPORT_TURNS else []
            return super().__call__(block, contenders, turns)

    machine = Late([1.0, 1.5], 0, 0.01)
    final = choose_validated([schedule(0), schedule(1)], None, machine)
    assert final.chosen is not None
    assert final.chosen.config == (1,)
    assert machine.blocks == [0, 1, 2]


@pytest.mark.slow(seconds=4)
def test_intervals_cover_the_median_whatever_the_distribution() -> None:
    rng = np.random.default_rng(0)
    held = []
    for _ in range(1000):
        values = rng.exponential(1.0, REPORT_TURNS) ** 2
        interval = interval_of(values.tolist())
        assert interval is not None
        held.append(interval[0] <= np.log(2.0) ** 2 <= interval[1])
    assert np.mean(held) == pytest.approx(0.961, abs=0.02)
    assert interval_of([1.0] * 5) is None
    assert interval_of([np.nan, *[1.0, 2.0] * 3]) == (1.0, 2.0)
    assert ratio_interval([2.0, np.nan, 2.0], [1.0, 1.0, 1.0]) is None


def test_a_block_that_is_not_whole_is_none() -> None:
    contenders = [schedule(0), schedule(1)]
    result = Machine([1.0, 1.0], 0)(0, contenders, 2)
    assert is_block(result, contenders, 2)
    assert not is_block(result[:-1], contenders, 2)
    assert not is_block(result, contenders, 3)
    assert not is_block(result, [schedule(0), schedule(2)], 2)


# -- whole runs ----------------------------------------------------------------------------------


def run(target: str, folder: Path, notes: list[str] | None = None, **others: Any) -> Summary:
    def hear(event: Event) -> None:
        if isinstance(event, Note) and notes is not None:
            notes.append(event.text)

    options: dict[str, Any] = {"tuner": "random", "trials": 24, "batch": 8} | others
    return tune_options(
        TuningOptions(workload=WORKLOAD, target=target, out=str(folder), **options), hear
    )


def fresh_records(folder: Path) -> list[dict[str, Any]]:
    """Return the validation measurements that count, each with its choice."""
    result = rows(folder, "select * from trial_validations where rejected is null order by id")
    return [
        {**one, "choice": row["choice"], **dict(zip(Trial._fields, one["trial"], strict=True))}
        for row in result
        for one in json.loads(row["measured"])
    ]


def test_a_run_reports_its_validation_and_keeps_every_repeat(tmp_path: Path) -> None:
    target = NoisyTarget(seed=1)
    with registered(target) as name:
        (row,) = run(name, tmp_path)["workloads"]
    records = fresh_records(tmp_path)
    result = row["validation"]
    assert result["measurements"] == len(records) == 51
    assert {len(record["repeats"]) for record in records} == {REPEATS}
    assert all(np.median(record["repeats"]) == record["seconds"] for record in records)
    last = max(record["block"] for record in records)
    report = [record for record in records if record["block"] == last]
    assert row["tuned_seconds"] == np.median([e["seconds"] for e in report if e["slot"] == 0])
    assert row["rule_seconds"] == np.median([e["seconds"] for e in report if e["slot"] == 1])
    assert row["tuned_source"] == TRIAL
    assert row["rule_source"] == "rule"
    assert row["trials"] == 24
    trials = frame(tmp_path)
    assert len(trials) == 24
    assert row["tuned_seconds"] not in {*trials["seconds"]}
    low, high = result["gain_interval"] or (0.0, 0.0)
    assert 1.0 < low < row["rule_seconds"] / row["tuned_seconds"] < high


def test_leaders_are_as_many_as_asked(tmp_path: Path) -> None:
    with registered(NoisyTarget()) as name:
        run(name, tmp_path, leaders=2)
    first = [record for record in fresh_records(tmp_path) if record["block"] == 0]
    assert len({tuple(item["config"]) for item in first}) == 3


def test_a_later_choice_measures_the_winner_of_an_earlier_run_again(tmp_path: Path) -> None:
    with registered(NoisyTarget()) as name:
        run(name, tmp_path)
        held = json.loads((tmp_path / "schedules.json").read_text())
        notes: list[str] = []
        again = run(name, tmp_path, notes, trials=8, seed=1)
    winner = held["schedules"][0]["config"]
    own = pd.read_parquet(tmp_path / "trials.parquet")["config"].map(list).tolist()
    assert winner not in own, "the second run did not try it"
    _, second = dict.fromkeys(record["choice"] for record in fresh_records(tmp_path))
    assert winner in [
        record["config"] for record in fresh_records(tmp_path) if record["choice"] == second
    ]
    (row,) = json.loads((tmp_path / "schedules.json").read_text())["schedules"]
    told = [note for note in notes if "tuner random with seed 0 found in 24 trials" in note]
    assert len(told) == (row["config"] not in own)
    assert ("found_by" in again["workloads"][0]) == (row["config"] not in own)


def test_a_finished_choice_is_not_made_again(tmp_path: Path) -> None:
    target = NoisyTarget()
    with registered(target) as name:
        first = run(name, tmp_path)
        stored, measured = tables(tmp_path), target.measured
        again = run(name, tmp_path)
    assert tables(tmp_path) == stored
    assert target.measured == measured + 2  # the baseline, and what was chosen
    for name_ in ("tuned_seconds", "rule_seconds", "validation"):
        assert again["workloads"][0][name_] == first["workloads"][0][name_]


@pytest.mark.parametrize("blocks", [0, 1, 2, 3])
def test_a_choice_that_was_killed_goes_on(tmp_path: Path, blocks: int) -> None:
    """Finished blocks of measurements are kept."""
    target = NoisyTarget()
    with registered(target) as name:
        run(name, tmp_path)
        rows(tmp_path, "delete from trial_validations where block >= ?", blocks)
        kept = fresh_records(tmp_path)
        run(name, tmp_path)
    records = fresh_records(tmp_path)
    assert records[: len(kept)] == kept
    assert len(records) == 51
    with read_store(tmp_path) as store:
        assert store.problems == []


DOOMED = """
import os, signal, sys
from pathlib import Path
from tests import warm
from tests.noisy import NoisyTarget, registered
from tests.tuning.test_final_validation import run

class Doomed(NoisyTarget):
    def measure(self, lowered):
        if self.programs == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().measure(lowered)

with registered(Doomed(), "doomed") as name:
    run(name, Path(sys.argv[1]))
"""


@pytest.mark.parametrize(("batches", "blocks"), [(7, 0), (13, 1), (16, 2), (29, 3)])
@pytest.mark.slow(seconds=1)
def test_a_command_killed_while_it_measures_goes_on_with_the_next_block(
    tmp_path: Path, batches: int, blocks: int
) -> None:
    """SIGKILL comes after some batches of programs. Finished blocks are not repeated."""
    given = [str(tmp_path), str(batches)]
    done = warm.run(given, tmp_path, os.environ, 120, program=DOOMED)
    assert done.returncode == -signal.SIGKILL, done.stderr
    kept = fresh_records(tmp_path)
    assert {item["block"] for item in kept} == set(range(blocks))
    with registered(NoisyTarget(seed=1), "doomed") as name:
        (row,) = run(name, tmp_path)["workloads"]
    records = fresh_records(tmp_path)
    assert records[: len(kept)] == kept
    assert len(records) == row["validation"]["measurements"] == 51
    assert row["reused_trials"] == 24


def test_more_trials_or_other_leaders_are_another_choice(tmp_path: Path) -> None:
    with registered(NoisyTarget()) as name:
        run(name, tmp_path)
        first = {record["choice"] for record in fresh_records(tmp_path)}
        run(name, tmp_path, trials=32)
        run(name, tmp_path, trials=32, leaders=3)
    assert len(first) == 1
    assert len({record["choice"] for record in fresh_records(tmp_path)}) == 3


def test_a_forged_choice_is_set_aside_and_made_again(tmp_path: Path) -> None:
    notes: list[str] = []
    with registered(NoisyTarget()) as name:
        honest = run(name, tmp_path)
        forge(tmp_path)
        again = run(name, tmp_path, notes)
    assert any("discarded the recorded final choice" in note for note in notes)
    before, after = (item["workloads"][0]["tuned_seconds"] for item in (honest, again))
    assert before is not None
    assert after == pytest.approx(before, rel=0.5)
    assert min(record["seconds"] or 1.0 for record in fresh_records(tmp_path)) > 1e-4


def forge(folder: Path) -> None:
    """Change all latencies in the report to one microsecond."""
    (row,) = rows(folder, "select id, measured from trial_validations where block = 3")
    made = json.loads(row["measured"])
    for one in made:
        one["trial"][Trial._fields.index("seconds")] = 1e-6
    rows(
        folder, "update trial_validations set measured = ? where id = ?", json.dumps(made),
        row["id"],
    )  # fmt: skip


def test_a_validation_measurement_is_no_trial_of_any_run(tmp_path: Path) -> None:
    """Another run in the same directory measures all of its trials itself."""
    target = NoisyTarget()
    with registered(target) as name:
        run(name, tmp_path)
        measured = target.measured
        (row,) = run(name, tmp_path, seed=1)["workloads"]
        assert row["reused_trials"] == 0
    valid = row["trials"] - row["invalid_trials"]
    again = 2 + row["validation"]["measurements"] + row["timed_again"]  # 2: the baseline
    assert target.measured == measured + valid + again


def test_a_forged_report_is_not_taken_where_the_choice_goes_on(tmp_path: Path) -> None:
    """An earlier block is missing, so the report cannot have been measured after it."""
    with registered(NoisyTarget()) as name:
        run(name, tmp_path)
        forge(tmp_path)
        rows(tmp_path, "delete from trial_validations where block = 2")
        (row,) = run(name, tmp_path)["workloads"]
    assert row["tuned_seconds"] == pytest.approx(1e-3, rel=0.5)


def test_a_store_that_processes_share_holds_the_choice(tmp_path: Path) -> None:
    work, explorer = parse_workload(WORKLOAD), make_explorer("random")
    setting = make_task(NoisyTarget(), work, explorer, 0)
    results = [
        replace(item, config=(item.slot, 2, 3))
        for item in Machine([1.0, 1.1], 0)(0, [schedule(0), schedule(1)], 2)
    ]
    with TrialStore(tmp_path / "trials.sqlite", own=False) as store:
        key, space = (work.id, "noisy", "run"), setting.problem.space
        record = StoredRun(store, key, space, shared=True)
        record.add_validations("one", results)
        assert record.validations("one") == results
        assert record.validations("other") == []
        record.forget_validations("one")
        assert record.validations("one") == []


@pytest.mark.slow(seconds=2)
def test_a_loop_that_is_really_timed_is_tuned(tmp_path: Path) -> None:
    """On any machine, blocks of one element take several times as long as large blocks."""
    with registered(TimedProduct()) as name:
        (row,) = run(name, tmp_path, tuner="default")["workloads"]
    low, high = row["validation"]["gain_interval"] or (0.0, 0.0)
    assert 5.0 < low < high
    assert row["tuned_source"] == TRIAL
