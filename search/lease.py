"""The right to write to a ledger: held by one process at a time, and never outliving its owner.

A lease is a small file naming its owner and the moment it ends; the owner renews it with every
write. It may be taken over when it has ended, when its owner's process on this machine is gone, or
when it claims to last longer than any lease does (a clock was set back).
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from targets.errors import TilewrightError


class LeaseHeld(TilewrightError):
    """Another process is writing to the same run."""


class Lease:
    """A lease on one file. `seconds` is how long it lasts without being renewed."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path = path
        self.seconds = seconds
        self.owner = uuid.uuid4().hex

    def acquire(self) -> None:
        """Take the lease. Raises `LeaseHeld` naming the process that has it."""
        with self._opened() as file:
            self._refuse_if_held(file)
            self._write(file)

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Hold the lease file while writing. Raises `LeaseHeld` if another took over meanwhile."""
        with self._opened() as file:
            self._refuse_if_held(file)
            self._write(file)
            yield

    def release(self) -> None:
        """Give it back, if it is still ours."""
        with self._opened() as file:
            if self._holder(file).get("owner") == self.owner:
                file.truncate(0)

    @contextmanager
    def _opened(self) -> Iterator[IO[str]]:
        # The kernel drops this lock with the process: it only orders readers and writers of the
        # few bytes below, the lease itself is what they say.
        with open(self.path, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _holder(self, file: IO[str]) -> dict[str, object]:
        file.seek(0)
        try:
            found = json.loads(file.read() or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _refuse_if_held(self, file: IO[str]) -> None:
        holder = self._holder(file)
        if holder.get("owner") in (None, self.owner):
            return
        ends, pid, host = holder.get("ends"), holder.get("pid"), holder.get("host")
        lasts = (float(ends) if isinstance(ends, (int, float)) else 0.0) - time.time()
        length = holder.get("seconds")
        sane = lasts <= (length if isinstance(length, (int, float)) else self.seconds) + 5.0
        gone = host == socket.gethostname() and isinstance(pid, int) and not _alive(pid)
        if lasts > 0 and sane and not gone:
            raise LeaseHeld(
                f"{self.path.with_suffix('')} is being written by process {pid} on {host}; wait "
                f"for it to end, or {lasts:.0f} s if it hangs, or choose another output folder"
            )

    def _write(self, file: IO[str]) -> None:
        file.truncate(0)
        json.dump(
            {
                "owner": self.owner,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "seconds": self.seconds,
                "ends": time.time() + self.seconds,
            },
            file,
        )
        file.flush()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
