"""Replaces the addresses in LOAD and STORE instructions by (buffer, offset) pairs, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.vta.board.layer_program import LayerProgram, MemoryRegion, regions
from tilewright.targets.vta.board.program import RELOCATION, MemoryPiece
from tilewright.targets.vta.instruction_format import (
    POPS,
    PUSHES,
    WGT,
    Words,
    dram_bases,
    element_bytes,
    extents,
    field,
    memories,
    moves,
    with_dram_bases,
)

NOWHERE = -1
"""Buffer index of an instruction that transfers no data."""
_SRAM, _ROWS, _COLUMNS, _PITCH = (10, 16), (64, 16), (80, 16), (96, 16)


def placed_transfers(
    program: LayerProgram, places: Mapping[str, Sequence[MemoryPiece]]
) -> tuple[Words, NDArray[np.int64]]:
    """Replace the addresses in a program by offsets in buffers.

    If weights are spread over several buffers, a LOAD that crosses from one buffer to the next is
    split.

    Args:
        program: the program of a layer.
        places: locations of each region's bytes, by region name.

    Returns:
        The instructions with element offsets, shape (n, 2), and the buffer of each instruction,
        shape (n,).

    Raises:
        WorkloadError: a transfer exceeds its tensor.
    """
    m, geo = program.lowering.machine, program.lowering.geometry
    element = element_bytes(m)
    words = program.insns
    regions_of_layer = regions(geo, m)
    cuts = {
        region.name: [piece.first // m.wgt_bytes for piece in places[region.name][1:]]
        for region in regions_of_layer
        if region.memory == WGT and len(places.get(region.name, ())) > 1
    }
    for region in regions_of_layer:
        if cuts.get(region.name):
            words = _split(words, region, cuts[region.name])
    bases, memory, moving = dram_bases(words), memories(words), moves(words)
    last = bases + extents(words)
    buffer = np.full(len(words), NOWHERE, np.int64)
    offsets = np.zeros(len(words), np.int64)
    for region in regions_of_layer:
        for piece in places.get(region.name, ()):
            size = int(element[region.memory])
            first = region.first + piece.first // size
            end = region.first + piece.last // size
            inside = moving & (memory == region.memory) & (bases >= first) & (last <= end)
            buffer[inside] = piece.buffer
            offsets[inside] = bases[inside] - first + piece.offset // size
    if (moving & (buffer == NOWHERE)).any():
        at = int(np.flatnonzero(moving & (buffer == NOWHERE))[0])
        raise WorkloadError(
            f"layer {program.layer.name}: instruction {at} moves data beyond its tensors; "
            "tune it again"
        )
    changed = words.copy()
    changed[moving] = with_dram_bases(words[moving], offsets[moving])
    return changed, buffer


def relocations(words: Words, buffers: NDArray[np.int64]) -> NDArray[np.void]:
    """List the relocations of a program.

    Args:
        words: instructions with element offsets, shape (n, 2).
        buffers: buffer of each instruction, shape (n,); NOWHERE for none.

    Returns:
        One `RELOCATION` record per instruction that transfers data from or to a buffer.
    """
    at = np.flatnonzero(buffers != NOWHERE)
    rows = np.zeros(len(at), RELOCATION)
    rows["instruction"] = at
    rows["memory"] = memories(words)[at]
    rows["buffer"] = buffers[at]
    rows["offset"] = dram_bases(words)[at]
    return rows


def relocated(
    words: Words, rows: NDArray[np.void], addresses: NDArray[np.int64], element: NDArray[np.int64]
) -> Words:
    """Replace the offsets in a program by addresses.

    Args:
        words: instructions with element offsets, shape (n, 2).
        rows: `RELOCATION` records, shape (r,).
        addresses: byte address of each buffer, shape (buffers,).
        element: element size in bytes by memory type, shape (5,).

    Returns:
        A copy of the instructions with addresses, shape (n, 2).
    """
    at = rows["instruction"]
    bases = addresses[rows["buffer"]] // element[rows["memory"]] + rows["offset"]
    changed = words.copy()
    changed[at] = with_dram_bases(words[at], bases)
    return changed


def _split(words: Words, region: MemoryRegion, cuts: Sequence[int]) -> Words:
    """Split each LOAD of weights that crosses a boundary between two buffers.

    The parts of a LOAD follow one another. The first part waits for the LOAD's dependency tokens,
    and the last part sends the LOAD's tokens.

    Args:
        words: instructions, shape (n, 2).
        region: the region of the weights.
        cuts: positions of the boundaries in the region, in elements.
    """
    parts: list[Words] = []
    done = 0
    bases, ends = dram_bases(words), dram_bases(words) + extents(words)
    for cut in cuts:
        at = region.first + cut
        across = moves(words) & (memories(words) == WGT) & (bases < at) & (ends > at)
        for row in np.flatnonzero(across).tolist():
            parts += [words[done:row], _parts(words[row : row + 1], at)]
            done = row + 1
        words = np.concatenate([*parts, words[done:]])
        parts, done = [], 0
        bases, ends = dram_bases(words), dram_bases(words) + extents(words)
    return words


def _parts(word: Words, at: int) -> Words:
    """Split a LOAD without padding at a position in memory.

    The parts are the whole rows before the position, the two parts of the row that contains the
    position, and the whole rows after it. Empty parts are left out.

    Args:
        word: the instruction, shape (1, 2).
        at: index of the first memory element after the split position.

    Returns:
        Instructions, shape (parts, 2).
    """
    first = int(dram_bases(word)[0])
    sram, rows, columns, pitch = (
        int(field(word, *where)[0]) for where in (_SRAM, _ROWS, _COLUMNS, _PITCH)
    )
    before = min(rows, max(0, -(-(at - first - columns + 1) // pitch))) if rows > 1 else 0
    # each piece: first row, number of rows, first column, number of columns
    pieces = [(0, before, 0, columns)]
    row = before
    inside = at - first - row * pitch
    if row < rows and 0 < inside < columns:
        pieces += [(row, 1, 0, inside), (row, 1, inside, columns - inside)]
        row += 1
    pieces.append((row, rows - row, 0, columns))
    parts = []
    for y, many, x, wide in pieces:
        if many <= 0:
            continue
        low = int(word[0, 0]) & ~(0xFFFF << 10 | 0xFFFFFFFF << 26)
        low |= (sram + y * columns + x) << 10 | (first + y * pitch + x) << 26
        high = int(word[0, 1]) & ~((1 << 48) - 1)
        high |= many | wide << 16 | (pitch if many > 1 else wide) << 32
        parts.append([low, high])
    out = np.array(parts, np.uint64)
    out[1:, 0] &= ~np.uint64(POPS)
    out[:-1, 0] &= ~np.uint64(PUSHES)
    return out
