"""Ctrl-C: the first ends a command in order and says what is kept, the second ends it at once.

Nothing heavy is imported here: this is in force before anything that takes time.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn, TypeVar

INTERRUPTED = 130
END_SECONDS = 20.0
"""What a run has for its end in order; whatever still goes on then is cut off: what counts is on
disk at any time."""

T = TypeVar("T")


class _State:
    stopped = False
    kept: tuple[str, Callable[[], int]] | None = None


def heed_ctrl_c() -> None:
    """Take Ctrl-C from now on, unless the process's parent has it ignored (`nohup`, `&` in
    a script)."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def was_stopped() -> bool:
    """Whether Ctrl-C came. Whatever is raised then comes of it: compiled code makes errors of its
    own of a `KeyboardInterrupt`."""
    return _State.stopped


def keep_count(noun: str, count: Callable[[], int]) -> None:
    """From now on the same command goes on where this one is stopped, from so many trials, say."""
    _State.kept = noun, count


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
    os._exit(INTERRUPTED)


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
    if _State.stopped:
        _write("\x1b[?25h" if sys.stderr is not None and sys.stderr.isatty() else "")  # cursor
        os._exit(INTERRUPTED)
    _State.stopped = True
    if _State.kept is not None:
        timer = threading.Timer(END_SECONDS, end_stopped)
        timer.daemon = True
        timer.start()
    raise KeyboardInterrupt


def _write(text: str) -> None:
    """Past all buffers, which another thread may hold."""
    with suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))
