"""Cuts products into chains whose sums stay in the array, in its output-stationary data flow.

How long a chain may be says `epilogue.StoreEpilogue.most_chained`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.targets.gemmini.lowering.epilogue import ALL_CHAINED, MOST_CHAINED
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry, blocks
from tilewright.targets.gemmini.spec import DIM


def summed_inputs(g: BlockGeometry, columns: int) -> int:
    """Of a block of so many input channels, those that one output sums: of groups that share
    blocks, the others' weights are zeros."""
    return min(columns, g.in_channels // g.merged)


def chain_ends(inputs: Sequence[int], most: int) -> list[bool]:
    """Whether a chain ends with each block, by the inputs that it sums: as late as
    `most` allows."""
    ends, total = [False] * len(inputs), 0
    for place, count in enumerate(inputs):
        if place and total + count > most:
            ends[place - 1], total = True, 0
        total += count
    return [*ends[:-1], True]


def has_chains(g: BlockGeometry) -> bool:
    """Return True if there may be chains of several blocks, which save writing sums to the
    accumulator.

    The scale of the epilogue is left out: workloads that differ in it alone share their schedules
    (`targets.workload.canonical`), so they need one space. Where a small scale allows no chains,
    each block of an output-stationary program is a chain of its own.
    """
    inputs = list(_inputs(g))
    adds = g.epilogue.loads_sums or g.epilogue.residual
    most = MOST_CHAINED if adds else ALL_CHAINED
    return sum(chain_ends(inputs, most)) < len(inputs)


def _inputs(g: BlockGeometry) -> Iterator[int]:
    """Of all products that make an output, in their order."""
    for _ in range(g.kernel_h * g.kernel_w):
        for block in range(blocks(g.in_channels)):
            yield summed_inputs(g, min(DIM, g.in_channels - block * DIM))
