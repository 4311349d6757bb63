"""Digests what a measurement depends on besides its arguments: the code that lowers and times."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_PARTS = (
    "spec.py", "encoding.py", "isa.py", "lowering", "timing", "functional", "measure.py",
    "verify.py",
)  # fmt: skip


@cache
def simulator_version() -> str:
    """A digest of the sources of lowering and simulators: it changes when their results may."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for part in _PARTS:
        files = [here / part] if part.endswith(".py") else sorted((here / part).rglob("*.py"))
        for file in files:
            digest.update(file.relative_to(here).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]
