"""Tests cached stages in a flow on a server: the names, states and messages that Prefect shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import warm

PROGRAM = """
import sys
from pathlib import Path
from tilewright.services.start_servers import embedded
from tilewright.services.workspace import Workspace, use_workspace
use_workspace(Workspace(Path(sys.argv[1])))
with embedded() as workspace:
    from threading import Thread
    from time import monotonic, sleep
    from prefect import flow, tags
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        FlowRunFilter, FlowRunFilterId, LogFilter, LogFilterTaskRunId)
    from prefect.runtime import flow_run
    from tilewright.services.start_servers import send_pending_records
    from prefect.settings import PREFECT_TASKS_REFRESH_CACHE, temporary_settings
    from tilewright.tasks.cached_task import Key, Stage
    from tilewright.tasks.run_tags import take_turns


    calls = []

    def double_key(number):
        return Key("double", 1, "", {"number": number}, reusable=number != 4)

    def double(number):
        calls.append(number)
        if number == 2 and calls.count(2) < 2:
            raise ConnectionError("the worker is gone")
        if number == 3:
            raise ValueError("three is no good")
        return 2 * number

    stage = Stage(double, "{layer}: double", double_key, lambda value, number: f"twice {value}")

    def run(after, layer, number):
        return stage.run(after, {"layer": layer}, number)

    @flow
    def numbers():
        assert not stage.is_stored(1)
        first = run([], "one", 1)
        assert stage.is_stored(1)
        again = run([first.state], "one again", 1)
        shown = stage.show_known([again.state], "known", "earlier: double")
        run([first.state, shown], "two", 2)
        try:
            run([], "three", 3)
        except ValueError:
            pass
        assert (first.reused, again.reused, again.value) == (False, True, 2)
        return str(flow_run.id)

    @flow
    def records():
        assert [run([], "four", 4).reused for _ in range(2)] == [False, False]
        assert not run([], "five", 5).reused
        path = workspace.cache / stage.key(5).text
        whole = path.read_bytes()
        digest = whole.index(b'"result":"') + len(b'"result":"')
        changed = whole[:digest] + bytes([whole[digest] ^ 1]) + whole[digest + 1:]
        for damaged in (b"", whole[:-1], whole[:len(whole) // 2], changed):
            path.write_bytes(damaged)
            assert not run([], "five", 5).reused, damaged
            assert path.read_bytes() == whole
        assert run([], "five", 5).reused
        with temporary_settings({PREFECT_TASKS_REFRESH_CACHE: True}):
            assert not stage.is_stored(5)
            assert not run([], "five", 5).reused

    @flow
    def board():
        take_turns("board:b")
        take_turns("board:b")
        spans = []
        def hold(number):
            begin = monotonic()
            sleep(0.5)
            spans.append((begin, monotonic()))
            return number
        held = Stage(hold, "{number}", lambda number: Key("hold", 1, "", {"number": number}))
        from contextvars import copy_context
        with tags("board:b"):
            threads = [Thread(target=copy_context().run, args=(held.run, [], {}, number))
                       for number in (1, 2)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        (_, first_end), (second_begin, _) = sorted(spans)
        assert first_end <= second_begin, spans

    run_id = numbers()
    records()
    board()
    send_pending_records()
    deadline = monotonic() + 300
    with get_client(sync_client=True) as client:
        while True:  # tasks are told through a queue of the server
            found = client.read_task_runs(flow_run_filter=FlowRunFilter(
                id=FlowRunFilterId(any_=[run_id])))
            if len(found) == 5 and all(each.state and each.state.is_final() for each in found):
                break
            assert monotonic() < deadline, found
            sleep(0.2)
        names = {each.id: each.name for each in found}
        by_name = {each.name: each for each in found}
        assert {name: each.state.name for name, each in by_name.items()} == {
            "one: double": "Completed", "one again: double": "Cached", "earlier: double": "Cached",
            "two: double": "Completed", "three: double": "Failed"}
        follows = {each.name: {names[one.id] for of in each.task_inputs.values() for one in of}
                   for each in found}
        assert follows == {
            "one: double": set(), "one again: double": {"one: double"},
            "earlier: double": {"one again: double"},
            "two: double": {"one: double", "earlier: double"}, "three: double": set()}
        def log(name):
            asked = LogFilter(task_run_id=LogFilterTaskRunId(any_=[by_name[name].id]))
            return " ".join(each.message for each in client.read_logs(asked))
        while "twice 4" not in log("two: double"):
            assert monotonic() < deadline
            sleep(0.2)
        assert "the worker is gone" in log("two: double") and "Retry 1/2" in log("two: double")
        assert "twice 2" in log("one: double") and "known" in log("earlier: double")
        assert calls[:4] == [1, 2, 2, 3], "only what may pass is tried again"
    print("good")
"""


@pytest.mark.slow(seconds=15)
def test_stages_are_named_cached_follow_each_other_say_what_they_did_and_try_again(
    tmp_path: Path,
) -> None:
    done = warm.run([str(tmp_path / "home")], tmp_path, os.environ, 300, program=PROGRAM)
    assert done.stdout.strip().endswith("good"), done.stdout + done.stderr
