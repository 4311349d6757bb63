"""Names that others chose, as a terminal or a page may show them."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """The text with everything that is no visible character as a code: `\\x1b` for an escape, `\\n`
    for the end of a line, `\\udcff` for a byte that is no UTF-8; `keep` stays as it is."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )
