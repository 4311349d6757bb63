"""Tests garbage collection beside a server that uses SQLite: neither may wait for the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOOP = """
import asyncio, gc, sqlite3, sys, threading
from tilewright.core.garbage_collection import collect_beside

collected, asking = threading.Event(), threading.Event()
beside = bool(sys.argv[2:])

class Garbage:
    def __del__(self):
        print(threading.current_thread().name)
        collected.set()

def opened():
    limit = 50.0 if beside else 5.0
    return sqlite3.connect(sys.argv[1], limit, isolation_level=None, check_same_thread=False)

def wait_for_the_file(waiter):
    asking.set()
    waiter.execute("begin immediate")

async def main():
    holder, waiter = opened(), opened()
    gc.disable()  # until there is something to find
    if beside:
        collect_beside()
    cycle = [Garbage(), waiter.execute("values (1), (2)")]  # nobody reads it to its end
    cycle.append(cycle)
    del cycle
    holder.execute("begin immediate")
    waiting = asyncio.create_task(asyncio.to_thread(wait_for_the_file, waiter))
    while not asking.is_set():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)  # SQLite says nothing of its waiting: a generous guess
    more = [[] for _ in range(60_000)]
    if not beside:
        gc.collect()  # as it does now and then
    while not collected.is_set():
        await asyncio.sleep(0.01)
    holder.execute("commit")
    await waiting

asyncio.run(main())
"""


@pytest.mark.parametrize("where", ["beside", ""])
def test_who_holds_the_file_goes_on_while_garbage_is_looked_for(where: str, tmp_path: Path) -> None:
    """The holder of the database lock continues during garbage collection.

    The garbage is an unread cursor. Collecting it waits for another statement of its connection,
    which waits for the lock. If this happened in the event loop, the holder could not release the
    lock. `collect_beside` therefore collects in a separate thread.
    """
    program = [sys.executable, "-c", LOOP, str(tmp_path / "rows.db"), *filter(None, [where])]
    done = subprocess.run(
        program, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == ("garbage\n" if where else "MainThread\n"), done.stderr
    assert (done.returncode == 0) == bool(where), done.stderr
    assert where or "sqlite3.OperationalError" in done.stderr
