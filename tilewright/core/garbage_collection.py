"""Sets when Python collects garbage.

In the Prefect server, a process of ours alone, garbage is collected beside the server's loop.
Elsewhere it is not collected while many objects are made that stay.
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
    """Look for cycles in a thread of their own, and never among what there is so far.

    For an event loop over SQLite. A request that found the file locked leaves a cursor in the
    cycle of its exception. Collecting that resets the cursor's statement, and waits until
    nobody uses its connection; another request may, and wait up to a minute for the file, which a
    third one holds. If it is the loop that looks, the third cannot go on before that minute is
    over, and nobody is answered.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    threading.Thread(target=_collect, name="garbage", daemon=True).start()


@contextmanager
def collecting_later() -> Iterator[None]:
    """Look for no garbage within: each look goes through all objects there are."""
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
