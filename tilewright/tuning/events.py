"""Events of a tuning run that may be shown to the user."""

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
    """A workload of the network, as described in events.

    Attributes:
        id: ID of the workload.
        title: display name for tables.
        count: number of calls per inference.
    """

    id: str
    title: str
    count: int


@dataclass(frozen=True)
class NetworkFound(Event):
    """Event: the model was read, and the workloads to tune are known.

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
    """Event: more workloads will be tuned, because another fusion of the network needs them.

    Attributes:
        workloads: the additional workloads.
    """

    workloads: tuple[WorkloadFound, ...]


@dataclass(frozen=True)
class WorkloadBegan(Event):
    """Event: tuning of a workload begins.

    Attributes:
        id: ID of the workload.
        rule: latency of the schedule that is used without tuning, if it is known.
        roofline: lower bound of the latency from the peak rate of multiply-accumulates, if it is
            known.
    """

    id: str
    rule: Latency | None
    roofline: Latency | None


@dataclass(frozen=True)
class RoundScheduled(Event):
    """Event: the task scheduler gives the next round to a workload.

    Attributes:
        id: ID of the workload.
        trials: number of trials of all workloads so far.
        most: maximum number of trials of all workloads.
    """

    id: str
    trials: int
    most: int


@dataclass(frozen=True)
class RoundDone(Event):
    """Event: a round of a workload is finished.

    Attributes:
        id: ID of the workload.
        round: index of the round.
        trials: number of trials of the workload so far.
        best: latency of the best trial so far, or None if no trial is valid.
        valid_share: fraction of the trials that are valid.
    """

    id: str
    round: int
    trials: int
    best: Latency | None
    valid_share: float


@dataclass(frozen=True)
class WorkloadTuned(Event):
    """Event: tuning of a workload is finished.

    Attributes:
        outcome: the tuned workload with its latencies and its chosen schedule.
    """

    outcome: TunedWorkload
