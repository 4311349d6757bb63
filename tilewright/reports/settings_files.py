"""Pictures look alike wherever they are drawn: matplotlib's own style, and what the user names in
`MATPLOTLIBRC`, but no `matplotlibrc` of the working folder."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from tilewright.core.imports import look_elsewhere


def matplotlib_reads_none_here() -> None:
    """Call before matplotlib is imported. It is also silent of a home where it cannot keep what it
    knows of fonts: then it finds out anew."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    named = Path(os.environ.get("MATPLOTLIBRC") or os.devnull)
    file = named / "matplotlibrc" if named.is_dir() else named
    look_elsewhere("matplotlib", {"matplotlibrc": str(file.absolute())}, within="gen_candidates")
