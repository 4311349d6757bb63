"""Generates Markdown: escaped text, code, tables and links.

Names that other people chose, such as names of layers, are escaped so that they appear as plain
text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tilewright.core.user_text import printable

Links = Mapping[str, str]
"""Addresses of links, by the text of the link."""
Row = dict[str, str]
"""Row of a table: the cells by the heading of their column."""
_MARKS = re.compile(r"([\\`*\[\]|])")


def escape_text(text: str) -> str:
    """Escape a text for Markdown and HTML."""
    marked = _MARKS.sub(r"\\\1", printable(text))
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def code(text: str) -> str:
    """Return a text as inline code."""
    text = printable(text)
    fence = "`" * (_longest_run(text) + 1)
    space = " " * ("`" in text)
    return f"{fence}{space}{text}{space}{fence}"


def block(text: str, language: str) -> str:
    """Return a text as a code block, or "" for an empty text.

    Args:
        text: content of the block.
        language: language for syntax highlighting, such as "sh".
    """
    if not text:
        return ""
    text = printable(text, keep="\n")
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def paragraphs(*parts: str) -> str:
    """Join texts to a Markdown document with empty lines between them. Empty texts are left out."""
    return "\n\n".join(part for part in parts if part)


def markdown_table(rows: Sequence[Row]) -> str:
    """Return a Markdown table with one line per row.

    All columns except the first are right-aligned.

    Args:
        rows: cells by heading, at least one row. All rows have the same headings.
    """
    heads = list(rows[0])
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1)]
    lines += [[escape_text(row[head]) for head in heads] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_known(rows: Sequence[Row]) -> list[Row]:
    """Return a table without the columns that are empty in every row.

    Args:
        rows: cells by heading. All rows have the same headings.
    """
    known = [head for head in rows[0] if any(row[head] for row in rows)] if rows else []
    return [{head: row[head] for head in known} for row in rows]


def mark_text(mark: str, text: str) -> str:
    """Return a text with a mark, such as `~`, in front of it; "" for an empty text."""
    return mark + text if text else ""


def list_links(links: Links) -> str:
    """Return links as a Markdown list with one link per line.

    Args:
        links: addresses by title.
    """
    return "\n".join(f"- [{escape_text(name)}]({address})" for name, address in links.items())
