"""Runs `tilewright …` in the test process, with its own environment and working folder.

This is for commands that start neither Prefect nor MLflow: both libraries keep the environment
variables that they have read for as long as the process lives. Commands that use them run as forks
(`tests/warm.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilewright.cli import app as command_line
from tilewright.core.working_folder import _Started

WIDTH = {"COLUMNS": "80"}
"""Terminal width as in a fork, which has no terminal. This process may have one of any width."""


def run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the command and wait. An exception that would give a traceback is raised here."""
    status = 0
    with _started_in(folder, environment), CliRunner().isolation() as (out, err, _):
        sys.argv = ["tilewright", *arguments]
        try:
            command_line.main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        printed, told = out.getvalue().decode(), err.getvalue().decode()
    return subprocess.CompletedProcess(arguments, status, printed, told)


@contextmanager
def _started_in(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Make the process look as if it was started in `folder`, and restore it afterwards."""
    variables, present = dict(os.environ), Path.cwd()
    given = {**environment, **WIDTH}  # may be a view of `os.environ`, which is cleared below
    with pytest.MonkeyPatch.context() as patch:
        # State that a command sets only once per process.
        patch.setattr(_Started, "folder", None)
        patch.setattr(_Started, "typed", {})
        patch.setattr(sys, "argv", sys.argv)
        os.environ.clear()
        os.environ.update(given)
        os.chdir(folder)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(variables)
            os.chdir(present)
