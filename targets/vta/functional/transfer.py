"""LOAD and STORE: between the memory image and the scratchpads.

Every access is kept inside the arrays here, whatever the instruction says: scratchpad indices wrap,
bytes outside the image read as zero and are not written. Whether that is an error is decided before
(see `checks`).
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from targets.vta.functional.decode import Transfer
from targets.vta.functional.scratchpads import Scratchpads
from targets.vta.functional.semantics import Rules
from targets.vta.functional.vector import LANES, TILE
from targets.vta.isa import ACC, ACC_8BIT, INP, OUT, UOP, WGT
from targets.vta.spec import Machine

ADDRESS_MASK = (1 << 32) - 1


class Footprint(NamedTuple):
    """Where a transfer lies in memory: byte address of the first element, bytes between rows and
    between elements, and whether dram_base · element bytes left the 32 address bits."""

    start: int
    pitch: int
    step: int
    wrapped: int


@nb.njit(cache=True, nogil=True)
def footprint_of(m: Machine, memory: int, t: Transfer) -> Footprint:
    """The address in elements counts modulo 2³² bytes, as in the functional simulator and RTL."""
    size = m.out_bytes
    if memory == UOP:
        size = m.uop_bytes
    elif memory == WGT:
        size = m.wgt_bytes
    elif memory == INP:
        size = m.inp_bytes
    elif memory in (ACC, ACC_8BIT):
        size = m.acc_bytes
    address = t.dram_base * size
    start, step = address & ADDRESS_MASK, size
    if memory == ACC_8BIT:  # a quarter of the bytes of what it fills
        start, step = start // 4, size // 4
    return Footprint(start, t.x_stride * step, step, int(address > ADDRESS_MASK))


@nb.njit(cache=True, nogil=True)
def load(
    m: Machine, rules: Rules, pads: Scratchpads, dram: NDArray[np.uint8], base: int, t: Transfer
) -> None:
    """One LOAD with its zero padding. Moves nothing if x_size = 0."""
    if t.x_size == 0:
        return
    depth = rules.uop_depth
    if t.memory == WGT:
        depth = rules.wgt_depth
    elif t.memory == INP:
        depth = rules.inp_depth
    elif t.memory == ACC or t.memory == ACC_8BIT:
        depth = rules.acc_depth
    foot = footprint_of(m, t.memory, t)
    index = t.sram_base % depth
    for y in range(t.y_pad_0 + t.y_size + t.y_pad_1):
        row_inside = t.y_pad_0 <= y < t.y_pad_0 + t.y_size
        row = foot.start - base + (y - t.y_pad_0) * foot.pitch
        for x in range(t.x_pad_0 + t.x_size + t.x_pad_1):
            at = np.int64(-1)
            if row_inside and t.x_pad_0 <= x < t.x_pad_0 + t.x_size:
                at = row + (x - t.x_pad_0) * foot.step
                if at < 0 or at + foot.step > dram.size:
                    at = np.int64(-1)
            _write_element(m, rules, pads, dram, t.memory, index, at)
            index += 1
            if index == depth:
                index = 0


@nb.njit(cache=True, nogil=True)
def store(
    m: Machine, rules: Rules, pads: Scratchpads, dram: NDArray[np.uint8], base: int, t: Transfer
) -> None:
    """One STORE: the low bits of accumulators, dense in the scratchpad, strided in memory."""
    if t.x_size == 0:
        return
    foot = footprint_of(m, OUT, t)
    index = t.sram_base % rules.acc_depth
    for y in range(t.y_size):
        row = foot.start - base + y * foot.pitch
        for x in range(t.x_size):
            at = row + x * foot.step
            if at >= 0 and at + foot.step <= dram.size:
                values = pads.acc
                if rules.out_scratchpad and not pads.fresh[index]:
                    values = pads.out
                for b in range(m.batch):
                    first = (index * m.batch + b) * pads.acc_row
                    _pack(values, first, m.block_out, m.inp_bits, dram, at, b * m.block_out)
            index += 1
            if index == rules.acc_depth:
                index = 0


@nb.njit(cache=True, nogil=True)
def keep_stale_output(m: Machine, rules: Rules, pads: Scratchpads, index: int) -> None:
    """Before an accumulator element changes without its OUT copy: keep what OUT holds."""
    if pads.fresh[index]:
        pads.fresh[index] = 0
        if rules.out_scratchpad:
            size = m.batch * pads.acc_row
            for k in range(index * size, (index + 1) * size):
                pads.out[k] = pads.acc[k]


@nb.njit(cache=True, nogil=True)
def _write_element(
    m: Machine, rules: Rules, pads: Scratchpads, dram: NDArray[np.uint8],
    memory: int, index: int, at: int,
) -> None:  # fmt: skip
    """Element `index` from the bytes at `at` of the image, zero if `at` < 0."""
    if memory == INP:
        for b in range(m.batch):
            first = (index * m.batch + b) * pads.inp_row
            _unpack(dram, at, b * m.block_in, m.inp_bits, pads.inp, first, m.block_in)
    elif memory == WGT:
        _write_weights(m, pads, dram, index, at)
    elif memory in (ACC, ACC_8BIT):
        keep_stale_output(m, rules, pads, index)
        bits = m.acc_bits if memory == ACC else 8
        for b in range(m.batch):
            first = (index * m.batch + b) * pads.acc_row
            _unpack(dram, at, b * m.block_out, bits, pads.acc, first, m.block_out)
    else:
        word = np.uint64(0)
        if at >= 0:
            for k in range(m.uop_bytes):
                word |= np.uint64(dram[at + k]) << np.uint64(8 * k)
        pads.uop[index] = word


@nb.njit(cache=True, nogil=True)
def _write_weights(
    m: Machine, pads: Scratchpads, dram: NDArray[np.uint8], index: int, at: int
) -> None:
    """A weight element, memory order [output][input] → tiles of [input pair][output][2]."""
    in_tiles = pads.inp_row // LANES
    element = index * in_tiles * (pads.acc_row // LANES) * TILE
    for co in range(m.block_out):
        lane = element + (co // LANES) * in_tiles * TILE + (co % LANES) * 2
        if at >= 0 and m.wgt_bits == 8:
            row = at + co * m.block_in
            for ci in range(m.block_in):
                place = lane + (ci // LANES) * TILE + ((ci % LANES) >> 1) * 2 * LANES + (ci & 1)
                pads.wgt[place] = nb.int8(dram[row + ci])
        else:
            for ci in range(m.block_in):
                place = lane + (ci // LANES) * TILE + ((ci % LANES) >> 1) * 2 * LANES + (ci & 1)
                value = 0
                if at >= 0:
                    value = _value(dram, at, co * m.block_in + ci, m.wgt_bits)
                pads.wgt[place] = value


@nb.njit(cache=True, nogil=True)
def _unpack(
    dram: NDArray[np.uint8], at: int, skip: int, bits: int,
    target: NDArray[np.int32], first: int, count: int,
) -> None:  # fmt: skip
    """`count` signed values of `bits` bits, `skip` values after byte `at`; zeros if `at` < 0."""
    if at < 0:
        for k in range(count):
            target[first + k] = 0
    elif bits == 8:
        for k in range(count):
            target[first + k] = nb.int8(dram[at + skip + k])
    else:
        for k in range(count):
            target[first + k] = _value(dram, at, skip + k, bits)


@nb.njit(cache=True, nogil=True)
def _value(dram: NDArray[np.uint8], at: int, number: int, bits: int) -> int:
    """The signed value of `bits` bits (a power of two), number `number` after byte `at`."""
    if bits == 32:
        k = at + 4 * number
        low = nb.int64(dram[k]) | nb.int64(dram[k + 1]) << 8 | nb.int64(dram[k + 2]) << 16
        return int(low | nb.int64(nb.int8(dram[k + 3])) << 24)
    if bits == 16:
        k = at + 2 * number
        return int(nb.int64(dram[k]) | nb.int64(nb.int8(dram[k + 1])) << 8)
    if bits == 8:
        return int(nb.int8(dram[at + number]))
    position = number * bits
    raw = nb.int64(dram[at + (position >> 3)]) >> (position & 7) & ((1 << bits) - 1)
    return int(raw - ((raw >> (bits - 1)) << bits))


@nb.njit(cache=True, nogil=True)
def _pack(
    values: NDArray[np.int32], first: int, count: int, bits: int,
    dram: NDArray[np.uint8], at: int, skip: int,
) -> None:  # fmt: skip
    """The low `bits` bits of `count` values, `skip` values after byte `at`."""
    if bits == 8:
        for k in range(count):
            dram[at + skip + k] = nb.uint8(values[first + k] & 0xFF)
        return
    for k in range(count):
        value = nb.int64(values[first + k]) & ((1 << bits) - 1)
        if bits > 8:
            for byte in range(bits >> 3):
                dram[at + (skip + k) * (bits >> 3) + byte] = nb.uint8(value >> (8 * byte) & 0xFF)
        else:
            position = (skip + k) * bits
            shift, place = position & 7, at + (position >> 3)
            kept = nb.int64(dram[place]) & ~(((1 << bits) - 1) << shift)
            dram[place] = nb.uint8((kept | value << shift) & 0xFF)
