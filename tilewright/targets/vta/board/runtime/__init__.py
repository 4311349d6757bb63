"""Copies the C sources that run an artifact on a board into the artifact."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from tilewright.core.files import write_atomically

SOURCES = ("Makefile", "driver.h", "main.c", "tilewright.c", "tilewright.h")


def copy_runtime(folder: Path) -> tuple[str, ...]:
    """Write the sources into a folder, made if it is missing; returns their names. Raises
    `UnsafeFile` for something else than plain files of this user's in their places, and
    `OSError`."""
    for name in SOURCES:
        write_atomically(folder / name, source(name), sync=False)
    return SOURCES


def source(name: str) -> bytes:
    """One of `SOURCES`."""
    return (resources.files(__name__) / name).read_bytes()
