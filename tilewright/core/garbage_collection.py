"""Control over the time at which Python's cyclic garbage collector runs.

The Prefect server runs the collector in a separate thread (`collect_beside`). Code that creates
many long-lived objects pauses the collector meanwhile (`collecting_later`).
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SECONDS = 1.0
_NEW = 2_000  # new objects that are worth a collection


def collect_beside() -> None:
    """Run Python's garbage collector in a separate thread instead of in the event loop.

    Objects that exist at the time of the call are never collected.

    This function is for a server whose event loop uses SQLite, because a collection can block
    there. A request that finds the database locked leaves a cursor in the reference cycle of its
    exception. Collecting the cursor resets its statement, and the reset waits until no other
    request uses the connection. That other request may wait up to a minute for a lock that a third
    request holds. If the event loop itself collected the cursor, the third request could not
    continue, and the server would answer no request for up to a minute.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    threading.Thread(target=_collect, name="garbage", daemon=True).start()


@contextmanager
def collecting_later() -> Iterator[None]:
    """Pause garbage collection within the context.

    Each collection scans all existing objects, which is slow while many objects are created.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _collect() -> None:
    while True:
        time.sleep(_SECONDS)
        if gc.get_count()[0] > _NEW:
            gc.collect()
