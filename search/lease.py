"""The right to write to a ledger: held by one process at a time, and never outliving its owner.

A lease is a small file naming its owner and the moment it ends; a thread of the owner renews it. It
may be taken over when it has ended, or when its owner's process on this machine is gone. On one
machine the end is told by a clock that nobody sets; between machines by the time of day, and a
lease that claims to last longer than any lease does is not believed.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from targets.errors import TilewrightError

_FILE_BYTES = 512  # always the same, so that renewing needs no space on a full disk
_BUSY_SECONDS = 20.0
_SLACK_SECONDS = 5.0


class LeaseHeld(TilewrightError):
    """Another process is writing to the same run."""


class Lease:
    """A lease on one file. `seconds` is how long it lasts without being renewed."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path = path
        self.seconds = seconds
        self.owner = uuid.uuid4().hex
        self._released = threading.Event()

    def acquire(self) -> None:
        """Take the lease. Raises `LeaseHeld` naming the process that has it."""
        with self._opened() as file:
            self._refuse_if_held(file)
            self._write(file)
        threading.Thread(target=self._renew, daemon=True).start()

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Hold the lease file while writing. Raises `LeaseHeld` if another took over meanwhile."""
        with self._opened() as file:
            self._refuse_if_held(file)
            self._write(file)
            yield

    def release(self) -> None:
        """Give it back, if it is still ours."""
        self._released.set()
        with suppress(OSError), self._opened() as file:
            if self._holder(file).get("owner") == self.owner:
                os.ftruncate(file, 0)

    def _renew(self) -> None:
        """Keep it while the process lives; a process that was stopped for long finds it taken."""
        while not self._released.wait(self.seconds / 3):
            with suppress(OSError, LeaseHeld), self._opened() as file:
                if self._holder(file).get("owner") != self.owner:
                    return
                self._write(file)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        # The kernel drops this lock with the process: it only orders readers and writers of the
        # few bytes below, the lease itself is what they say.
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._lock(file)
            yield file
        finally:
            os.close(file)

    def _lock(self, file: int) -> None:
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LeaseHeld(
                        f"{self.path} is locked by a process that does not go on; end it, or "
                        "choose another output folder"
                    ) from None
                time.sleep(0.01)

    def _holder(self, file: int) -> dict[str, object]:
        try:
            found = json.loads(os.pread(file, 4 * _FILE_BYTES, 0) or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _refuse_if_held(self, file: int) -> None:
        holder = self._holder(file)
        if holder.get("owner") in (None, self.owner):
            return
        if (lasts := remaining(holder, self.seconds)) > 0:
            raise LeaseHeld(
                f"{self.path.with_suffix('')} is being written by process {holder.get('pid')} on "
                f"{holder.get('host')}; wait for it to end, or {lasts:.0f} s if it hangs, or "
                "choose another output folder"
            )

    def _write(self, file: int) -> None:
        text = json.dumps({"owner": self.owner, **stamp(self.seconds)})
        os.pwrite(file, text.encode().ljust(_FILE_BYTES), 0)


def writer(path: Path) -> str | None:
    """Who is writing to the file that this lease is beside, in words; None if nobody is."""
    try:
        held = json.loads(lease_of(path).read_bytes() or b"{}")
    except (OSError, ValueError):
        return None
    if not isinstance(held, dict) or remaining(held, 0.0) <= 0:
        return None
    return f"process {held.get('pid')} on {held.get('host')}"


def lease_of(path: Path) -> Path:
    """The lease that guards a file."""
    return path.with_name(path.name + ".lease")


def stamp(seconds: float) -> dict[str, object]:
    """This process, and until when it may be believed to be at work."""
    boot, since_boot = _since_boot()
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "seconds": seconds,
        "ends": time.time() + seconds,
        "boot": boot,
        "boot_ends": since_boot + seconds,
    }


def remaining(holder: Mapping[str, object], seconds: float) -> float:
    """For how many seconds more the process of a `stamp` is believed: 0 once its time is up or it
    is gone. `seconds` is how long stamps last that do not say."""
    pid, (boot, since_boot) = holder.get("pid"), _since_boot()
    if holder.get("host") == socket.gethostname() and isinstance(pid, int) and not _alive(pid):
        return 0.0
    if boot and holder.get("boot") == boot:
        lasts = _number(holder.get("boot_ends"), 0.0) - since_boot
    else:
        lasts = _number(holder.get("ends"), 0.0) - time.time()
    sane = lasts <= _number(holder.get("seconds"), seconds) + _SLACK_SECONDS
    return lasts if lasts > 0 and sane else 0.0


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _since_boot() -> tuple[str, float]:
    """This machine's running period ("" where the system does not name it) and its seconds."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return "", 0.0
    return _boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME)


@lru_cache(maxsize=1)
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _number(value: object, default: float) -> float:
    return float(value) if isinstance(value, (int, float)) else default
