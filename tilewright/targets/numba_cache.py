"""Keeps compiled kernels between processes: one folder a state of the sources.

Numba decides by a file's own date whether its cached code is current. A kernel that calls into a
changed file would go on running the old code. So the cache's folder carries a digest of the
kernels' sources: any change starts a new one.

What lies in such a folder is unpickled. Numba would let `.numba_config.yaml` of the working folder
name another one: a command has left that folder by then (`core.working_folder`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_KEPT = 3  # folders of earlier states
_KERNEL_WORDS = (b"numba", b"NamedTuple", b"np.record", b"njit_args import")


def use_cache_of_these_sources() -> None:
    """Point numba at the folder of the present sources. Call before any kernel is defined.

    Does nothing if the user has set NUMBA_CACHE_DIR, or where the package's folder is read-only
    (numba then picks a folder of the user).
    """
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    folder = _folder_of("vta", "numba")
    if folder is None:
        return
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    _CHOSEN["vta"] = str(folder)
    if "numba" in sys.modules:
        sys.modules["numba"].core.config.CACHE_DIR = str(folder)


@contextmanager
def cache_of(kind: str) -> Iterator[None]:
    """Kernels defined meanwhile keep their code in a folder for the sources of one other kind of
    target, so that a change there recompiles no other kind's."""
    config = sys.modules["numba"].core.config
    before = config.CACHE_DIR
    if before == _CHOSEN.get("vta"):
        if kind not in _CHOSEN:
            _CHOSEN[kind] = str(_folder_of(kind, f"numba-{kind}") or before)
        config.CACHE_DIR = _CHOSEN[kind]
    try:
        yield
    finally:
        config.CACHE_DIR = before


_CHOSEN: dict[str, str] = {}
"""Folders of this process, by kind of target; empty if the user chose one."""


def _folder_of(kind: str, name: str) -> Path | None:
    """The folder for the present sources of a kind; None if nothing can be written there."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted((package / kind).rglob("*.py")):
        text = file.read_bytes()
        # Kernels, and the types they are compiled for; the folders have much else.
        if any(word in text for word in _KERNEL_WORDS):
            digest.update(file.relative_to(package).as_posix().encode() + b"\0" + text)
    caches = package / "__pycache__" / name
    folder = caches / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    if not os.access(folder, os.W_OK):
        return None
    _forget_old(caches, folder)
    return folder


def _forget_old(caches: Path, current: Path) -> None:
    """Remove all but the latest few folders; another process may be doing the same."""
    others = sorted(
        (path for path in caches.iterdir() if path != current),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    for path in others[_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)
