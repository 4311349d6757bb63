"""Handles Ctrl-C and SIGTERM: the first ends a command in order and says what is kept, the second
ends it at once.

Nothing heavy is imported here: this is in force before anything that takes time.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from pathlib import Path
    from sys import UnraisableHookArgs

INTERRUPTED, TERMINATED = 130, 143
"""The status of a command that Ctrl-C, or SIGTERM, ended."""
END_SECONDS = 20.0
"""What a run has for its end in order; whatever still runs then is cut off: what counts is on
disk at any time."""
AGAIN_SECONDS = 0.05
"""After which an interrupt that got lost is delivered again: the code that lost it has returned."""

T = TypeVar("T")


class _State:
    status = 0  # what a signal has it end with, once one came
    lost = False
    kept: tuple[str, Callable[[], int]] | None = None


def heed_signals() -> None:
    """Take Ctrl-C and SIGTERM from now on, unless the process's parent has them ignored (`nohup`,
    `&` in a script).

    Python runs the handler between any two steps of the main thread. Where those belong to
    a `__del__` or to a callback from compiled code, which cannot raise, Python only reports the
    `KeyboardInterrupt` as unraisable; `_deliver_again` takes the report and sends the signal anew.
    """
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = partial(_deliver_again, sys.unraisablehook)


def was_stopped() -> bool:
    """Whether a signal came. Whatever is raised then comes of it: compiled code makes errors of its
    own of a `KeyboardInterrupt`."""
    return bool(_State.status)


def stopped_status() -> int:
    """What a command ends with that was stopped."""
    return _State.status or INTERRUPTED


def keep_count(noun: str, count: Callable[[], int]) -> None:
    """From now on the same command resumes where this one is stopped, from so many trials, say."""
    _State.kept = noun, count


def keep_trials(folder: Path) -> None:
    """Announce that the trials in an output directory are kept if the command is stopped."""

    def count() -> int:
        from tilewright.search import read_store

        with suppress(FileNotFoundError), read_store(folder) as store:
            return len(store.frame())
        return 0

    keep_count("trial", count)


def sentence() -> str:
    """What to say of a command that was stopped: what is kept, and what to do next."""
    if _State.kept is None:
        return "stopped; start the same command again"
    noun, count = _State.kept
    try:
        kept = count()
        what = f"{kept:,} {noun}{' is' if kept == 1 else 's are'} kept"
    except Exception:  # a stop in the middle of an import may leave anything
        what = f"all finished {noun}s are kept"
    return f"stopped; {what}: start the same command again to go on"


def end_stopped() -> NoReturn:
    """Say that a command was stopped, and end the process."""
    text = sentence()
    _write(f"error: {text}\n")
    os._exit(stopped_status())


def interruptible(work: Callable[[], T]) -> T:
    """The result of `work`, compiled code that hears no Ctrl-C, done in a thread that the end of
    the process does not wait for. Raises what `work` raises, and `KeyboardInterrupt` meanwhile."""
    results: list[T] = []
    errors: list[BaseException] = []

    def do() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    if _State.lost:
        _State.lost = False
        raise KeyboardInterrupt
    if _State.status:
        _write("\x1b[?25h" if sys.stderr is not None and sys.stderr.isatty() else "")  # cursor
        os._exit(_State.status)
    _State.status = TERMINATED if number == signal.SIGTERM else INTERRUPTED
    if _State.kept is not None:
        _call_later(END_SECONDS, end_stopped)
    raise KeyboardInterrupt


def _deliver_again(
    report: Callable[[UnraisableHookArgs], object], lost: UnraisableHookArgs
) -> None:
    """A `sys.unraisablehook`: the interrupt comes once more, and is no second Ctrl-C. All other
    exceptions are reported as before."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        report(lost)
        return
    _State.lost = True
    with suppress(RuntimeError):  # the interpreter ends, and starts no threads any more
        _call_later(AGAIN_SECONDS, _signal_if_lost)


def _signal_if_lost() -> None:
    """To the main thread, so that it wakes from whatever it waits for."""
    if _State.lost:  # and no second Ctrl-C has come in its place
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _call_later(seconds: float, call: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


def _write(text: str) -> None:
    """Past all buffers, which another thread may hold."""
    with suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))
