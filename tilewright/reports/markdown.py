"""Writes Markdown: text whose marks are escaped, code, tables and links.

Names that others chose are escaped, so that text stays text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tilewright.core.user_text import printable

Links = Mapping[str, str]
"""Addresses by what is there."""
Row = dict[str, str]
"""Cells by the heading of their column."""
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


def markdown_table(rows: Sequence[Row]) -> str:
    """Rows of equal headings; all but the first column are figures, and stand on the right."""
    heads = list(rows[0])
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1)]
    lines += [[plain(row[head]) for head in heads] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_known(rows: Sequence[Row]) -> list[Row]:
    """The rows without columns that none of them has a cell of."""
    known = [head for head in rows[0] if any(row[head] for row in rows)] if rows else []
    return [{head: row[head] for head in known} for row in rows]


def marked(mark: str, text: str) -> str:
    """Nothing stays nothing."""
    return mark + text if text else ""


def listed(links: Links) -> str:
    """A line a link."""
    return "\n".join(f"- [{plain(name)}]({address})" for name, address in links.items())
