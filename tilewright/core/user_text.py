"""Functions for text from users: escape unprintable characters, and split lists of names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from tilewright.core.errors import TilewrightError

_CONTINUES = re.compile(r"[^:]*=.*|[^:]*\.(?:csv|csv\.gz|parquet)")
"""Matches a part of a comma-separated list of targets that belongs to the previous target:
NAME=VALUE, or a table file."""


def printable(text: str, keep: str = "") -> str:
    r"""Replace each unprintable character by an escape sequence.

    For example, an escape character becomes `\x1b`, a line break becomes `\n`, and a byte that is
    not valid UTF-8 becomes `\udcff`.

    Args:
        text: text from a user or a file.
        keep: characters that are not replaced.
    """
    if text.isprintable():
        return text
    return "".join(
        c if _is_printable(c) or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def _is_printable(character: str) -> bool:
    """Return whether a character can be printed. Spaces of any width are printable."""
    return character.isprintable() or unicodedata.category(character) == "Zs"


class NameListError(TilewrightError, ValueError):
    """A list contains an empty name, or a name twice. pydantic reports it as an invalid value."""


def split_names(text: str, flag: str) -> tuple[str, ...]:
    """Split a comma-separated list such as `a, b` into names.

    Args:
        text: the list.
        flag: option that contains the list, for error messages.

    Raises:
        NameListError: a name is empty or repeated.
    """
    names = tuple(part.strip() for part in text.split(","))
    check_names(names, f"{flag} '{printable(text)}'")
    return names


def split_targets(text: str, flag: str) -> tuple[str, ...]:
    """Split a comma-separated list of targets.

    The options and table files of a target may also contain commas. For example,
    `vta-pynq,cpu:threads=1,isa=avx2` contains two targets.

    Args:
        text: the list.
        flag: option that contains the list, for error messages.

    Raises:
        NameListError: a name is empty or repeated.
    """
    names: list[str] = []
    for part in (piece.strip() for piece in text.split(",")):
        if names and ":" in names[-1] and _CONTINUES.fullmatch(part):
            names[-1] += f",{part}"
        else:
            names.append(part)
    check_names(names, f"{flag} '{printable(text)}'")
    return tuple(names)


def check_names(names: Sequence[str], where: str) -> None:
    """Check that no name is empty or repeated.

    Args:
        names: the names to check.
        where: source of the names, for error messages.

    Raises:
        NameListError: a name is empty or repeated.
    """
    if not all(names):
        raise NameListError(
            f"{where} contains an empty name; separate the names with single commas"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise NameListError(f"{where} names {printable(twice[0])} twice; give each name once")
