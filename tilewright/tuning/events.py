"""Events of a tuning run that a user may want to see."""

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
    """A workload of the network.

    Attributes:
        id: ID of the workload.
        title: name for tables.
        count: number of calls per inference.
    """

    id: str
    title: str
    count: int


@dataclass(frozen=True)
class NetworkFound(Event):
    """The model was read, and the workloads to tune in it are known.

    Attributes:
        name: name of the network.
        target: name of the target.
        workloads: the workloads that will be tuned, in order of first use.
    """

    name: str
    target: str
    workloads: tuple[WorkloadFound, ...]


@dataclass(frozen=True)
class WorkloadsAdded(Event):
    """Further workloads will be tuned, because a different fusion of the network needs them.

    Attributes:
        workloads: the further workloads.
    """

    workloads: tuple[WorkloadFound, ...]


@dataclass(frozen=True)
class WorkloadBegan(Event):
    """Tuning of a workload begins.

    Attributes:
        id: ID of the workload.
        rule: latency of the schedule that is used without tuning, if the target knows it.
        roofline: lower bound of the latency, if the target knows it.
    """

    id: str
    rule: Latency | None
    roofline: Latency | None


@dataclass(frozen=True)
class RoundScheduled(Event):
    """The task scheduler gives the next round to a workload.

    Attributes:
        id: ID of the workload.
        trials: trials of all workloads so far.
        most: maximum number of trials of all workloads.
    """

    id: str
    trials: int
    most: int


@dataclass(frozen=True)
class RoundDone(Event):
    """A round of a workload is done.

    Attributes:
        id: ID of the workload.
        round: index of the round.
        trials: trials of the workload so far.
        best: latency of the best trial so far.
        valid_share: fraction of the trials that are valid.
    """

    id: str
    round: int
    trials: int
    best: Latency | None
    valid_share: float


@dataclass(frozen=True)
class WorkloadTuned(Event):
    """Tuning of a workload is done.

    Attributes:
        outcome: the tuned workload with its latencies and its chosen schedule.
    """

    outcome: TunedWorkload
