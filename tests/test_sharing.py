"""Tests `tests/sharing.py`: shared folders are made once, and tests marked `alone` run alone."""

from __future__ import annotations

import fcntl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.sharing import Turns, made_once


def test_many_ask_and_one_makes(tmp_path_factory: pytest.TempPathFactory) -> None:
    makers: list[int] = []

    def make(folder: Path) -> None:
        makers.append(threading.get_ident())
        time.sleep(0.1)
        (folder / "file").touch()

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(made_once, tmp_path_factory, "asked-for", make) for _ in range(4)]
        assert all((item.result() / "file").exists() for item in asked)
    assert len(makers) == 1


def test_what_could_not_be_made_is_not_handed_out(tmp_path_factory: pytest.TempPathFactory) -> None:
    def fail(folder: Path) -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        made_once(tmp_path_factory, "impossible", fail)
    with pytest.raises(AssertionError, match="could not make"):
        made_once(tmp_path_factory, "impossible", fail)


def test_one_alone_waits_for_those_at_work_and_is_not_overtaken(tmp_path: Path) -> None:
    seen: list[str] = []
    may_end = threading.Event()

    def work(name: str) -> None:
        with Turns(tmp_path).beside_others():
            seen.append(f"{name} begins")
            may_end.wait(60)
            seen.append(f"{name} ends")

    def work_alone() -> None:
        with Turns(tmp_path).alone():
            seen.append("alone begins")
            time.sleep(0.1)
            seen.append("alone ends")

    def somebody_waits_to_be_alone() -> bool:
        with (tmp_path / "gate.lock").open("a") as gate:
            try:
                fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    with ThreadPoolExecutor(4) as pool:
        pool.submit(work, "a")
        pool.submit(work, "b")
        while len(seen) < 2:
            time.sleep(0.01)
        last = [pool.submit(work_alone)]
        while not somebody_waits_to_be_alone():
            time.sleep(0.01)
        last.append(pool.submit(work, "c"))
        may_end.set()
        for item in last:
            item.result()
    assert {*seen[:2]} == {"a begins", "b begins"}  # both run at the same time
    assert seen[4:] == ["alone begins", "alone ends", "c begins", "c ends"]
