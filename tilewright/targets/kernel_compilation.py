"""Cache folders for compiled simulator kernels, and a record of the kernel that is being compiled.

numba compiles a kernel on its first call and stores the code on disk. `kernel_listener` records
here when a compilation begins and ends. Progress displays, which do not load numba, read this
record to explain the delay.

numba regards cached code as current if the source file of the kernel is unchanged. A kernel that
calls a function in another, changed file would therefore keep running the old code. To avoid this,
the name of the cache folder contains a digest of the sources of all kernels: any change starts a
new folder.

The files in such a folder are unpickled, so the folder must be trusted. numba would let a file
`.numba_config.yaml` in the working directory choose another folder, but a command has already left
that directory at this point (see `core.working_folder`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class KernelSet(NamedTuple):
    """The compiled kernels of one kind of target.

    Attributes:
        name: name of the set in messages, such as "simulator kernels".
        total: number of kernels of the target.
        cache: folder with the compiled code.
    """

    name: str  # name for messages, such as "simulator kernels"
    total: int  # number of kernels of the target
    cache: str  # folder with their compiled code


RUNNING: list[KernelSet] = []
"""Sets of numba kernels that are being compiled in this process, the outermost first."""


def describe_compilation() -> str:
    """Return a progress line about the running compilation of a kernel; "" if there is none."""
    if not RUNNING:
        return ""
    kernels = RUNNING[0]
    compiled = sum(1 for _ in Path(kernels.cache).rglob("*.nbc")) if kernels.cache else 0
    number = min(compiled + 1, kernels.total)
    return f"compiling {kernels.name}, {number} of {kernels.total} (once per installation)"


_KEPT = 3  # number of folders with code of earlier versions that are kept
_KERNEL_WORDS = (b"numba", b"NamedTuple", b"np.record", b".compiled import")


def use_cache_of_these_sources() -> None:
    """Set numba's cache folder to the folder for the current sources of the kernels.

    Call this function before any kernel is defined. It does nothing if the user has set
    NUMBA_CACHE_DIR. It also does nothing if the package's folder is read-only; numba then chooses a
    folder that belongs to the user.
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
    """Store the kernels that are defined in this context in a cache folder for one kind of target.

    A change of that target's sources then does not recompile the kernels of other targets.

    Args:
        kind: folder of the target's sources within `tilewright/targets`, such as `gemmini`.
    """
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
"""Cache folders that this process chose for compiled kernels, by the folder of the target's
sources. The dictionary is empty if the user chose a cache folder."""


def _folder_of(kind: str, name: str) -> Path | None:
    """Create the cache folder for compiled kernels of a target's current sources.

    The name of the folder is a digest of those source files that define kernels or the types of
    their arguments (see `_KERNEL_WORDS`). This function also deletes the folders of older versions,
    except the latest `_KEPT` ones.

    Args:
        kind: folder of the target's sources within `tilewright/targets`, such as `vta`.
        name: name of the folder within `__pycache__` that contains one cache folder per version of
            the sources.

    Returns:
        The cache folder; None if it cannot be created or written.
    """
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted((package / kind).rglob("*.py")):
        text = file.read_bytes()
        # Only files that define kernels, or the types of their arguments, count. A change of any
        # other file does not affect the compiled code.
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
    """Delete all kernel cache folders except the current one and the latest `_KEPT` others.

    Another process may delete them at the same time, so missing folders are ignored.

    Args:
        caches: folder that contains the cache folders.
        current: cache folder in use, which is never deleted.
    """
    others = sorted(
        (path for path in caches.iterdir() if path != current),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    for path in others[_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)
