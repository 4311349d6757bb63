"""Tests the task scheduler, which gives rounds to the workload with the largest expected saving."""

from __future__ import annotations

import _thread
import json
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.search.test_gain import Rounds, history
from tests.trial_tables import tables
from tests.tune_bare import tune_bare, tune_options
from tilewright import tuning
from tilewright.core.options import OptionsError
from tilewright.search import TrialRequest
from tilewright.search.expected_gain import expected_saving
from tilewright.services.prefect_server import Login
from tilewright.tuning.events import Event, RoundDone, RoundScheduled, WorkloadTuned, ignore
from tilewright.tuning.outputs import Summary
from tilewright.tuning.run_flows import Flow, Stopped
from tilewright.tuning.run_metadata import is_complete
from tilewright.tuning.task_scheduler import (
    SharingRules,
    TaskScheduler,
    TaskState,
    next_round,
    outcome,
)

RULES = SharingRules(trials=16, batch=4, share=0.01)
RUN = {"model": "digits_cnn", "tuner": "random", "trials": 16, "batch": 4, "seed": 7}
COMMAND = ("tune", "digits_cnn", "--tuner", "random", "--trials", "16", "--batch", "4", "--seed",
           "7", "--out", "out", "--stop-gain", "0.001")  # fmt: skip
SECONDS = 120.0
"""Maximum time in seconds that concurrent workloads of a test wait for each other."""


def asking(found: Rounds, count: int = 1, macs: int = 1) -> TaskState:
    return TaskState(count, macs, history(found), asks=True)


IMPROVING: Rounds = [[400, 430, 460, None], [200, 230, 260, 290]]
STANDING_STILL: Rounds = [[400, 401, 402, None], [400, 400, 400, 400]]


# -- scheduling rules --------------------------------------------------------------------------


def test_those_without_a_round_come_first_the_heaviest_before_all() -> None:
    states = [asking(IMPROVING), asking([], 1, 5), asking([], 3, 2), asking([], 2, 3)]
    assert next_round(states, RULES) == (2, 4)
    assert next_round(states[:2], replace(RULES, trials=3)) == (1, 3)  # so that all get a round


def test_those_without_a_valid_trial_come_next_up_to_the_average() -> None:
    nothing: list[int | None] = [None] * 4
    states = [asking(IMPROVING), asking([nothing] * 2), asking([nothing])]
    assert next_round(states, RULES) == (2, 4)
    states = [asking(IMPROVING), asking([nothing] * 4)]
    assert next_round(states, RULES) == (0, 4)
    assert next_round([asking([[*nothing, None]])], replace(RULES, trials=6)) == (0, 1)


def test_then_the_greatest_saving_of_the_whole_counts() -> None:
    states = [asking(STANDING_STILL, 5), asking(IMPROVING), asking(IMPROVING, 2)]
    assert next_round(states, RULES) == (2, 4)
    assert next_round(states[:2], RULES) == (1, 4)
    assert next_round([states[1]] * 2, RULES) == (0, 4)
    assert next_round([replace(state, asks=False) for state in states], RULES) is None


def test_what_is_there_without_trials_counts() -> None:
    states = [replace(asking(IMPROVING, 2), baseline=20.0), asking(IMPROVING)]
    assert next_round(states, RULES) == (1, 4)
    assert states[0].latency == 40


def test_rounds_are_scheduled_until_none_saves_more_than_the_share() -> None:
    states = [asking(STANDING_STILL), asking(IMPROVING)]
    share = expected_saving(history(IMPROVING), 1, 4) / (400 + 200)
    assert next_round(states, replace(RULES, share=share * 0.999)) == (1, 4)
    told = outcome(states, stopping := replace(RULES, share=share))
    assert next_round(states, stopping) is None
    assert told == {
        "share": share, "trials": 16, "most_trials": 32, "why": "gain",
        "expected_gain": pytest.approx(share),
    }  # fmt: skip


def test_no_more_trials_are_given_than_there_are() -> None:
    states = [asking(STANDING_STILL), asking(IMPROVING)]
    few = replace(RULES, trials=9)
    assert next_round(states, few) == (1, 2)
    under_way = [replace(states[0], asks=False, in_hand=2), states[1]]
    assert next_round(under_way, few) is None
    assert outcome(states, replace(RULES, trials=8))["why"] == "trials"
    all_tried = [replace(state, exhausted=True) for state in states]
    told = outcome(all_tried, RULES)
    assert (told["why"], told["expected_gain"]) == ("exhausted", None)


# -- flows -------------------------------------------------------------------------------------


def run_shared(
    at_a_time: int, work: Callable[[int], Flow[int]], workloads: int = 4
) -> TaskScheduler[int]:
    """Run a task scheduler on workloads with 1, 2, … multiplications."""
    states = [TaskState(1, macs) for macs in range(1, workloads + 1)]
    flows = [work(number) for number in range(workloads)]
    scheduler = TaskScheduler(flows, states, at_a_time, RULES)
    assert scheduler.run() == list(range(workloads))
    return scheduler


@pytest.mark.parametrize("at_a_time", [1, 3])
def test_no_more_than_that_are_at_work_and_all_is_scheduled(at_a_time: int) -> None:
    at_work, most, granted_to = [0], [0], list[int]()
    changing, all_at_work = threading.Lock(), threading.Event()

    def busy() -> None:
        with changing:
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
            if at_work[0] >= at_a_time:
                all_at_work.set()
        all_at_work.wait(SECONDS)
        with changing:
            at_work[0] -= 1

    def work(number: int) -> Flow[int]:
        results: Rounds = []
        busy()
        while True:
            request = TrialRequest(history(results))
            yield request
            if not request.granted:
                break
            granted_to.append(number)
            busy()
            results.append([max(1, 1000 >> len(results) * number)] * 4)
            yield None
        busy()
        return number

    scheduler = run_shared(at_a_time, work)
    assert most[0] == at_a_time
    assert scheduler.outcome is not None
    assert scheduler.outcome["trials"] == 4 * len(granted_to) <= 4 * RULES.trials
    assert sorted(set(granted_to)) == [0, 1, 2, 3]
    if at_a_time == 1:
        assert granted_to[:4] == [3, 2, 1, 0]
        assert granted_to.count(0) < granted_to.count(1)  # the one that still improves


def test_those_with_nothing_left_to_try_wait_for_the_end() -> None:
    order = list[tuple[str, int]]()

    def work(number: int) -> Flow[int]:
        results: Rounds = [[100, 150, 200, 250]]
        while True:
            request = TrialRequest(history(results))
            yield request
            if not request.granted:
                break
            if number < 2:
                yield TrialRequest(history(results), exhausted=True)
                break
            results.append([results[-1][0] and results[-1][0] - 8, 300, 300, 300])
            order.append(("round", number))
        order.append(("end", number))
        return number

    scheduler = run_shared(1, work)
    assert order[-4:] == [("end", number) for number in range(4)]
    assert {number for what, number in order[:-4]} == {2, 3}
    assert scheduler.outcome is not None
    assert scheduler.outcome["why"] in ("gain", "trials")


@pytest.mark.parametrize("at_a_time", [1, 2])
def test_one_that_fails_ends_those_that_wait(at_a_time: int) -> None:
    ended = list[int]()

    def work(number: int) -> Flow[int]:
        results: Rounds = []
        try:
            while True:
                request = TrialRequest(history(results))
                yield request
                if number == 2:
                    raise ZeroDivisionError("its own error")
                results.append([100, 150])
        except Stopped:
            ended.append(number)
            raise
        return number

    with pytest.raises(ZeroDivisionError, match="its own"):
        run_shared(at_a_time, work)
    assert ended
    assert set(ended) <= {0, 1, 3}


def test_each_flow_keeps_a_context_of_its_own() -> None:
    seen = ContextVar("seen", default=-1)

    def work(number: int) -> Flow[int]:
        seen.set(number)
        for _ in range(3):
            request = TrialRequest(history([]))
            yield request
            assert seen.get() == number
        return number

    run_shared(1, work)
    assert seen.get() == -1


# -- runs --------------------------------------------------------------------------------------


def run(
    out: Path, stop_gain: float, emit: Callable[[Event], None] | None = None, **more: object
) -> Summary:
    options = tuning.TuningOptions.parse(**RUN | more, out=str(out), stop_gain=stop_gain)
    return tune_options(options, emit or ignore)


def left(out: Path) -> list[object]:
    return [tables(out), (out / "schedules.json").read_bytes()]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run."""
    out = tmp_path_factory.mktemp("shared") / "out"
    run(out, 0.001)
    return out


def test_trials_go_where_they_save_most(small: Path) -> None:
    summary = json.loads((small / "summary.json").read_text())
    told = summary["stop_gain"]
    trials = [row["trials"] for row in summary["workloads"]]
    assert sum(trials) == told["trials"] <= told["most_trials"] == 16 * len(trials)
    weights = [row["count"] * row["tuned_cycles"] for row in summary["workloads"]]
    assert trials[weights.index(min(weights))] == min(trials) < 16 < max(trials)
    assert told["share"] == 0.001
    assert (told["why"] == "gain") == (told["expected_gain"] <= 0.001)
    assert is_complete(small)


def test_a_share_that_no_round_can_save_leaves_one_round_each(tmp_path: Path) -> None:
    heard: list[Event] = []
    summary = run(tmp_path / "out", 0.9, heard.append)
    assert [row["trials"] for row in summary["workloads"]] == [4] * 4
    assert summary["stop_gain"]["why"] == "gain"
    assert 0 < summary["stop_gain"]["expected_gain"] < 0.9
    granted_to = [event.id for event in heard if isinstance(event, RoundScheduled)]
    heaviest = sorted(
        summary["workloads"], key=lambda row: row["count"] * row["macs"], reverse=True
    )
    assert granted_to == [row["id"] for row in heaviest]
    assert sum(isinstance(event, WorkloadTuned) for event in heard) == 4


def test_several_at_a_time_make_no_more(tmp_path: Path) -> None:
    summary = run(tmp_path / "out", 0.0, jobs=3)
    assert summary["stop_gain"]["trials"] <= 64
    assert min(row["trials"] for row in summary["workloads"]) >= 4


def test_an_error_ends_the_run_and_the_same_command_goes_on(small: Path, tmp_path: Path) -> None:
    rounds = 0

    def fail(event: Event) -> None:
        nonlocal rounds
        rounds += isinstance(event, RoundDone)
        if isinstance(event, RoundDone) and rounds in (3, 8):
            raise ZeroDivisionError("in a round")

    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="in a round"):
            run(tmp_path / "out", 0.001, fail)
        assert not is_complete(tmp_path / "out")
    run(tmp_path / "out", 0.001)
    assert left(tmp_path / "out") == left(small)


def test_ctrl_c_ends_the_run_and_the_same_command_goes_on(small: Path, tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 1:
            _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out", 0.001, stop)
    run(tmp_path / "out", 0.001)
    assert left(tmp_path / "out") == left(small)


def test_runs_with_and_without_go_on_from_each_other(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    plain = tune_bare(**RUN | {"trials": 8}, out=str(out))
    assert "stop_gain" not in plain
    summary = run(out, 0.001)
    assert [row["reused_trials"] for row in summary["workloads"]] == [8] * 4
    assert is_complete(out)
    again = tune_bare(**RUN, out=str(out))
    assert [row["trials"] for row in again["workloads"]] == [16] * 4
    for row, before in zip(again["workloads"], summary["workloads"], strict=True):
        assert row["reused_trials"] == min(16, before["trials"])
    keys = {row[:3] for path in (out, small) for row in tables(path)["trials"]}
    assert len(keys) == 4


def test_an_impossible_share_is_refused() -> None:
    for share in (-0.1, 1.0):
        with pytest.raises(OptionsError, match="--stop-gain"):
            tuning.TuningOptions.parse(stop_gain=share)


@pytest.mark.nightly(seconds=20)
def test_the_bare_command_and_the_flow_schedule_as_the_library_call(
    small: Path, tmp_path: Path, prefect_server: Login
) -> None:
    for flags in (("--bare",), ()):
        folder = tmp_path / ("bare" if flags else "flow")
        folder.mkdir()
        done = Place(folder, prefect_server).run(*COMMAND, *flags)
        assert done.returncode == 0, done.stderr
        assert left(folder / "out") == left(small)
        assert "of at most 64 trials" in done.stdout
