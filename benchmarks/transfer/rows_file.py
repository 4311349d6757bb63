"""Writes the file that the parts of `benchmarks.transfer.compare` share, row after row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tilewright.core.files import write_atomically


class Found:
    """The rows of each part, kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: dict[str, list[dict[str, Any]]] = {"accuracy": [], "tuning": [], "layers": []}
        if path.exists():
            self.rows |= json.loads(path.read_text())

    def keep(self, part: str, row: dict[str, Any]) -> None:
        """Add a row to a part, and write all of them."""
        self.rows[part].append(row)
        write_atomically(self.path, (json.dumps(self.rows, indent=1) + "\n").encode())

    def has(self, part: str, **key: object) -> bool:
        """Whether a row of a part has these values."""
        return any(
            all(row.get(name) == value for name, value in key.items()) for row in self.rows[part]
        )
