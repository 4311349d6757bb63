"""Digests the sources that a measurement depends on."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def source_digest(folder: Path) -> str:
    """Of all modules below a folder: it changes when one of them does."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]
