"""The command line. Only this package uses a terminal.

- `commands/` has one module per group of commands. A module declares the options and calls the
  work.
- `views/` shows the results: tables, progress and closing lines.

Slow imports, including the views, are delayed until a command runs. A command first leaves the
working folder, so that its child processes also start in `/` (`core.working_folder`).
"""

from __future__ import annotations

import gc

from tilewright.cli.signals import end_stopped, heed_signals, was_stopped
from tilewright.core.working_folder import leave_working_folder

__all__ = ["command", "main"]


def main() -> None:
    """Run a command in the same way as `cli.app.main`, which is imported only at the call."""
    leave_working_folder()
    from tilewright.cli.app import main as call

    call()


def command() -> None:
    """Run the `tilewright` command.

    Ctrl-C and SIGTERM are handled even before the first slow import.
    """
    heed_signals()
    try:
        leave_working_folder()
        from tilewright.cli.app import end_output
        from tilewright.cli.app import main as call

        try:
            call()
        finally:
            end_output()
            gc.freeze()  # collecting the objects of TVM, Prefect and MLflow at exit takes 1 s
    except SystemExit:
        raise  # the message was already printed
    except BaseException as error:
        if was_stopped() or isinstance(error, KeyboardInterrupt):
            end_stopped()
        raise
