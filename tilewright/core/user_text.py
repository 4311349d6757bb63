"""Text that users and strangers wrote: made printable, and split into lists of names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from tilewright.core.errors import TilewrightError

_CONTINUES = re.compile(r"[^:]*=.*|[^:]*\.(?:csv|csv\.gz|parquet)")
"""A part of a list of targets that belongs to the target before it: NAME=VALUE, or a table."""


def printable(text: str, keep: str = "") -> str:
    """Return the text with every character that is not visible as a code: `\\x1b` for an escape,
    `\\n` for the end of a line, `\\udcff` for a byte that is no UTF-8. Characters in `keep`
    stay."""
    if text.isprintable():
        return text
    return "".join(
        c if _shown(c) or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def _shown(character: str) -> bool:
    """Spaces of all widths are, as they stand before a percent sign."""
    return character.isprintable() or unicodedata.category(character) == "Zs"


class NameListError(TilewrightError, ValueError):
    """A list with a name that is empty or given twice; pydantic takes it for a wrong value."""


def split_names(text: str, flag: str) -> tuple[str, ...]:
    """Split `a, b` into `a` and `b`. Raises `NameListError`, which names the `flag`."""
    names = tuple(part.strip() for part in text.split(","))
    check_names(names, f"{flag} '{printable(text)}'")
    return names


def split_targets(text: str, flag: str) -> tuple[str, ...]:
    """Read names of targets with commas between, which may have options or tables with commas:
    `vta-pynq,cpu:threads=1,isa=avx2` is two targets. Raises `NameListError`."""
    names: list[str] = []
    for part in (piece.strip() for piece in text.split(",")):
        if names and ":" in names[-1] and _CONTINUES.fullmatch(part):
            names[-1] += f",{part}"
        else:
            names.append(part)
    check_names(names, f"{flag} '{printable(text)}'")
    return tuple(names)


def check_names(names: Sequence[str], where: str) -> None:
    """Check names for empty and repeated ones. Raises `NameListError`; `where` says where the names
    are from."""
    if not all(names):
        raise NameListError(f"{where} has an empty name; write each name once, commas between them")
    if twice := [name for name in names if names.count(name) > 1]:
        raise NameListError(f"{where} names {printable(twice[0])} twice; name each once")
