"""Tells the processes of a command where their modules are."""

from __future__ import annotations

import os
import sys


def module_path() -> str:
    """Where this process finds modules: never the folder it happens to run in (`-P`), in which a
    stranger's files may lie, nor any that is named relative to it."""
    return os.pathsep.join(filter(os.path.isabs, sys.path))
