"""Errors that are shown to users. Each message names the cause and the next step."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class TilewrightError(Exception):
    """Base class of errors that the user can correct.

    The command line prints `str(error)` without a traceback.
    """


class SpecError(TilewrightError):
    """A hardware specification cannot be read or cannot be encoded."""


class WorkloadError(TilewrightError):
    """The text or the shape of a workload is invalid."""


class UnknownName(TilewrightError):
    """A target, space, tuner, network or layer with this name does not exist.

    The message suggests the most similar name.

    Args:
        kind: type of the named object for the message, such as "target".
        name: the unknown name.
        known: the names that exist.
    """

    def __init__(self, kind: str, name: str, known: list[str]) -> None:
        near = closest_name(name, known)
        meant = f"; did you mean {near}?" if near else ";"
        super().__init__(f"unknown {kind} '{name}'{meant} known: {', '.join(sorted(known))}")
        self._said = kind, name, known

    def __reduce__(self) -> tuple[type[UnknownName], tuple[str, str, list[str]]]:
        """Support pickling, so that a child process can pass the error on to its parent."""
        return type(self), self._said


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a misspelled name, ignoring case.

    Args:
        name: the misspelled name.
        known: the names that exist.

    Returns:
        The most similar name, or None if no name is similar enough.
    """
    by_folded = {known_name.casefold(): known_name for known_name in known}
    matches = get_close_matches(name.casefold(), by_folded, n=1)
    return by_folded[matches[0]] if matches else None
