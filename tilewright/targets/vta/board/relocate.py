"""Relocates transfers: they name a buffer and an offset instead of an address."""

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
"""The buffer of an instruction that moves nothing."""
_SRAM, _ROWS, _COLUMNS, _PITCH = (10, 16), (64, 16), (80, 16), (96, 16)


def placed_transfers(
    program: LayerProgram, places: Mapping[str, Sequence[MemoryPiece]]
) -> tuple[Words, NDArray[np.int64]]:
    """The program with the offsets in buffers where the addresses were, in elements, words (n, 2),
    and the buffer of each instruction, (n,). `places` gives, by the name of a region, where its
    bytes lie. A LOAD of weights that do not lie in one buffer becomes several. Raises
    `WorkloadError` for a transfer beyond its tensor."""
    m, geo = program.lowering.machine, program.lowering.geometry
    element = element_bytes(m)
    words = program.insns
    found = regions(geo, m)
    cuts = {
        region.name: [piece.first // m.wgt_bytes for piece in places[region.name][1:]]
        for region in found
        if region.memory == WGT and len(places.get(region.name, ())) > 1
    }
    for region in found:
        if cuts.get(region.name):
            words = _split(words, region, cuts[region.name])
    bases, memory, moving = dram_bases(words), memories(words), moves(words)
    last = bases + extents(words)
    buffer = np.full(len(words), NOWHERE, np.int64)
    offsets = np.zeros(len(words), np.int64)
    for region in found:
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
    """A row of `RELOCATION` for each of the instructions, words (n, 2), that moves data from or to
    a buffer, (n,)."""
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
    """Instructions (n, 2) for buffers at these byte addresses, (buffers,); `rows` (r,) of
    `RELOCATION`, `element` (5,) the bytes of an element by memory type."""
    at = rows["instruction"]
    bases = addresses[rows["buffer"]] // element[rows["memory"]] + rows["offset"]
    changed = words.copy()
    changed[at] = with_dram_bases(words[at], bases)
    return changed


def _split(words: Words, region: MemoryRegion, cuts: Sequence[int]) -> Words:
    """The same transfers, words (n, 2), but none across one of the places `cuts` in a region of
    weights, in elements. Parts follow each other; the first takes tokens, the last gives them."""
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
    """One LOAD without padding, (1, 2), as several: whole rows before the place `at` in memory, the
    row across it in two, whole rows behind it."""
    first = int(dram_bases(word)[0])
    sram, rows, columns, pitch = (
        int(field(word, *where)[0]) for where in (_SRAM, _ROWS, _COLUMNS, _PITCH)
    )
    before = min(rows, max(0, -(-(at - first - columns + 1) // pitch))) if rows > 1 else 0
    pieces = [(0, before, 0, columns)]  # first row, rows, first column, columns
    row = before
    inside = at - first - row * pitch
    if row < rows and 0 < inside < columns:
        pieces += [(row, 1, 0, inside), (row, 1, inside, columns - inside)]
        row += 1
    pieces.append((row, rows - row, 0, columns))
    made = []
    for y, many, x, wide in pieces:
        if many <= 0:
            continue
        low = int(word[0, 0]) & ~(0xFFFF << 10 | 0xFFFFFFFF << 26)
        low |= (sram + y * columns + x) << 10 | (first + y * pitch + x) << 26
        high = int(word[0, 1]) & ~((1 << 48) - 1)
        high |= many | wide << 16 | (pitch if many > 1 else wide) << 32
        made.append([low, high])
    out = np.array(made, np.uint64)
    out[1:, 0] &= ~np.uint64(POPS)
    out[:-1, 0] &= ~np.uint64(PUSHES)
    return out
