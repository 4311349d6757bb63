"""Finds data races in memory: loads and stores that could run in the wrong order.

A load that reads what an earlier STORE writes must wait for that STORE. A STORE that overwrites
what an earlier load reads must wait for that load. Dependency tokens must enforce this, regardless
of timing. STOREs run in program order among themselves, and so do the loads of one module.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import (
    INP,
    LOAD,
    MODULE_COMPUTE,
    MODULE_LOAD,
    MODULE_STORE,
    OUT,
    STORE,
    WGT,
)
from tilewright.targets.vta.spec import Machine

Race = tuple[int, int, int]
"""A race: index of an instruction, index of the earlier instruction for which it does not wait, and
first shared byte address."""

Transfer = tuple[int, int, int, int, int, int]
"""A transfer between memory and a scratchpad: index of the instruction, module, first memory
position, number of rows, number of positions per row, and distance between rows. One position is
the greatest common divisor of the element sizes in bytes."""

_ADDRESS_BITS = 32
EVERYWHERE = (0, 1 << _ADDRESS_BITS)
"""Range of all memory addresses. It is used for programs whose stores are close together, because
an array is allocated for the memory between the first store and the last."""


def memory_races(
    insns: NDArray[np.uint64],
    order: NDArray[np.int64],
    clocks: NDArray[np.int32],
    machine: Machine,
    image: tuple[int, int],
) -> list[Race]:
    """Find memory accesses whose order the tokens do not guarantee.

    Instructions that never run, and memory outside the image, are ignored.

    Args:
        insns: instructions, shape (n, 2).
        order: indices of the instructions in the order in which they run, shape (k,).
        clocks: clocks of `token_order.clocks_of`, shape (n, 3).
        machine: the machine.
        image: byte address and size in bytes of the memory image.
    """
    m = machine
    sizes = (m.uop_bytes, m.wgt_bytes, m.inp_bytes, m.acc_bytes, m.out_bytes)
    grain = gcd(*sizes)
    moved = list(_transfers(insns, np.sort(order), sizes, grain))
    stores = [transfer for transfer in moved if transfer[1] == MODULE_STORE]
    if not stores:
        return []
    first, last = _reach(stores, (image[0] // grain, -(-(image[0] + image[1]) // grain)))
    if first == last:
        return []
    # Last access to each element, by memory: the instruction count of the module that wrote or read
    # it.
    met = np.zeros((3, last - first), np.int32)
    by_count: dict[tuple[int, int], int] = {}
    races: list[Race] = []
    for n, module, at, rows, width, pitch in moved:
        clock = clocks[n]
        by_count[module, int(clock[module])] = n
        begin, rows, width, pitch = _inside(at - first, rows, width, pitch, last - first)
        if not rows:
            continue
        rivals = (MODULE_LOAD, MODULE_COMPUTE) if module == MODULE_STORE else (MODULE_STORE,)
        for rival in rivals:
            seen = _part(met[rival], begin, rows, width, pitch)
            late = seen > clock[rival]
            if late.any():
                place = int(np.argmax(late))
                other = by_count[rival, int(seen.reshape(-1)[place])]
                row, column = divmod(place, late.shape[1])
                address = (first + begin + row * pitch + column) * grain
                races.append((n, other, address))
                break
        _mark(met[module], begin, rows, width, pitch, int(clock[module]))
    return races


def rereads(insns: NDArray[np.uint64], order: NDArray[np.int64], machine: Machine) -> bool:
    """Return whether a program loads data from memory that one of its own STOREs has written.

    Args:
        insns: instructions, shape (n, 2).
        order: indices of the instructions that run, shape (k,).
        machine: the machine.
    """
    m = machine
    sizes = (m.uop_bytes, m.wgt_bytes, m.inp_bytes, m.acc_bytes, m.out_bytes)
    moved = list(_transfers(insns, np.sort(order), sizes, gcd(*sizes)))
    stores = [transfer for transfer in moved if transfer[1] == MODULE_STORE]
    if not stores:
        return False
    first, last = _reach(stores, EVERYWHERE)
    stored = np.zeros(last - first, np.int32)
    for _, module, at, rows, width, pitch in moved:
        begin, rows, width, pitch = _inside(at - first, rows, width, pitch, last - first)
        if rows and module == MODULE_STORE:
            _mark(stored, begin, rows, width, pitch, 1)
        elif rows and _part(stored, begin, rows, width, pitch).any():
            return True
    return False


def _reach(stores: list[Transfer], image: tuple[int, int]) -> tuple[int, int]:
    """Return the range of memory positions to which some transfers store, clipped to an image.

    Args:
        stores: the transfers.
        image: first position of the image, and the position after its last one.

    Returns:
        The first position, and the position after the last one.
    """
    first = min(at for _, _, at, _, _, _ in stores)
    last = max(at + (rows - 1) * pitch + width for _, _, at, rows, width, pitch in stores)
    first = min(max(first, image[0]), image[1])
    return first, max(first, min(last, image[1]))


def _inside(
    begin: int, rows: int, width: int, pitch: int, places: int
) -> tuple[int, int, int, int]:
    """Return the part of a transfer that lies in the first `places` positions of memory.

    Rows that overlap or follow one another without a gap are merged.

    Args:
        begin: first position of the transfer; it may be negative.
        rows: number of rows.
        width: number of positions per row.
        pitch: distance between two rows.
        places: number of positions.

    Returns:
        The part as (begin, rows, width, pitch), with 0 rows if it is empty.
    """
    if rows == 1 or pitch <= width:
        rows, width, pitch = 1, (rows - 1) * pitch + width, 1
        end = min(begin + width, places)
        begin = max(begin, 0)
        return begin, int(end > begin), end - begin, pitch
    above = max(0, -(-(1 - begin - width) // pitch))
    below = min(rows - 1, (places - 1 - begin) // pitch)
    return begin + above * pitch, max(0, below - above + 1), width, pitch


def _transfers(
    insns: NDArray[np.uint64], order: NDArray[np.int64], sizes: tuple[int, ...], grain: int
) -> Iterator[Transfer]:
    """Yield the memory transfers of the instructions that run, in program order.

    Args:
        insns: instructions, shape (n, 2).
        order: indices of the instructions that run, in ascending order.
        sizes: element size in bytes, by memory type.
        grain: number of bytes per memory position.
    """
    low, high = insns[order, 0], insns[order, 1]
    opcode, memory = (low & np.uint64(7)).tolist(), (low >> np.uint64(7) & np.uint64(7)).tolist()
    base = (low >> np.uint64(26) & np.uint64((1 << 32) - 1)).tolist()
    rows, width, pitch = (
        (high >> np.uint64(at) & np.uint64(0xFFFF)).tolist() for at in (0, 16, 32)
    )
    for k, n in enumerate(order.tolist()):
        if opcode[k] not in (LOAD, STORE) or not width[k] or not rows[k]:
            continue
        kind = OUT if opcode[k] == STORE else memory[k]
        if kind > OUT or (kind == OUT and opcode[k] == LOAD):
            continue
        module = MODULE_STORE if kind == OUT else MODULE_COMPUTE
        if kind in (INP, WGT):
            module = MODULE_LOAD
        size = sizes[kind] // grain
        at = base[k] * size % ((1 << _ADDRESS_BITS) // grain)
        yield n, module, at, rows[k], width[k] * size, pitch[k] * size


def _part(
    met: NDArray[np.int32], begin: int, rows: int, width: int, pitch: int
) -> NDArray[np.int32]:
    """Look up the last access to each memory position of a transfer.

    Args:
        met: last access to each position, as an instruction count, shape (positions,).
        begin: first position of the transfer.
        rows: number of rows.
        width: number of positions per row.
        pitch: distance between two rows.

    Returns:
        Instruction counts, shape (rows, width); 0 for positions outside of `met`.
    """
    if begin >= 0 and begin + (rows - 1) * pitch + width <= len(met):
        step = met.strides[0]
        view: NDArray[Any] = np.lib.stride_tricks.as_strided(
            met[begin:], (rows, width), (pitch * step, step)
        )
        return view
    places = begin + np.arange(rows)[:, None] * pitch + np.arange(width)
    inside = (places >= 0) & (places < len(met))
    return np.where(inside, met[np.clip(places, 0, len(met) - 1)], 0).astype(np.int32)


def _mark(
    met: NDArray[np.int32], begin: int, rows: int, width: int, pitch: int, count: int
) -> None:
    """Record a transfer as the last access to its memory positions.

    Args:
        met: last access to each position, as an instruction count, shape (positions,); changed in
            place.
        begin: first position of the transfer.
        rows: number of rows.
        width: number of positions per row.
        pitch: distance between two rows.
        count: instruction count of the module at this access.
    """
    if begin >= 0 and begin + (rows - 1) * pitch + width <= len(met):
        _part(met, begin, rows, width, pitch)[:] = count
        return
    places = begin + np.arange(rows)[:, None] * pitch + np.arange(width)
    met[places[(places >= 0) & (places < len(met))]] = count
