"""Defines the events of a run that a person may want to see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.targets.capabilities import Latency
from tilewright.tuning.results import TunedWorkload


@dataclass(frozen=True)
class WorkloadFound:
    """A workload of the network: its id, its text, how often an inference runs it."""

    id: str
    text: str
    count: int


@dataclass(frozen=True)
class NetworkFound:
    """The model is read; these workloads will be tuned."""

    name: str
    target: str
    workloads: tuple[WorkloadFound, ...]


@dataclass(frozen=True)
class WorkloadsAdded:
    """These will be tuned, too: what else the network has where it is fused otherwise."""

    workloads: tuple[WorkloadFound, ...]


@dataclass(frozen=True)
class StageBegan:
    """A stage of whichever workload, by the name of its function."""

    name: str


@dataclass(frozen=True)
class StageReused:
    """It was done already, in an earlier run."""

    name: str


@dataclass(frozen=True)
class WorkloadBegan:
    """What a workload costs without tuning, and at best; None where its target cannot tell."""

    id: str
    baseline: Latency | None
    roofline: Latency | None


@dataclass(frozen=True)
class RoundScheduled:
    """A workload gets the next round, of those that share `most` trials; `trials` are those of all
    of them so far."""

    id: str
    trials: int
    most: int


@dataclass(frozen=True)
class RoundDone:
    """A round of a workload: its index, the run's trials so far, the best of them, and the share of
    them that is valid."""

    id: str
    round: int
    trials: int
    best: Latency | None
    valid_share: float


@dataclass(frozen=True)
class WorkloadTuned:
    """A workload is done."""

    outcome: TunedWorkload


@dataclass(frozen=True)
class Note:
    """Something a person should know."""

    text: str


Event = (
    NetworkFound
    | WorkloadsAdded
    | StageBegan
    | StageReused
    | WorkloadBegan
    | RoundScheduled
    | RoundDone
    | WorkloadTuned
    | Note
)
Listener = Callable[[Event], None]
"""Hears of each event when it happens, from whichever thread works on the workload."""


def ignore(event: Event) -> None:
    """The listener that does not."""
