"""Implements the lease on a ledger: held by one process at a time, and never outliving its owner.

A lease is a small file that its owner keeps locked for as long as it holds it. The kernel knows of
the lock in every container of a machine, keeps it while its owner is stopped, and drops it with its
owner. The file names the owner, for the message of a refused process.

It also says when the lease ends; a thread of the owner renews it. That is for disks that machines
share without sharing locks: there a lease may be taken over when it has ended. On one machine a
monotonic clock tells the end; between machines the time of day does. A lease that claims to last
longer than any lease does is not believed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from tilewright.core.errors import TilewrightError
from tilewright.core.safe_files import open_own, open_to_read, same_file

_FILE_BYTES = 512  # always the same, so that renewing needs no space on a full disk
_PATIENCE_SECONDS = 0.3
"""Who looks whether a lease is held has it locked for a moment."""
_SLACK_SECONDS = 5.0
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class LeaseHeld(TilewrightError):
    """Another process is writing to the same run."""


class Lease:
    """A lease on one file. `seconds` is how long it lasts without being renewed, where locks do not
    reach. A process that is forked off does not have it."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path = path
        self.seconds = seconds
        self.owner = uuid.uuid4().hex
        self._file = -1
        self._locked = True
        self._using = threading.Lock()
        self._released = threading.Event()

    def acquire(self) -> None:
        """Take the lease. Raises `LeaseHeld` naming the process that has it, `UnsafeFile` for a
        lease that is no plain file of this user's, and `OSError`."""
        self._take()
        _HELD.add(self)
        threading.Thread(target=self._renew, daemon=True).start()

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Keep the lease while writing. Raises `LeaseHeld` if another took over meanwhile."""
        with self._using:
            self._keep()
            yield

    def release(self) -> None:
        """Give it back, if it is still ours."""
        self._released.set()
        with self._using:
            file, self._file = self._file, -1
            if file < 0:
                return
            with suppress(OSError):
                if _holder(file).get("owner") == self.owner:
                    os.ftruncate(file, 0)
            with suppress(OSError):  # closing is not enough: native code may have forked
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def _renew(self) -> None:
        """Keep it while the process lives."""
        while not self._released.wait(self.seconds / 3):
            with suppress(OSError, TilewrightError), self._using:
                if not self._released.is_set():
                    self._keep()

    def _keep(self) -> None:
        if self._file < 0:
            raise LeaseHeld(f"{self._guarded} belongs to another process; open it again")
        if not same_file(self.path, self._file):  # somebody removed it
            os.close(self._file)
            self._file = -1
            self._take()
            return
        self._refuse_if_held(self._file)
        self._write(self._file)

    def _take(self) -> None:
        file = self._locked_file()
        try:
            self._refuse_if_held(file)
            self._write(file)
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def _locked_file(self) -> int:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            file = open_own(self.path, os.O_RDWR)
            try:
                free = self._lock(file)
                if free and same_file(self.path, file):
                    return file
                held = _holder(file)
            except BaseException:
                os.close(file)
                raise
            os.close(file)
            if time.monotonic() > deadline:
                raise self._refusal(held)
            time.sleep(0.01)

    def _lock(self, file: int) -> bool:
        found = _lock(file, fcntl.LOCK_EX)
        self._locked = found is not None
        return found is not False

    def _refuse_if_held(self, file: int) -> None:
        holder = _holder(file)
        if holder.get("owner") in (None, self.owner):
            return
        if self._locked and _same_machine(holder):
            return  # it is gone: it would have the lock
        if remaining(holder, self.seconds) > 0:
            raise self._refusal(holder)

    def _refusal(self, holder: Mapping[str, object]) -> LeaseHeld:
        lasts = remaining(holder, self.seconds)
        hangs = "" if _same_machine(holder) else f" or {lasts:.0f} s if it hangs,"
        return LeaseHeld(
            f"{self._guarded} is being written by {_described(holder)}; wait for it to end,{hangs} "
            "or choose another output directory"
        )

    @property
    def _guarded(self) -> Path:
        return self.path.with_suffix("")

    def _write(self, file: int) -> None:
        text = json.dumps({"owner": self.owner, **stamp(self.seconds)})
        os.pwrite(file, text.encode().ljust(_FILE_BYTES), 0)

    def _forget(self) -> None:
        """In a process that was forked off: the lock is its parent's, and must end with that."""
        self._using = threading.Lock()
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


_HELD: weakref.WeakSet[Lease] = weakref.WeakSet()


def _forget_all() -> None:
    for lease in list(_HELD):
        lease._forget()


os.register_at_fork(after_in_child=_forget_all)


def writer(path: Path) -> str | None:
    """Who is writing to the file that this lease is beside, in words; None if nobody is."""
    try:
        file = open_to_read(lease_of(path))
    except OSError:
        return None
    try:
        held = _holder(file)
        free = _lock(file, fcntl.LOCK_SH)
    finally:
        os.close(file)
    if free is False:
        return _described(held)
    if free and _same_machine(held):
        return None
    return _described(held) if remaining(held, 0.0) > 0 else None


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
        "pids": _pid_namespace(),
    }


def remaining(holder: Mapping[str, object], seconds: float) -> float:
    """For how many seconds more the process of a `stamp` is believed: 0 once its time is up or it
    is gone. `seconds` is how long stamps last that do not say."""
    pid, (boot, since_boot) = holder.get("pid"), _since_boot()
    if _known_here(holder) and isinstance(pid, int) and not _alive(pid):
        return 0.0
    if boot and holder.get("boot") == boot:
        lasts = _number(holder.get("boot_ends"), 0.0) - since_boot
    else:
        lasts = _number(holder.get("ends"), 0.0) - time.time()
    sane = lasts <= _number(holder.get("seconds"), seconds) + _SLACK_SECONDS
    return lasts if lasts > 0 and sane else 0.0


# -- the file ----------------------------------------------------------------------------------


def _holder(file: int) -> dict[str, object]:
    try:
        found = json.loads(os.pread(file, 4 * _FILE_BYTES, 0) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _lock(file: int, how: int) -> bool | None:
    """Whether the lock was free; it is ours then. None if this disk knows no locks."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


# -- processes and machines --------------------------------------------------------------------


def _described(holder: Mapping[str, object]) -> str:
    pid = holder.get("pid")
    host = "".join(each for each in str(holder.get("host"))[:64] if each.isprintable())
    if not isinstance(pid, int):
        return "another process"
    if not _same_machine(holder):
        return f"process {pid} on {host}"
    if not _known_here(holder):
        return f"process {pid} on {host}, in another container"
    if not _stopped(pid):
        return f"process {pid} on {host}"
    ways = f"'kill -CONT {pid}' lets it go on, 'kill -KILL {pid}' ends it"
    return f"process {pid} on {host} (it is stopped: {ways})"


def _same_machine(holder: Mapping[str, object]) -> bool:
    boot, _ = _since_boot()
    return holder.get("boot") == boot if boot else holder.get("host") == socket.gethostname()


def _known_here(holder: Mapping[str, object]) -> bool:
    """Whether a process number means the same process here: containers count their own."""
    return _same_machine(holder) and holder.get("pids") == _pid_namespace()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _stopped(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("T", "t")


def _pid_namespace() -> str:
    """Not kept: a process may be forked into another one."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


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
