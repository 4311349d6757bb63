"""Events that a runner reports while it executes the steps of a tuning run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Event:
    """Base class of the events of a run."""


@dataclass(frozen=True)
class StageBegan(Event):
    """Event: a step of a workload began.

    Attributes:
        name: name of the step's function.
    """

    name: str


@dataclass(frozen=True)
class StageReused(Event):
    """Event: the result of a step was taken from an earlier run, so the step was not executed.

    Attributes:
        name: name of the step's function.
    """

    name: str


@dataclass(frozen=True)
class Note(Event):
    """Event: a message for the user.

    Attributes:
        text: the message.
    """

    text: str


Listener = Callable[[Event], None]
"""Callback that receives each event when it happens, in the thread that works on the workload."""


def ignore(event: Event) -> None:
    """Ignore an event. This is the default listener."""
