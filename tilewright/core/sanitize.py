"""Sanitises names that others chose, so that a terminal or a page may show them."""

from __future__ import annotations

import unicodedata


def printable(text: str, keep: str = "") -> str:
    """The text with everything that is no visible character as a code: `\\x1b` for an escape, `\\n`
    for the end of a line, `\\udcff` for a byte that is no UTF-8; `keep` stays as it is."""
    if text.isprintable():
        return text
    return "".join(
        c if _shown(c) or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def _shown(character: str) -> bool:
    """Spaces of all widths are, as they stand before a percent sign."""
    return character.isprintable() or unicodedata.category(character) == "Zs"
