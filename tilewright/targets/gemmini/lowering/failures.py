"""Names what can go wrong as a schedule is lowered."""

from __future__ import annotations


class LoweringFailure(Exception):
    """A schedule without a program: the class of the failure, and why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name, self.reason = name, f"lower: {reason}"


def needs(name: str, what: str, rows: int, room: int) -> None:
    """Raises `LoweringFailure` where something takes more rows than there are."""
    if rows > room:
        raise LoweringFailure(name, f"{what} takes {rows} rows, and there are {room}")
