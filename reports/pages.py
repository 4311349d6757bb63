"""Pieces of a self-contained page: no script, no file and no address beside it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

_PAGE = Path(__file__).with_name("page.html")


def page(title: str, parts: Sequence[str]) -> bytes:
    """A whole document in UTF-8."""
    template = Template(_PAGE.read_text())
    return template.substitute(title=escape(title), body="\n".join(parts)).encode()


def table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """`head` and cells are HTML; a cell that begins with `<td` or `<th` brings its own tag."""
    lines = [f"<tr>{''.join(_cell(cell, 'th') for cell in head)}</tr>"]
    lines += [f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows]
    return f'<div class="scroll"><table class="{kind}">{"".join(lines)}</table></div>'


def figure(picture: str, caption: str = "") -> str:
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f"<figure>{picture}{below}</figure>"


def legend(names: Sequence[str], shades: Sequence[str], kind: str = "") -> str:
    marks = (
        f'<span><i class="{kind}" style="background:{shade}"></i>{escape(name)}</span>'
        for name, shade in zip(names, shades, strict=True)
    )
    return f'<div class="legend">{"".join(marks)}</div>'


def definitions(pairs: Sequence[tuple[str, str]]) -> str:
    """Terms with what they mean, as HTML."""
    return f"<dl>{''.join(f'<dt>{term}</dt><dd>{text}</dd>' for term, text in pairs)}</dl>"


def _cell(text: str, tag: str = "td") -> str:
    return text if text.startswith(f"<{tag}") else f"<{tag}>{text}</{tag}>"
