"""Bounds what kinds of fusion that are not implemented could gain, by what layers need.

A part of `benchmarks.fusion_bounds`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.stream_bound import Needs, stream_bound
from tilewright.fusion.problem import FusionProblem
from tilewright.fusion.report_rows import rows_read
from tilewright.networks import load
from tilewright.networks.fusion.candidates import read_by
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.targets.vta.bounds import bounds, shifted_residuals
from tilewright.targets.vta.lowering.geometry import geometry_of
from tilewright.targets.vta.spec import VtaSpec

EARLIEST = 1 << 60
"""Cycles in which all of a layer's first weights can be loaded."""


class Recomputed(NamedTuple):
    """Residuals that other layers read, too; cycles of reads and of compute that loading all of
    them takes, and that computing all of them anew would; and those saved at most where it would
    take less of either."""

    residuals: int
    loaded: tuple[int, int]
    anew: tuple[int, int]
    gain: int


def recomputed(problem: FusionProblem, spec: VtaSpec) -> Recomputed:
    """Of a cheap producer computed anew in the accumulators of a layer that adds its result, which
    has to be stored all the same, for its other readers. Saved are the residual's load and the
    products by the identity; added what the producer reads and multiplies."""
    each = list(_ways(problem.graph, spec))
    gain = sum(max(0, kept - made) for ways in each for kept, made in zip(*ways, strict=True))
    loaded, anew = (
        (sum(ways[k][0] for ways in each), sum(ways[k][1] for ways in each)) for k in (0, 1)
    )
    return Recomputed(len(each), loaded, anew, gain)


def _ways(graph: IntegerGraph, spec: VtaSpec) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Cycles of reads and of compute of each residual that others read: loaded, and anew."""
    writers = {layer.output: layer for layer in graph.layers}
    for layer in graph.layers:
        producer = writers.get(layer.residual or "")
        if producer is None:
            continue
        if sum(producer.output in read_by(step) for step in graph.steps) < 2:
            continue
        own, m = geometry_of(layer.workload, spec.machine), spec.machine
        outputs = own.batches * own.groups * own.co * own.oh * own.ow
        anew = bounds(producer.workload, spec)
        loaded = own.res_bytes // m.bus_bytes, outputs * (1 + shifted_residuals(layer.workload))
        yield loaded, (anew["read"], anew["compute"] - outputs)


def order_gain(graph: IntegerGraph, layers: Sequence[Needs]) -> int:
    """Cycles by which the bound on a network's streams is lower in any other order of its layers:
    only how many of a layer's first weights are loaded early depends on what is before it."""
    gain, begin = 0, 0
    reads = rows_read(graph)
    for run in graph.segments():
        rows = range(begin, begin + len(run))
        each = [layers[row] for row in rows]
        free = _movable(rows, reads)
        gain += stream_bound(each) - _anywhere(each, free)
        begin += len(run)
    return gain


def _movable(rows: range, reads: Sequence[Sequence[int]]) -> list[bool]:
    """Whether a layer's predecessor could be another: it, or the one before it, neither needs some
    layer of the stream nor is needed by it."""
    above: dict[int, set[int]] = {}
    for row in rows:
        direct = [each for each in reads[row] if each in rows]
        above[row] = set(direct).union(*(above[each] for each in direct))
    bound_to = {row: len(above[row]) + sum(row in a for a in above.values()) for row in rows}
    loose = [bound_to[row] < len(rows) - 1 for row in rows]
    return [here or before for here, before in zip(loose, [False, *loose], strict=False)]


def _anywhere(layers: Sequence[Needs], movable: Sequence[bool]) -> int:
    """As `stream_bound`, where the movable ones have whatever before them that suits them."""
    total, before = 0, 0
    for layer, loose in zip(layers, movable, strict=True):
        read = layer.read - min(layer.early, EARLIEST if loose else before)
        total += max(layer.busy, read)
        before = max(0, layer.busy - read)
    return total


def border(network: str, problem: FusionProblem) -> float:
    """Seconds that the CPU takes for what stays there, by the estimates of `tilewright inspect`."""
    report = load(network).report_on(Accelerator.of(problem.target, "full"))
    return sum(row.cpu_seconds for row in report.operators if row.status == "cpu")
