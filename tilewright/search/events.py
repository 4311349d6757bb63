"""Events that a runner reports while it performs the steps of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Event:
    """Something that happened in a run."""


@dataclass(frozen=True)
class StageBegan(Event):
    """A step of a workload began. `name` is the name of its function."""

    name: str


@dataclass(frozen=True)
class StageReused(Event):
    """The result of a step was taken from an earlier run, so the step was not executed.

    Attributes:
        name: name of the step's function.
    """

    name: str


@dataclass(frozen=True)
class Note(Event):
    """A message that the user should see."""

    text: str


Listener = Callable[[Event], None]
"""Callback that receives each event when it happens, in the thread that works on the workload."""


def ignore(event: Event) -> None:
    """Ignore the event. This is the default listener."""
