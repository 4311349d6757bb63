"""Errors that a user can meet: each message names the cause and the next step."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class TilewrightError(Exception):
    """A mistake in the input; `str(error)` is what a terminal shows, without a traceback."""


class SpecError(TilewrightError):
    """A hardware specification that cannot be read or cannot be encoded."""


class WorkloadError(TilewrightError):
    """A workload text or shape that makes no sense."""


class UnknownName(TilewrightError):
    """A target, space, tuner, network or layer nobody knows."""

    def __init__(self, kind: str, name: str, known: list[str]) -> None:
        near = nearest(name, known)
        meant = f"; did you mean {near}?" if near else ";"
        super().__init__(f"unknown {kind} '{name}'{meant} known: {', '.join(sorted(known))}")
        self._said = kind, name, known

    def __reduce__(self) -> tuple[type[UnknownName], tuple[str, str, list[str]]]:
        """A process that raises it hands it on to the one that started it."""
        return type(self), self._said


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a mistyped one is most like, whatever its case; None if none is near."""
    by_folded = {each.casefold(): each for each in known}
    found = get_close_matches(name.casefold(), by_folded, n=1)
    return by_folded[found[0]] if found else None
