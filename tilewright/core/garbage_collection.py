"""Control over when Python's cyclic garbage collector runs.

The Prefect server is a process of its own and collects garbage in a separate thread. Other code
pauses the collector while it creates many objects that stay alive.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SECONDS = 1.0
_NEW = 2_000  # objects that are worth a look


def collect_beside() -> None:
    """Run Python's garbage collector in a separate thread instead of in the event loop.

    Objects that exist now are never collected.

    This is for an event loop that uses SQLite. A request that finds the database locked leaves a
    cursor in the reference cycle of its exception. Collecting that cursor resets its statement,
    which waits until no other request uses the connection. Such a request may wait up to a minute
    for the lock, which a third request holds. If the event loop itself collected garbage, the third
    request could not continue during that minute, and the server would answer no request.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    threading.Thread(target=_collect, name="garbage", daemon=True).start()


@contextmanager
def collecting_later() -> Iterator[None]:
    """Pause garbage collection within the context, because each run scans all existing objects."""
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
