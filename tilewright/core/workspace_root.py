"""Finds the folder of the workspace: `./.tilewright`, or `TILEWRIGHT_HOME` if that is set and not
empty. The folder need not exist.
"""

from __future__ import annotations

import os
from pathlib import Path

from tilewright.core.working_folder import started_in

DEFAULT = ".tilewright"
VARIABLE = "TILEWRIGHT_HOME"


def workspace_root() -> Path:
    """Return the absolute path of the workspace in force, so that a later change of the working
    folder does not move it. Raises `OSError` and `RuntimeError` where there is no working folder
    any more, or links lead in a circle."""
    named = os.environ.get(VARIABLE) or DEFAULT
    return (started_in() / DEFAULT if named == DEFAULT else Path(named)).resolve()
