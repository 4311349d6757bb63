"""Defines the events of a run that a person may want to see."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.search.events import Event, Listener, Note, StageBegan, StageReused, ignore
from tilewright.targets.capabilities import Latency
from tilewright.tuning.results import TunedWorkload

__all__ = [
    "Event", "Listener", "NetworkFound", "Note", "RoundDone", "RoundScheduled", "StageBegan",
    "StageReused", "WorkloadBegan", "WorkloadFound", "WorkloadTuned", "WorkloadsAdded", "ignore",
]  # fmt: skip


@dataclass(frozen=True)
class WorkloadFound:
    """A workload of the network: its id, what tables call it, how often an inference runs it."""

    id: str
    title: str
    count: int


@dataclass(frozen=True)
class NetworkFound(Event):
    """The model is read; these workloads will be tuned."""

    name: str
    target: str
    workloads: tuple[WorkloadFound, ...]


@dataclass(frozen=True)
class WorkloadsAdded(Event):
    """These will be tuned, too: what else the network has where it is fused otherwise."""

    workloads: tuple[WorkloadFound, ...]


@dataclass(frozen=True)
class WorkloadBegan(Event):
    """What a workload costs without tuning, and at best; None where its target cannot tell."""

    id: str
    rule: Latency | None
    roofline: Latency | None


@dataclass(frozen=True)
class RoundScheduled(Event):
    """A workload gets the next round, of those that share `most` trials; `trials` are those of all
    of them so far."""

    id: str
    trials: int
    most: int


@dataclass(frozen=True)
class RoundDone(Event):
    """A round of a workload: its index, the run's trials so far, the best of them, and the share of
    them that is valid."""

    id: str
    round: int
    trials: int
    best: Latency | None
    valid_share: float


@dataclass(frozen=True)
class WorkloadTuned(Event):
    """A workload is done."""

    outcome: TunedWorkload
