"""Shows the examples of docstrings as code on the site (`mkdocs.yml`)."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class Doctests(Extension):
    """Fences every doctest, which Markdown would take for quotations."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of a module, class or function."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """Return the docstring with a code fence around each example, up to the next empty line."""
    return _EXAMPLE.sub(lambda result: f"```pycon\n{result[0]}\n```", docstring)
