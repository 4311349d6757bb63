"""Shows the boards of a cluster as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tilewright.core.files import Json

_COLUMNS = ("machine", "programs", "wrong", "time_outs", "failures", "resets")


def boards_text(boards: Mapping[str, Mapping[str, Json]], as_json: bool) -> str:
    """A line a board, or JSON."""
    if as_json:
        return json.dumps({name: dict(about) for name, about in boards.items()}, indent=1) + "\n"
    if not boards:
        return "no boards: start 'tilewright board serve' beside one\n"
    rows = [["board", *(name.replace("_", "-") for name in _COLUMNS)]]
    for board, about in sorted(boards.items()):
        rows.append([f"board:{board}", *(str(about[name]) for name in _COLUMNS)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines) + "\n"
