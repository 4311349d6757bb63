"""Runs a list of `tilewright …` commands in turn, each in a fork of this process.

`python -m tests.reliability.watched_commands [[["ARGUMENT", …], "TEXT"], …]` takes JSON and prints
the exit statuses. A command with a TEXT is interrupted as soon as it has printed that text. The
output of command i goes to `said-i`.

A library that is preloaded with `LD_PRELOAD` sees everything that this process and its forks do,
also while Python libraries are imported.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

from tests import warm

LIMIT_SECONDS = 600.0


def _status(number: int, arguments: list[str], until: str) -> int:
    """Run a command in a fork and return its exit status. Interrupt it if it prints `until`."""
    (streams := Path(f"said-{number}")).mkdir()
    for name in ("out", "err"):
        (streams / name).touch()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            warm._command(arguments, os.getcwd(), dict(os.environ), str(streams.resolve()), "", "")
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    deadline = time.monotonic() + LIMIT_SECONDS
    interrupted = not until
    while (result := os.waitpid(child, os.WNOHANG))[0] == 0:
        if not interrupted and until in (streams / "out").read_text():
            os.kill(child, signal.SIGINT)
            interrupted = True
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.05)
    return os.waitstatus_to_exitcode(result[1])


if __name__ == "__main__":
    for library in (*warm.LIBRARIES, "tests.preloaded"):
        import_module(library)
    commands = json.loads(sys.argv[1])
    print([_status(i, arguments, until) for i, (arguments, until) in enumerate(commands)])
