"""Stores finished runs in a file, so that a stopped command resumes.

A line a run, under a key of all that the run depends on. A line that cannot be read, such as the
last one of a process that was killed, is a run to repeat. So is one of another version.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError

from tilewright.core.files import append, canonical, read_plain, remove
from tilewright.core.formats import FINISHED_RUNS

RUNS = "runs.jsonl"
"""The file of finished runs in the folder of a comparison."""
R = TypeVar("R")


class RowCache(Generic[R]):
    """The rows in a file, dataclasses of one `kind`; with `fresh`, none are kept. Raises
    `UnsafeFile` and `OSError`."""

    def __init__(self, path: Path, kind: type[R], fresh: bool = False) -> None:
        self.path = path
        self._row: TypeAdapter[R] = TypeAdapter(kind)
        if fresh:
            remove(path)
        data = _read(path)
        self._torn = not data.endswith(b"\n") and bool(data)  # a crash cut the last line off
        self._rows: dict[str, R] = {}
        for line in data.splitlines():
            with suppress(ValidationError):
                entry = _Line.model_validate_json(line)
                if not FINISHED_RUNS.reads(entry.version):
                    continue
                self._rows[entry.key] = self._row.validate_python(entry.run)

    def find(self, key: str) -> R | None:
        """The run under this key, or None if it is still to be done."""
        return self._rows.get(key)

    def add(self, key: str, row: R) -> None:
        """Write a run to disk, synced. Raises `OSError`."""
        run = self._row.dump_python(row, mode="json")
        line = canonical({"key": key, "run": run, "version": FINISHED_RUNS.written}) + b"\n"
        append(self.path, b"\n" + line if self._torn else line)
        self._torn = False
        self._rows[key] = row


def count_rows(path: Path) -> int:
    """How many lines a file of rows has, 0 if there is none."""
    return len(_read(path).splitlines())


class _Line(BaseModel):
    """A line of the file."""

    key: str
    run: dict[str, object]
    version: JsonValue = FINISHED_RUNS.unmarked


def _read(path: Path) -> bytes:
    try:
        return read_plain(path)
    except FileNotFoundError:
        return b""
