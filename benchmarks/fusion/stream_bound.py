"""Computes a lower bound of the cycles of VTA layers that follow each other in one command stream.

A layer that runs alone takes at least the largest of its needs
(`tilewright.targets.vta.workload_bound`): compute, reads or writes. In a stream, this does not
hold, because `link` allows the first weights of a layer to be loaded while the previous layer
computes. Nothing else crosses the barrier between two layers. At the barrier, compute waits for the
last store of the previous layer. So all stores of a layer lie between its own barrier and the next
one, and so do all its products, ALU operations and accumulator loads. Among its other loads, only
those before the first load of activations may be early. `link` rejects early loads that wait for a
token, so no tile can have been computed from them; they therefore fit into the weight scratchpad
together. The load module works in order, so early loads begin after all loads of the previous
layer.

Let `c`, `r` and `w` be the cycles of a layer's compute, reads and writes, and `e` the cycles of its
early reads, which are 0 at the beginning of a stream. The layer's span is at least max(c, w, r - e
+ e_next), where `e_next` are the early reads of the next layer.
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
    """Lower bounds of a layer's cycles, by resource.

    Attributes:
        busy: cycles of the busier one of the compute unit and the write channel.
        read: cycles of the read channel.
        early: largest number of the read cycles that may start before the layer.
    """

    busy: int
    read: int
    early: int

    @property
    def least(self) -> int:
        """Cycles that the layer takes at least in a stream, whatever its neighbours are."""
        return max(self.busy, self.read - self.early)


def needs(workload: Workload, spec: VtaSpec) -> Needs:
    """Return the needs of a layer. Raise `WorkloadError` if the machine cannot run it."""
    m = spec.machine
    least = bounds(workload, spec)
    weights = geometry_of(workload, m).wgt_bytes
    early = min(weights, m.wgt_built * m.wgt_bytes) // m.bus_bytes + 1  # a beat may be begun
    return Needs(max(least["compute"], least["write"]), least["read"], early)


def stream_bound(layers: Sequence[Needs]) -> int:
    """Return a lower bound of the cycles of a stream of layers, with any schedules.

    The bound is the minimum over all numbers of early reads. The best choice reads as much early as
    the previous layer has time for, that is, while its other needs exceed its reads. More early
    reads would lengthen the previous layer by as much as they shorten this layer.
    """
    total, free = 0, 0
    for layer in layers:
        read = layer.read - min(layer.early, free)
        total += max(layer.busy, read)
        free = max(0, layer.busy - read)
    return total
