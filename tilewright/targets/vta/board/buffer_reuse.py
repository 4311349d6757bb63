"""Finds layers whose output may lie where an input lay, proved on their own programs.

The input must have no later reader, and no instruction may read what an earlier one of the same
program has stored. Each store must wait, by tokens, for the loads of what it overwrites.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.board.instruction_fields import (
    dram_bases,
    element_bytes,
    memories,
    moves,
    with_dram_bases,
)
from tilewright.targets.vta.board.lower import regions
from tilewright.targets.vta.board.memory import MemoryPiece
from tilewright.targets.vta.board.network import BoardNetwork, BoardTensor, Placed
from tilewright.targets.vta.board.relocate import placed_transfers
from tilewright.targets.vta.functional.execution_order import QUEUES_OF_FLAGS, issue_order
from tilewright.targets.vta.functional.kernel import outcome
from tilewright.targets.vta.lint.log import empty_log
from tilewright.targets.vta.lint.memory import EVERYWHERE, memory_races, rereads
from tilewright.targets.vta.lint.token_order import CONSUMERS, clocks_of

_APART = 1 << 27
"""Bytes between the buffers of the trial, more than a tensor has."""


Legal = Callable[[Placed, str], bool]


def in_place(network: BoardNetwork, legal: Legal | None = None) -> dict[int, BoardTensor]:
    """By the `id` of an output, the input in whose place it may lie; `legal` answers as `is_legal`,
    if it is given."""
    legal = legal or is_legal
    shared: dict[int, BoardTensor] = {}
    taken = {id(tensor) for part, whole, _ in network.inside for tensor in (part, whole)}
    for run in network.runs:
        for layer in run.layers:
            output = layer.tensors["output"]
            if id(output) in taken:
                continue
            for role in ("residual", "shortcut", "data"):
                tensor = layer.tensors.get(role)
                uses = sum(each is tensor for each in layer.tensors.values())
                if (
                    tensor is not None
                    and uses == 1
                    and id(tensor) not in taken
                    and tensor.last == layer.at
                    and tensor.stored < 0
                    and tensor.packing.elements == output.packing.elements
                    and tensor.packing.block == output.packing.block
                    and tensor.packing.form != "weights"
                    and legal(layer, role)
                ):
                    shared[id(output)] = tensor
                    taken.add(id(tensor))
                    break
    return shared


def is_legal(layer: Placed, role: str) -> bool:
    """Whether a layer's output may lie where its `role` ("data", "residual", "shortcut") does."""
    program, m = layer.program, layer.program.lowering.machine
    element = element_bytes(m)
    names = [region.name for region in regions(program.lowering.geometry, m)]
    places: dict[str, list[MemoryPiece]] = {}
    for region in regions(program.lowering.geometry, m):
        at = names.index(role if region.name == "output" else region.name)
        places[region.name] = [MemoryPiece(0, region.elements * int(element[region.memory]), at, 0)]
    words, buffers = placed_transfers(program, places)
    moving = moves(words)
    kinds = memories(words)[moving]
    bases = dram_bases(words)[moving] + buffers[moving] * (_APART // element[kinds])
    words[moving] = with_dram_bases(words[moving], bases)
    order, clocks = _clocks(words, m.token_limit)
    return not rereads(words, order, m) and not memory_races(words, order, clocks, m, EVERYWHERE)


def _clocks(
    words: NDArray[np.uint64], token_limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """As `targets.vta.lint` finds them, (n,) and (n, 3), for a program by itself."""
    result, none = outcome(), np.zeros(4, np.int64)
    words = np.ascontiguousarray(words)
    order = issue_order(words, QUEUES_OF_FLAGS, result.tokens, result.heads)
    clocks = clocks_of(words, order, QUEUES_OF_FLAGS, CONSUMERS, none, token_limit, empty_log())
    return order, clocks
