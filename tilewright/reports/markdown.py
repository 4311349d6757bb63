"""Escapes names that others chose for Markdown, so that text stays text."""

from __future__ import annotations

import re

from tilewright.core.user_text import printable

_MARKS = re.compile(r"([\\`*\[\]|])")


def plain(text: str) -> str:
    """The text with its marks escaped, HTML included."""
    marked = _MARKS.sub(r"\\\1", printable(text))
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def code(text: str) -> str:
    """The text as code within a line."""
    text = printable(text)
    fence = "`" * (_longest_run(text) + 1)
    space = " " * ("`" in text)
    return f"{fence}{space}{text}{space}{fence}"


def block(text: str, language: str) -> str:
    """Lines of code; nothing for no text."""
    if not text:
        return ""
    text = printable(text, keep="\n")
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def paragraphs(*parts: str) -> str:
    """Join paragraphs by empty lines, and leave out empty ones."""
    return "\n\n".join(part for part in parts if part)
