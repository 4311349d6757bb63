"""Digests of the source files that a measurement depends on."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def source_digest(folder: Path, parts: tuple[str, ...] = ("",)) -> str:
    """Return a digest of Python modules, which changes when the source of one of them changes.

    Args:
        folder: folder that contains the parts. Paths relative to it are part of the digest.
        parts: modules (`spec.py`), or folders whose modules are all included; by default the whole
            folder.
    """
    digest = hashlib.sha256()
    for part in parts:
        path = folder / part
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]
