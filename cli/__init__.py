"""The command line, and the only place that knows a terminal.

commands/   a module a group of commands: their options, and the order of the work
views/      what they show: tables, progress, closing lines

Heavy imports, views among them, wait until a command runs.
"""

from __future__ import annotations

from typing import NoReturn

from cli.interrupts import end_stopped, heed_ctrl_c, was_stopped

__all__ = ["command", "main"]


def main() -> None:
    """Run a command as `cli.app.main` does, which is imported now."""
    from cli.app import main as call

    call()


def command() -> NoReturn:
    """The `tilewright` command. Ctrl-C is heeded before the first import that takes time."""
    heed_ctrl_c()
    try:
        from cli.app import run

        run()
    except BaseException as error:
        if was_stopped() or isinstance(error, KeyboardInterrupt):
            end_stopped()
        raise
