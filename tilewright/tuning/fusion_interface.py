"""Defines what a summary says of fusion, and what a run gives to the code that decides it
(`fusion`, which this package does not import).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from tilewright.core.files import Json
from tilewright.targets.base import Target
from tilewright.tuning.events import Listener
from tilewright.tuning.network import Subgraph
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.results import TunedWorkload


class FusionDecision(TypedDict):
    """One thing that may be fused, and whether it is. What the network saves by it, all else as it
    was decided: negative where it costs. `estimated` where the other way was not tuned: then by the
    schedules that are estimated best for both ways. Null where no schedule runs one of them."""

    name: str
    kind: str
    fused: bool
    cycles_saved: int | None
    dram_bytes_saved: int | None
    estimated: bool


class FusionSummary(TypedDict):
    """What `summary.json` says of fusion. `cycles` and `dram_bytes` are those of whole networks, by
    the names of labellings that were evaluated; `evaluations` counts the labelled graphs that were
    simulated until it was decided, `tuned` the workloads that were tuned for it beside the usual
    ones."""

    mode: str
    decisions: list[FusionDecision]
    cycles: dict[str, int]
    dram_bytes: dict[str, int]
    evaluations: int
    tuned: int


@dataclass(frozen=True)
class Decided:
    """What was decided: what the summary says, and the file that `tilewright build` reads."""

    summary: FusionSummary
    file: dict[str, Json]


TuneMore = Callable[[Sequence[Subgraph]], list[TunedWorkload]]
"""Tunes further workloads as those of the network were."""


@dataclass(frozen=True)
class ToDecide:
    """A run whose workloads are tuned; `more` tunes what else it takes."""

    options: TuningOptions
    target: Target
    network: str
    tuned: Sequence[TunedWorkload]
    more: TuneMore
    emit: Listener
