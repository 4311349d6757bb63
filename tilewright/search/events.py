"""Defines what a runner reports while it performs steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Event:
    """Something that happened in a run."""


@dataclass(frozen=True)
class StageBegan(Event):
    """A step of any workload began, by the name of its function."""

    name: str


@dataclass(frozen=True)
class StageReused(Event):
    """Its result was there already, from an earlier run."""

    name: str


@dataclass(frozen=True)
class Note(Event):
    """Something a person should know."""

    text: str


Listener = Callable[[Event], None]
"""Hears of each event when it happens, from the thread that works on the workload."""


def ignore(event: Event) -> None:
    """The listener that does nothing."""
