"""File of finished runs, with which a stopped command resumes without repeating them.

The file has one JSON line per run. The key of a run covers everything that its result depends on.
Lines that cannot be parsed are ignored, and so are lines of another format version; their runs are
repeated. A process that is killed can leave an incomplete last line.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError

from tilewright.core.files import append, canonical, read_plain, remove
from tilewright.core.formats import FINISHED_RUNS

RUNS = "runs.jsonl"
"""Name of the file of finished runs in the output directory of a comparison."""
R = TypeVar("R")


class RowCache(Generic[R]):
    """Results of finished runs, stored in a file with one line per run.

    Args:
        path: the file; it need not exist.
        kind: dataclass of a result, to which stored lines are converted.
        fresh: delete the stored results first.

    Raises:
        UnsafeFile: the path is not a regular file.
        OSError: the file cannot be read or deleted.
    """

    def __init__(self, path: Path, kind: type[R], fresh: bool = False) -> None:
        self.path = path
        self._row: TypeAdapter[R] = TypeAdapter(kind)
        if fresh:
            remove(path)
        data = _read(path)
        self._torn = not data.endswith(b"\n") and bool(data)  # a crash left an incomplete last line
        self._rows: dict[str, R] = {}
        for line in data.splitlines():
            with suppress(ValidationError):
                entry = _Line.model_validate_json(line)
                if not FINISHED_RUNS.can_read(entry.version):
                    continue
                self._rows[entry.key] = self._row.validate_python(entry.run)

    def find(self, key: str) -> R | None:
        """Return the result that was stored under a key, or None if there is none."""
        return self._rows.get(key)

    def add(self, key: str, row: R) -> None:
        """Append a result to the file and flush it to disk.

        Args:
            key: key of the run, which covers everything that affects its result.
            row: the result.

        Raises:
            OSError: the file cannot be written.
        """
        run = self._row.dump_python(row, mode="json")
        line = canonical({"key": key, "run": run, "version": FINISHED_RUNS.written}) + b"\n"
        append(self.path, b"\n" + line if self._torn else line)
        self._torn = False
        self._rows[key] = row


def count_rows(path: Path) -> int:
    """Return the number of lines in a file of finished runs; 0 if the file does not exist."""
    return len(_read(path).splitlines())


class _Line(BaseModel):
    """A line of the file: the key and the result of a run."""

    key: str
    run: dict[str, object]
    version: JsonValue = FINISHED_RUNS.unmarked


def _read(path: Path) -> bytes:
    try:
        return read_plain(path)
    except FileNotFoundError:
        return b""
