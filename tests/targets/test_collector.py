"""Tests garbage collection: a server over SQLite must not wait for its own requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOOP = """
import asyncio, gc, sqlite3, sys, threading
from tilewright.core.gc_tuning import collect_beside

class Garbage:
    def __del__(self):
        print(threading.current_thread().name)

def opened():
    return sqlite3.connect(sys.argv[1], timeout=2.5, isolation_level=None, check_same_thread=False)

async def main():
    holder, waiter = opened(), opened()
    gc.disable()  # until there is something to find
    if sys.argv[2:]:
        collect_beside()
    cycle = [Garbage(), waiter.execute("values (1), (2)")]  # nobody reads it to its end
    cycle.append(cycle)
    del cycle
    holder.execute("begin immediate")
    waiting = asyncio.create_task(asyncio.to_thread(waiter.execute, "begin immediate"))
    await asyncio.sleep(0.3)  # until it waits for the file, with its connection
    more = [[] for _ in range(60_000)]
    if not sys.argv[2:]:
        gc.collect()  # as it does now and then
    await asyncio.sleep(1.3)
    holder.execute("commit")
    await waiting

asyncio.run(main())
"""


@pytest.mark.parametrize("where", ["beside", ""])
def test_who_holds_the_file_goes_on_while_garbage_is_looked_for(where: str, tmp_path: Path) -> None:
    """Without a thread of its own a reader waits for the one that waits for the file, and the
    file is not given back: what `collect_beside` is for."""
    program = [sys.executable, "-c", LOOP, str(tmp_path / "rows.db"), *filter(None, [where])]
    done = subprocess.run(
        program, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == ("garbage\n" if where else "MainThread\n"), done.stderr
    assert (done.returncode == 0) == bool(where), done.stderr
    assert where or "database is locked" in done.stderr
