"""Handling of Ctrl-C and SIGTERM.

The first signal ends a command cleanly, with a message about what is kept. The second signal ends
the command immediately. This module imports nothing slow, because it must be active before any slow
import.
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
"""Exit status of a command that Ctrl-C (130) or SIGTERM (143) ended."""
END_SECONDS = 20.0
"""Seconds that a stopped run gets to end cleanly. Afterwards the process is ended at once. This
loses no results, because results are always written to disk immediately."""
AGAIN_SECONDS = 0.05
"""Seconds before a lost interrupt is delivered again. By then, the code that lost the interrupt has
returned."""

T = TypeVar("T")


class _State:
    status = 0  # exit status of the command after a signal; 0 before
    lost = False
    kept: tuple[str, Callable[[], int]] | None = None


def heed_signals() -> None:
    """Handle Ctrl-C and SIGTERM from now on, unless the parent process ignores them.

    `nohup` ignores signals for its child process, and so does a shell for a command with `&` in a
    script.

    Python runs the handler between any two steps of the main thread. If this happens in a `__del__`
    method or in a callback from compiled code, the `KeyboardInterrupt` cannot be raised, and Python
    only reports it as unraisable. `_deliver_again` receives that report and sends the signal again.
    """
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = partial(_deliver_again, sys.unraisablehook)


def was_stopped() -> bool:
    """Return whether a signal was received.

    Any later error is then a consequence, because compiled code turns `KeyboardInterrupt` into
    other errors.
    """
    return bool(_State.status)


def stopped_status() -> int:
    """Return the exit status of a command that was stopped."""
    return _State.status or INTERRUPTED


def keep_count(noun: str, count: Callable[[], int]) -> None:
    """Register the items that a stopped command keeps, such as trials, for its last message.

    A repeated command resumes from these items.

    Args:
        noun: name of an item in the singular, such as "trial".
        count: function that returns the current number of items.
    """
    _State.kept = noun, count


def keep_trials(folder: Path) -> None:
    """Register that a stopped command keeps the trials in an output directory.

    Args:
        folder: the output directory.
    """

    def count() -> int:
        from tilewright.search import read_store

        with suppress(FileNotFoundError), read_store(folder) as store:
            return len(store.frame())
        return 0

    keep_count("trial", count)


def sentence() -> str:
    """Return the last message of a stopped command: what is kept, and what to do next."""
    if _State.kept is None:
        return "stopped; start the same command again"
    noun, count = _State.kept
    try:
        kept = count()
        what = f"{kept:,} {noun}{' is' if kept == 1 else 's are'} kept"
    except Exception:  # after a stop during an import, anything can fail
        what = f"all finished {noun}s are kept"
    return f"stopped; {what}: start the same command again to resume"


def end_stopped() -> NoReturn:
    """Print that the command was stopped, and end the process immediately."""
    text = sentence()
    _write(f"error: {text}\n")
    os._exit(stopped_status())


def run_interruptible(work: Callable[[], T]) -> T:
    """Call a function in a thread, so that Ctrl-C can end the command while compiled code runs.

    Compiled code ignores Ctrl-C. The main thread only waits, so it can react. The end of the
    process does not wait for the thread. Raises the errors of `work`, and `KeyboardInterrupt`.

    Args:
        work: function that calls the compiled code.

    Returns:
        The result of `work`.
    """
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
        _write("\x1b[?25h" if sys.stderr is not None and sys.stderr.isatty() else "")  # show cursor
        os._exit(_State.status)
    _State.status = TERMINATED if number == signal.SIGTERM else INTERRUPTED
    if _State.kept is not None:
        _call_later(END_SECONDS, end_stopped)
    raise KeyboardInterrupt


def _deliver_again(
    report: Callable[[UnraisableHookArgs], object], lost: UnraisableHookArgs
) -> None:
    """Send an interrupt again that Python could only report as unraisable.

    This function is a `sys.unraisablehook`. The repeated signal does not count as a second Ctrl-C.

    Args:
        report: the original hook, which receives all other exceptions.
        lost: the unraisable exception.
    """
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        report(lost)
        return
    _State.lost = True
    with suppress(RuntimeError):  # at exit, the interpreter starts no threads
        _call_later(AGAIN_SECONDS, _signal_if_lost)


def _signal_if_lost() -> None:
    """Send SIGINT to the main thread if an interrupt was lost. The signal also ends a wait."""
    if _State.lost:  # unless a second Ctrl-C has replaced it
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _call_later(seconds: float, call: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


def _write(text: str) -> None:
    """Write directly to standard error, since another thread may hold the lock of the buffer."""
    with suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))
