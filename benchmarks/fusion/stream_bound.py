"""Bounds what no schedule of a layer can beat where layers follow each other in one stream.

A layer by itself takes no less than the largest of its needs (`targets.vta.bounds`). In a stream
this is not so: `link` lets the layer's first weights be loaded while the layer before it computes.
Nothing else crosses the barrier between them. Compute waits there for the last store of the layer
before, in order. So all stores of a layer lie between its barrier and the next. So do all products,
all of the ALU's work and all loads of accumulators. Of its other loads those that come before the
first load of activations may be early. `link` refuses any among them that waits for a token, so no
tile can have been computed from them. They hold no more than the weights' scratchpad. The load
module works in order, so they begin behind all loads of the layer before.

Let `c`, `r` and `w` be cycles of a layer's compute, reads and writes. `e` are those of its early
reads, 0 at a stream's begin. Its span is then at least max(c, w, r - e + e of the layer behind it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.targets.vta.lowering.geometry import geometry_of
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.workload_bound import bounds
from tilewright.targets.workload import Workload


@dataclass(frozen=True)
class Needs:
    """Cycles that a layer needs at least.

    Holds the cycles of the busier of compute and the write channel, those of the read channel, and
    at most how many of the reads may start early.
    """

    busy: int
    read: int
    early: int

    @property
    def least(self) -> int:
        """What it takes in a stream, whatever is before and behind it."""
        return max(self.busy, self.read - self.early)


def needs(workload: Workload, spec: VtaSpec) -> Needs:
    """Those of a layer. Raises `WorkloadError` for one that the machine cannot run."""
    m = spec.machine
    least = bounds(workload, spec)
    weights = geometry_of(workload, m).wgt_bytes
    early = min(weights, m.wgt_built * m.wgt_bytes) // m.bus_bytes + 1  # a beat may be begun
    return Needs(max(least["compute"], least["write"]), least["read"], early)


def stream_bound(layers: Sequence[Needs]) -> int:
    """Cycles that a stream of these layers takes at least, however they are scheduled.

    The least over all ways to divide early reads: as many as the layer before has time for, that is
    as its reads leave below its other needs. More would take there what they save here.
    """
    total, free = 0, 0
    for layer in layers:
        read = layer.read - min(layer.early, free)
        total += max(layer.busy, read)
        free = max(0, layer.busy - read)
    return total
