"""The command line, and the only place that knows a terminal.

commands/   a module a group of commands: their options, and the order of the work
views/      what they show: tables, progress, closing lines

Heavy imports, views among them, wait until a command runs. `services` does not: where a command
starts processes of its own (`multiprocessing`), Python imports this module in them before anything
else, and no library may look for settings in the working folder there either.
"""

from __future__ import annotations

from typing import NoReturn

from tilewright import services  # noqa: F401
from tilewright.cli.signals import end_stopped, heed_ctrl_c, was_stopped

__all__ = ["command", "main"]


def main() -> None:
    """Run a command as `cli.app.main` does, which is imported now."""
    from tilewright.cli.app import main as call

    call()


def command() -> NoReturn:
    """The `tilewright` command. Ctrl-C is heeded before the first import that takes time."""
    heed_ctrl_c()
    try:
        from tilewright.cli.app import run

        run()
    except BaseException as error:
        if was_stopped() or isinstance(error, KeyboardInterrupt):
            end_stopped()
        raise
