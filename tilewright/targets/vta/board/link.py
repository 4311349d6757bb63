"""Links the programs of several layers into one instruction stream.

The program of each layer ends with FINISH, and assumes that no earlier instruction is still
running. Between two programs, the FINISH is therefore replaced by a barrier: the compute module
waits for the last store, and then allows the load module to load the activations of the next layer.
The first weights of the next layer wait only for the last GEMM, and not for stores.

    compute  … GEMM ─┐ ALU ─┐          no-op ─┐ …
    store            │      └ STORE ───┘      │
    load             └ weights of the next    └ activations of the next
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.vta.board.relocate import NOWHERE
from tilewright.targets.vta.instruction_format import (
    FINISH,
    FLAG_QUEUES,
    LOAD,
    MODULE_COMPUTE,
    MODULE_LOAD,
    MODULE_STORE,
    POP_NEXT,
    POP_PREV,
    POPS,
    PUSH_NEXT,
    PUSH_PREV,
    PUSHES,
    UOP,
    WGT,
    Rows,
    Words,
    memories,
    modules,
    moves,
    multiplies,
    no_op,
    opcodes,
)

_L2G, _G2L, _G2S, _S2G = range(4)
_TAKERS = {
    _L2G: (MODULE_COMPUTE, POP_PREV), _G2L: (MODULE_LOAD, POP_NEXT),
    _G2S: (MODULE_STORE, POP_PREV), _S2G: (MODULE_COMPUTE, POP_NEXT),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class LinkedPart:
    """Instructions of one layer or of several linked layers, with the buffer of each transfer.

    Attributes:
        words: instructions, uint64, shape (n, 2).
        buffers: index of the memory buffer that each instruction transfers from or to, shape (n,);
            NOWHERE for an instruction without a transfer.
        constant: mask of the instructions that load constants, to which no layer writes, shape
            (n,).
    """

    words: Words
    buffers: Rows
    constant: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.words)


def link(parts: Sequence[LinkedPart]) -> tuple[LinkedPart, Rows]:
    """Link the programs of layers into one instruction stream.

    Args:
        parts: the instructions of each layer.

    Returns:
        The stream, and the index of the first instruction of each layer followed by the number of
        all instructions, shape (layers + 1,).

    Raises:
        WorkloadError: a program does not end in FINISH, or waits for tokens that are never sent.
    """
    whole = [_drained(part) for part in parts]
    for k in range(len(whole) - 1):
        body, flags = _without_finish(whole[k])
        whole[k], whole[k + 1] = _meet(body, whole[k + 1], flags)
    begins = np.cumsum([0, *map(len, whole)])
    return _join_parts(whole), begins


def _join_parts(parts: Sequence[LinkedPart]) -> LinkedPart:
    return LinkedPart(
        np.concatenate([part.words for part in parts]),
        np.concatenate([part.buffers for part in parts]),
        np.concatenate([part.constant for part in parts]),
    )


def _idle_part(words: Words) -> LinkedPart:
    """Return instructions that access no memory buffer as a `LinkedPart`.

    Args:
        words: the instructions, shape (n, 2).
    """
    n = len(words)
    return LinkedPart(words, np.full(n, NOWHERE, np.int64), np.zeros(n, np.bool_))


def _cut(part: LinkedPart, first: int, last: int) -> LinkedPart:
    rows = slice(first, last)
    return LinkedPart(part.words[rows], part.buffers[rows], part.constant[rows])


def _insert_instruction(part: LinkedPart, at: int, word: Words) -> LinkedPart:
    """Return a copy of a program with an additional instruction.

    Args:
        part: the program.
        at: index of the new instruction in the copy.
        word: the new instruction, shape (1, 2).
    """
    return _join_parts([_cut(part, 0, at), _idle_part(word), _cut(part, at, len(part))])


def _flagged(part: LinkedPart, at: int, flag: int) -> LinkedPart:
    """Return a copy of a program in which a dependency flag of one instruction is set.

    Args:
        part: the program.
        at: index of the instruction.
        flag: bit of the flag, for example `POP_NEXT`.
    """
    words = part.words.copy()
    words[at, 0] |= np.uint64(flag)
    return LinkedPart(words, part.buffers, part.constant)


def _has(part: LinkedPart, flag: int) -> NDArray[np.bool_]:
    """Return a mask of the instructions in which a dependency flag is set, shape (n,).

    Args:
        part: the program of n instructions.
        flag: bit of the flag, for example `POP_NEXT`.
    """
    return (part.words[:, 0] & np.uint64(flag)) != 0


def _drained(part: LinkedPart) -> LinkedPart:
    """Return a program that leaves no dependency tokens in the queues.

    For each token that the program would leave, a no-op that takes the token is inserted before
    FINISH.

    Args:
        part: the program.

    Raises:
        WorkloadError: the program does not end in FINISH, or waits for a token that is never sent.
    """
    if not len(part) or opcodes(part.words)[-1] != FINISH:
        raise WorkloadError("a layer's program does not end in FINISH; tune the layer again")
    module = modules(part.words)
    left = np.zeros(4, np.int64)
    for flag, names, step in (
        (POP_PREV, 0, -1), (POP_NEXT, 1, -1), (PUSH_PREV, 2, 1), (PUSH_NEXT, 3, 1)
    ):  # fmt: skip
        for unit in (MODULE_LOAD, MODULE_COMPUTE, MODULE_STORE):
            queue = FLAG_QUEUES[unit][names]
            count = int((_has(part, flag) & (module == unit)).sum())
            if queue >= 0:
                left[queue] += step * count
    if (left < 0).any():
        raise WorkloadError("a layer's program waits for tokens it never gives; tune it again")
    # The tokens that load and store pop first may be those that compute waits for.
    for queue in (_G2L, _G2S, _L2G, _S2G):
        unit, flag = _TAKERS[queue]
        for _ in range(int(left[queue])):
            part = _insert_instruction(part, len(part) - 1, no_op(unit, flag))
    return part


def _without_finish(part: LinkedPart) -> tuple[LinkedPart, int]:
    """Remove the final FINISH from a program.

    Args:
        part: the program.

    Returns:
        The program without FINISH, and the pop flags of the removed instruction.
    """
    return _cut(part, 0, len(part) - 1), int(part.words[-1, 0]) & POPS


def _meet(before: LinkedPart, after: LinkedPart, flags: int) -> tuple[LinkedPart, LinkedPart]:
    """Insert a barrier between the programs of two consecutive layers.

    The first program may write activations that the second program loads. The first load of
    activations in the second program therefore waits for the barrier.

    Args:
        before: program of the first layer, without its FINISH.
        after: program of the second layer.
        flags: pop flags of the removed FINISH. The barrier waits for the same tokens.

    Returns:
        Both programs, with the instructions and flags of the barrier.

    Raises:
        WorkloadError: the second program loads no activation, or its weights wait for a token.
    """
    after = _weights_first(after)
    loads = np.flatnonzero(modules(after.words) == MODULE_LOAD)
    moving = loads[moves(after.words)[loads]]
    waiting = moving[~after.constant[moving]]
    if not len(waiting):
        raise WorkloadError("a layer's program loads no activations; tune it again")
    first = int(waiting[0])
    early = loads[loads < first]
    if _has(after, POP_NEXT)[early].any():
        raise WorkloadError("a layer's weights wait before its activations; tune it again")
    if _has(after, POP_NEXT)[first]:
        after = _insert_instruction(after, first, no_op(MODULE_LOAD, POP_NEXT))
    else:
        after = _flagged(after, first, POP_NEXT)
    if len(early):
        before = _freed(before)
        after = _flagged(after, int(early[0]), POP_NEXT)
    # Only the compute module uses micro-ops, so they can be loaded while the last STORE still runs.
    words = after.words
    compute = np.flatnonzero(modules(words) == MODULE_COMPUTE)
    at = int(compute[0])
    is_uop_load = opcodes(words)[at] == LOAD and memories(words)[at] == UOP
    untied = not int(words[at, 0]) & (POPS | PUSHES)
    barrier = no_op(MODULE_COMPUTE, flags | PUSH_PREV)
    return before, _insert_instruction(after, at + 1 if is_uop_load and untied else at, barrier)


def _freed(before: LinkedPart) -> LinkedPart:
    """Return a program whose last GEMM signals that the weight scratchpad can be overwritten.

    The GEMM sends a token to the load module, which then may load the weights of the next layer.

    Args:
        before: the program, without its FINISH.
    """
    words = before.words
    compute = modules(words) == MODULE_COMPUTE
    readers = np.flatnonzero(multiplies(words))
    tellers = np.flatnonzero(compute & _has(before, PUSH_PREV))
    last = int(readers[-1]) if len(readers) else -1
    last_teller = int(tellers[-1]) if len(tellers) else -1
    if last > last_teller:
        return _flagged(before, last, PUSH_PREV)
    return _insert_instruction(before, max(last, last_teller) + 1, no_op(MODULE_COMPUTE, PUSH_PREV))


def _weights_first(part: LinkedPart) -> LinkedPart:
    """Return a program that loads constant weights before its first activations.

    The weights in the first group of loads are moved in front of the group's activations, so that
    they need not wait for activations. The group ends with the first load that signals the compute
    module.

    Args:
        part: the program.
    """
    loads = np.flatnonzero(modules(part.words) == MODULE_LOAD)
    done = _has(part, PUSH_NEXT)[loads]
    if not done.any():
        return part
    group = loads[: int(np.argmax(done)) + 1]
    constant = part.constant[group] & (memories(part.words)[group] == WGT)
    if _has(part, POP_NEXT)[group].any() or not constant.any() or constant.all():
        return part
    order = np.concatenate([group[constant], group[~constant]])
    words, buffers, known = part.words.copy(), part.buffers.copy(), part.constant.copy()
    words[group[-1], 0] &= ~np.uint64(PUSHES)
    words[group], buffers[group], known[group] = words[order], buffers[order], known[order]
    words[group[-1], 0] |= np.uint64(PUSH_NEXT)
    return LinkedPart(words, buffers, known)
