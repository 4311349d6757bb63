"""Shows a bar in Prefect's pages that moves while a run measures."""

from __future__ import annotations

import threading
import time
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

PROGRESS_SECONDS = 2.0
"""Between two updates, a call of the server each."""


class Progress:
    """A progress artifact of the flow run, or of the task, that makes it; may be moved on by any
    thread."""

    def __init__(self, key: str, of: int, what: str) -> None:
        self.of = max(of, 1)
        made = create_progress_artifact(0.0, key=key, description=what)
        assert isinstance(made, UUID)  # as everywhere but in asynchronous code
        self._id, self._told, self._turn = made, time.monotonic(), threading.Lock()

    def show(self, done: int) -> None:
        """So many are done. Told to the server every few seconds."""
        with self._turn:
            if time.monotonic() - self._told < PROGRESS_SECONDS:
                return
            self._told = time.monotonic()
        self._tell(done)

    def end(self) -> None:
        """All there was to do is done, also where that was less than was allowed."""
        self._tell(self.of)

    def _tell(self, done: int) -> None:
        update_progress_artifact(self._id, progress=round(100 * min(done / self.of, 1.0), 1))
