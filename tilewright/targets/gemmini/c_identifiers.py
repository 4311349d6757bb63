"""Turns names and texts from outside into what may safely stand in a C file.

Names of tensors, layers and machines come from models and artifacts of strangers. A name with a
backslash, a line break or the end of a comment in it would become code of the file that is
written. So a name only ever enters C as an identifier, in comments and file names too.
"""

from __future__ import annotations

import re

LONGEST = 40
"""Characters that are taken of a name. C99 promises to tell 63 apart, and there is a prefix, a
number and a suffix beside these."""
_FALLBACK = "unnamed"
_NO_IDENTIFIER = re.compile(r"[^A-Za-z0-9_]")
_NO_COMMENT = re.compile(r"[^A-Za-z0-9_ .,:=<>|&+-]")
_RESERVED = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|"
    "inline|int|long|main|register|restrict|return|short|signed|sizeof|static|struct|switch|"
    "typedef|union|unsigned|void|volatile|while|asm|typeof|bool|true|false|nullptr|constexpr|"
    "thread_local|alignas|alignof|static_assert|typeof_unqual"
)
_OWN = re.compile(r"_|[0-9]|gemmini|GEMMINI|.*_t$")
"""Names that C or the file itself may define: the caller's get a prefix."""


class CIdentifiers:
    """The identifiers of one C file, which are all different."""

    def __init__(self, prefix: str) -> None:
        """`prefix` makes an identifier of a name that is none by itself, such as `1x1` or `int`."""
        self._prefix = prefix
        self._by_name: dict[str, str] = {}
        self._taken: set[str] = set()

    def identify(self, name: str) -> str:
        """Return the identifier of a name, the same at every call."""
        if name not in self._by_name:
            self._by_name[name] = self.create(name)
        return self._by_name[name]

    def create(self, name: str) -> str:
        """Return an identifier like this name that nothing else has. Neither has its table, which
        `words_of` names."""
        plain = _NO_IDENTIFIER.sub("_", name)[:LONGEST]
        if not plain or _RESERVED.fullmatch(plain) or _OWN.match(plain):
            plain = f"{self._prefix}_{plain.strip('_') or _FALLBACK}"
        identifier, number = plain, 1
        while {identifier, words_of(identifier)} & self._taken:
            number += 1
            identifier = f"{plain}_{number}"
        self._taken.update((identifier, words_of(identifier)))
        return identifier


def words_of(identifier: str) -> str:
    """Return the name of the table of a function's commands."""
    return f"{identifier}_words"


def comment(text: str) -> str:
    """Return a text that is not a name, such as that of a workload, as it may stand in a comment:
    without the end of a comment, line breaks, backslashes and trigraphs."""
    return _NO_COMMENT.sub("_", text)


def is_header_name(name: str) -> bool:
    """Whether `#include "name"` names this file, with every compiler."""
    return re.fullmatch(r"[A-Za-z0-9_.+=, -]{1,200}", name) is not None
