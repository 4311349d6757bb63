"""Reads lists of names that a user writes with commas between."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.core.errors import TilewrightError
from tilewright.core.sanitize import printable


class NameListError(TilewrightError, ValueError):
    """A list with a name that is empty or given twice; pydantic takes it for a wrong value."""


def split_names(text: str, flag: str) -> tuple[str, ...]:
    """`a, b` as `a` and `b`. Raises `NameListError`, which names the `flag`."""
    names = tuple(part.strip() for part in text.split(","))
    check_names(names, f"{flag} '{printable(text)}'")
    return names


def check_names(names: Sequence[str], where: str) -> None:
    """Raises `NameListError` where a name is empty or given twice; `where` says where they are
    from."""
    if not all(names):
        raise NameListError(f"{where} has an empty name; write each name once, commas between them")
    if twice := [name for name in names if names.count(name) > 1]:
        raise NameListError(f"{where} names {printable(twice[0])} twice; name each once")
