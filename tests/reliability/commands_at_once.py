"""Runs several `tilewright …` commands at the same time in one workspace.

`python -m tests.reliability.commands_at_once [[ARGUMENT, …], …]` takes JSON and prints the exit
statuses as JSON. The output of command i goes to `said-i`. The commands are forks of this process,
which has already imported their libraries, because imports take most of the time of a short run.
This process has opened no files or connections that the forks would share.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import sys
from typing import NoReturn

from tilewright.services.workspace import use_workspace

HANGS = 300
"""Seconds after which a command prints the stack of each of its threads and exits."""


def _become(number: int, arguments: list[str]) -> NoReturn:
    status: object = 99
    try:
        said = os.open(f"said-{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(said, 1)
        os.dup2(said, 2)
        faulthandler.dump_traceback_later(HANGS, file=2, exit=True)  # into its output
        sys.argv = ["tilewright", *arguments]
        command()
        status = 0
    except SystemExit as end:
        status = end.code or 0
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


if __name__ == "__main__":
    workspace = use_workspace()
    import tilewright.flows.tuning_prefect
    import tilewright.reports.run_pictures  # noqa: F401
    from tilewright.cli import command

    shutil.rmtree(workspace.root)  # the commands create it, all at once
    commands = json.loads(sys.argv[1])
    children = []
    for number, arguments in enumerate(commands):
        child = os.fork()
        if child == 0:
            _become(number, arguments)
        children.append(child)
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
