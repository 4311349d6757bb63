"""Executes LOAD and STORE: copies values between the memory image and the simulator's scratchpads.

The scratchpad arrays use wider integers than the memory image. Memory is little-endian; values that
are narrower than a byte fill it from the low end. The common widths have separate loops that
vectorise.

Every access stays inside the arrays, whatever the instruction says. Scratchpad indices wrap around,
bytes outside the image read as zero, and writes outside the image are ignored. The module `checks`
decides beforehand whether such an access is an error.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.functional.decode import Transfer
from tilewright.targets.vta.functional.scratchpads import Scratchpads
from tilewright.targets.vta.functional.semantics import SemanticRules
from tilewright.targets.vta.functional.vector import LANES, TILE, weight_tile
from tilewright.targets.vta.instruction_format import ACC, ACC_8BIT, INP, OUT, UOP, WGT
from tilewright.targets.vta.numba_decorators import helper
from tilewright.targets.vta.spec import Machine


@helper
def unpack_rows(
    dram: NDArray[np.uint8], at: int, bits: int,
    target: NDArray[np.int32], first: int, pitch: int, width: int, rows: int,
) -> None:  # fmt: skip
    """Copy rows of signed values from memory to a scratchpad.

    Args:
        dram: memory image, uint8, shape (bytes,).
        at: byte position of the first value in `dram`.
        bits: width of a value in bits.
        target: the scratchpad, flat.
        first: index of the first item in `target`.
        pitch: distance between two rows in `target`, in items.
        width: number of values per row.
        rows: number of rows.
    """
    if bits == 8:
        source = dram[at : at + rows * width].view(np.int8)
        if width == pitch:
            wide = target[first : first + rows * width]
            for k in range(rows * width):
                wide[k] = source[k]
            return
        for row in range(rows):
            for k in range(width):
                target[first + row * pitch + k] = source[row * width + k]
    elif bits == 32 and width == pitch:
        words = dram[at : at + 4 * rows * width].view(np.int32)
        wide = target[first : first + rows * width]
        for k in range(rows * width):
            wide[k] = words[k]
    else:
        for row in range(rows):
            for k in range(width):
                target[first + row * pitch + k] = value_at(dram, at, row * width + k, bits)


@helper
def unpack_weights(
    dram: NDArray[np.uint8], at: int, bits: int,
    wgt: NDArray[np.int16], first: int, block_out: int, block_in: int, elements: int,
) -> None:  # fmt: skip
    """Copy weight elements of shape (block_out, block_in) to the scratchpad, in its tiled layout.

    A tile is ordered as [input pair][output][2].

    Args:
        dram: memory image, uint8, shape (bytes,).
        at: byte position of the first element in `dram`.
        bits: width of a weight in bits.
        wgt: the weight scratchpad, flat.
        first: index in `wgt` of the first item to write.
        block_out: output channels per element.
        block_in: input channels per element.
        elements: number of elements.
    """
    in_tiles, out_tiles = -(-block_in // LANES), -(-block_out // LANES)
    for n in range(elements):
        element = first + n * in_tiles * out_tiles * TILE
        if bits == 8 and block_in % LANES == 0 and block_out % LANES == 0:
            block = at + n * block_out * block_in
            for tile in range(in_tiles * out_tiles):
                corner = tile // in_tiles * LANES * block_in + tile % in_tiles * LANES
                weight_tile(dram, block + corner, block_in, wgt, element + tile * TILE)
            continue
        for co in range(block_out):
            for ci in range(block_in):
                tile = co // LANES * in_tiles + ci // LANES
                pair, lane = ci % LANES >> 1, co % LANES
                number = (n * block_out + co) * block_in + ci
                place = element + tile * TILE + (pair * LANES + lane) * 2 + (ci & 1)
                wgt[place] = value_at(dram, at, number, bits)


@helper
def unpack_uops(
    dram: NDArray[np.uint8], at: int, size: int, uop: NDArray[np.uint64], first: int, count: int
) -> None:
    """Copy micro-ops from memory to the micro-op scratchpad.

    Args:
        dram: memory image, uint8, shape (bytes,).
        at: byte position of the first micro-op in `dram`.
        size: size of a micro-op in bytes.
        uop: the scratchpad; changed in place.
        first: index of the first micro-op in `uop`.
        count: number of micro-ops.
    """
    for n in range(count):
        word = np.uint64(0)
        for k in range(size):
            word |= np.uint64(dram[at + n * size + k]) << np.uint64(8 * k)
        uop[first + n] = word


@helper
def pack_rows(
    values: NDArray[np.int32], first: int, pitch: int, width: int, rows: int, bits: int,
    dram: NDArray[np.uint8], at: int,
) -> None:  # fmt: skip
    """Write rows of values from a scratchpad to memory, without gaps. Only the low bits are kept.

    Args:
        values: the scratchpad, flat.
        first: index of the first item in `values`.
        pitch: distance between two rows in `values`, in items.
        width: number of values per row.
        rows: number of rows.
        bits: width of a value in memory, in bits.
        dram: memory image, uint8, shape (bytes,).
        at: byte position of the first value in `dram`.
    """
    if bits == 8 and width == pitch:
        narrow, source = dram[at : at + rows * width], values[first : first + rows * width]
        for k in range(rows * width):
            narrow[k] = np.uint8(source[k])
        return
    for row in range(rows):
        for k in range(width):
            value = nb.int64(values[first + row * pitch + k]) & ((1 << bits) - 1)
            position = (row * width + k) * bits
            if bits >= 8:
                for byte in range(bits >> 3):
                    dram[at + (position >> 3) + byte] = np.uint8(value >> (8 * byte))
            else:
                place, shift = at + (position >> 3), position & 7
                kept = nb.int64(dram[place]) & ~(((1 << bits) - 1) << shift)
                dram[place] = np.uint8(kept | value << shift)


@helper
def clear_items(target: NDArray[np.int32], first: int, count: int) -> None:
    """Set consecutive items of a flat array to zero.

    Args:
        target: the array; changed in place.
        first: index of the first item.
        count: number of items.
    """
    cleared = target[first : first + count]
    for k in range(count):
        cleared[k] = 0


@helper
def value_at(dram: NDArray[np.uint8], at: int, number: int, bits: int) -> int:
    """Return the signed value with index `number` in an array of `bits`-bit values in memory.

    Args:
        dram: memory image, uint8, shape (bytes,).
        at: byte position of the array.
        number: index of the value.
        bits: width of a value in bits, a power of two.
    """
    position = number * bits
    place = at + (position >> 3)
    raw = nb.int64(dram[place]) >> (position & 7)
    for byte in range(1, bits >> 3):
        raw |= nb.int64(dram[place + byte]) << (8 * byte)
    raw &= (1 << bits) - 1
    return int(raw - ((raw >> (bits - 1)) << bits))


ADDRESS_MASK = (1 << 32) - 1


class Footprint(NamedTuple):
    """Memory area that a LOAD or STORE accesses.

    Attributes:
        start: byte address of the first element.
        pitch: distance between two rows in bytes.
        step: distance between two elements in bytes.
        wrapped: whether dram_base · element bytes exceeds 32 bits.
    """

    start: int
    pitch: int
    step: int
    wrapped: int


@helper
def footprint_of(m: Machine, memory: int, t: Transfer) -> Footprint:
    """Return the memory area that a LOAD or STORE accesses.

    The start address is taken modulo 2³² bytes, as in the functional simulator and in the RTL.

    Args:
        m: the machine.
        memory: memory type of the instruction.
        t: fields of the instruction.
    """
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
    if memory == ACC_8BIT:  # an 8-bit element in DRAM fills a 32-bit accumulator
        start, step = start // 4, size // 4
    return Footprint(start, t.x_stride * step, step, int(address > ADDRESS_MASK))


@helper
def depth_of(rules: SemanticRules, memory: int) -> int:
    """Return the number of elements of the scratchpad that a LOAD of a memory type fills.

    Args:
        rules: the semantic rules, which contain the depths.
        memory: the memory type.
    """
    if memory == UOP:
        return rules.uop_depth
    if memory == WGT:
        return rules.wgt_depth
    if memory == INP:
        return rules.inp_depth
    return rules.acc_depth


@helper
def load(
    m: Machine,
    rules: SemanticRules,
    pads: Scratchpads,
    dram: NDArray[np.uint8],
    base: int,
    t: Transfer,
) -> None:
    """Execute a LOAD with its zero padding. A LOAD with `x_size` 0 does nothing.

    Args:
        m: the machine.
        rules: the simulated behaviour where implementations of the VTA differ.
        pads: the scratchpads.
        dram: memory image, uint8, shape (bytes,).
        base: byte address of the memory image.
        t: fields of the instruction.
    """
    if t.x_size == 0:
        return
    foot, depth = footprint_of(m, t.memory, t), depth_of(rules, t.memory)
    index, width = t.sram_base % depth, t.x_pad_0 + t.x_size + t.x_pad_1
    first = foot.start - base
    inside = first >= 0 and t.y_size > 0
    inside &= first + (t.y_size - 1) * foot.pitch + t.x_size * foot.step <= dram.size
    inside &= index + (t.y_pad_0 + t.y_size + t.y_pad_1) * width <= depth
    if inside and t.memory == INP:
        _input_window(
            dram, first, foot.pitch, foot.step, t.y_size, t.x_size, m.inp_bits,
            pads.inp, index, pads.inp_row, m.block_in, m.batch,
            t.y_pad_0, t.y_pad_1, t.x_pad_0, t.x_pad_1,
        )  # fmt: skip
        return
    if t.y_pad_0:
        index = _pad(m, pads, t.memory, depth, index, t.y_pad_0 * width)
    rows, columns = t.y_size, t.x_size
    if t.x_stride == t.x_size == width:
        rows, columns = min(rows, 1), rows * columns
    for y in range(rows):
        at = first + y * foot.pitch
        if t.x_pad_0:
            index = _pad(m, pads, t.memory, depth, index, t.x_pad_0)
        index = _fill(m, pads, dram, t.memory, depth, index, at, foot.step, columns)
        if t.x_pad_1:
            index = _pad(m, pads, t.memory, depth, index, t.x_pad_1)
    if t.y_pad_1:
        _pad(m, pads, t.memory, depth, index, t.y_pad_1 * width)


@helper
def _input_window(
    dram: NDArray[np.uint8], at: int, pitch: int, step: int, rows: int, columns: int, bits: int,
    inp: NDArray[np.int16], index: int, row: int, width: int, batch: int,
    top: int, bottom: int, left: int, right: int,
) -> None:  # fmt: skip
    """Execute a LOAD of inputs that neither leaves the image nor wraps around in the scratchpad.

    The arguments are plain arrays and numbers, because the function is called often and tuples with
    many fields are expensive to pass.
    """
    size = batch * row
    line = (left + columns + right) * size
    place = index * size
    if top:
        clear_items(inp, place, top * line)
        place += top * line
    if bottom:
        clear_items(inp, place + rows * line, bottom * line)
    if left + right == 0 and pitch == columns * step:
        rows, columns = 1, rows * columns
    for _ in range(rows):
        if left:
            clear_items(inp, place, left * size)
        unpack_rows(dram, at, bits, inp, place + left * size, row, width, columns * batch)
        if right:
            clear_items(inp, place + line - right * size, right * size)
        place += line
        at += pitch


@helper
def store(
    m: Machine,
    rules: SemanticRules,
    pads: Scratchpads,
    dram: NDArray[np.uint8],
    base: int,
    t: Transfer,
) -> None:
    """Execute a STORE: copy the low bits of accumulators to rows in memory.

    The accumulators are adjacent in the scratchpad, and the rows in memory have a stride.

    Args:
        m: the machine.
        rules: the simulated behaviour where implementations of the VTA differ.
        pads: the scratchpads.
        dram: memory image, uint8, shape (bytes,).
        base: byte address of the memory image.
        t: fields of the instruction.
    """
    if t.x_size == 0:
        return
    foot, size = footprint_of(m, OUT, t), m.batch * pads.acc_row
    index = t.sram_base % rules.acc_depth
    for y in range(t.y_size):
        at, left = foot.start - base + y * foot.pitch, t.x_size
        while left > 0:
            count = min(left, rules.acc_depth - index)
            values = pads.acc
            if rules.out_scratchpad:
                count = _alike(pads.fresh, index, count)
                if not pads.fresh[index]:
                    values = pads.out
            missing = _outside(at, foot.step, dram.size)
            if missing:
                count = min(count, missing)
            else:
                count = min(count, (dram.size - at) // foot.step)
                pack_rows(
                    values, index * size, pads.acc_row, m.block_out, count * m.batch, m.inp_bits,
                    dram, at,
                )  # fmt: skip
            index = (index + count) % rules.acc_depth
            at += count * foot.step
            left -= count


@helper
def keep_stale_output(
    acc: NDArray[np.int32], out: NDArray[np.int32], fresh: NDArray[np.uint8],
    first: int, count: int, size: int,
) -> None:  # fmt: skip
    """Save accumulators in the OUT scratchpad before an instruction changes only the accumulators.

    A later STORE reads the OUT scratchpad, which then still contains the previous values.

    Args:
        acc: accumulators, shape (depth · size,).
        out: OUT scratchpad, shape (depth · size,), or empty.
        fresh: whether OUT equals the accumulator, shape (depth,); updated in place.
        first: index of the first element.
        count: number of elements.
        size: number of lanes per element.
    """
    for index in range(first, first + count):
        if fresh[index]:
            fresh[index] = 0
            if out.size:
                for lane in range(index * size, (index + 1) * size):
                    out[lane] = acc[lane]


@helper
def _pad(m: Machine, pads: Scratchpads, memory: int, depth: int, index: int, count: int) -> int:
    """Set adjacent elements of a scratchpad to zero.

    Args:
        m: the machine.
        pads: the scratchpads; changed in place.
        memory: memory type, which selects the scratchpad.
        depth: number of elements of the scratchpad.
        index: index of the first element. Later indices wrap around.
        count: number of elements.

    Returns:
        The index after the last element.
    """
    while count > 0:
        n = min(count, depth - index)
        if memory == INP:
            size = m.batch * pads.inp_row
            clear_items(pads.inp, index * size, n * size)
        elif memory == WGT:
            size = pads.wgt.size // depth
            clear_items(pads.wgt, index * size, n * size)
        elif memory in (ACC, ACC_8BIT):
            size = m.batch * pads.acc_row
            keep_stale_output(pads.acc, pads.out, pads.fresh, index, n, size)
            clear_items(pads.acc, index * size, n * size)
        else:
            clear_items(pads.uop, index, n)
        index = (index + n) % depth
        count -= n
    return index


@helper
def _fill(
    m: Machine, pads: Scratchpads, dram: NDArray[np.uint8],
    memory: int, depth: int, index: int, at: int, step: int, count: int,
) -> int:  # fmt: skip
    """Load adjacent elements from the memory image to a scratchpad.

    Elements outside the image are zero.

    Args:
        m: the machine.
        pads: the scratchpads; changed in place.
        dram: memory image, uint8, shape (bytes,).
        memory: memory type, which selects the scratchpad.
        depth: number of elements of the scratchpad.
        index: index of the first element in the scratchpad. Later indices wrap around.
        at: byte position of the first element in the image.
        step: distance between two elements in the image, in bytes.
        count: number of elements.

    Returns:
        The index after the last element.
    """
    while count > 0:
        missing = _outside(at, step, dram.size)
        if missing:
            n = min(count, missing)
            index = _pad(m, pads, memory, depth, index, n)
            at += n * step
            count -= n
            continue
        n = min(count, depth - index, (dram.size - at) // step)
        if memory == INP:
            size = m.batch * pads.inp_row
            unpack_rows(
                dram, at, m.inp_bits, pads.inp, index * size, pads.inp_row, m.block_in, n * m.batch
            )
        elif memory == WGT:
            size = pads.wgt.size // depth
            unpack_weights(dram, at, m.wgt_bits, pads.wgt, index * size, m.block_out, m.block_in, n)
        elif memory in (ACC, ACC_8BIT):
            size = m.batch * pads.acc_row
            keep_stale_output(pads.acc, pads.out, pads.fresh, index, n, size)
            bits = m.acc_bits if memory == ACC else 8
            unpack_rows(
                dram, at, bits, pads.acc, index * size, pads.acc_row, m.block_out, n * m.batch
            )
        else:
            unpack_uops(dram, at, m.uop_bytes, pads.uop, index, n)
        index = (index + n) % depth
        at += n * step
        count -= n
    return index


@helper
def _outside(at: int, step: int, image_bytes: int) -> int:
    """Count the consecutive elements from byte `at` on that are not completely inside the image.

    Args:
        at: byte position of the first element; negative before the image.
        step: distance between two elements in bytes.
        image_bytes: size of the image in bytes.

    Returns:
        Number of elements: 0 if the first element is inside the image; a very large number if no
        later element can be inside.
    """
    if at + step > image_bytes:
        return 1 << 40
    return -(at // step) if at < 0 else 0


@helper
def _alike(fresh: NDArray[np.uint8], index: int, most: int) -> int:
    """Count the consecutive elements whose `fresh` flag equals that of the first element.

    Args:
        fresh: flags, shape (depth,).
        index: index of the first element.
        most: maximum count.
    """
    count = 1
    while count < most and fresh[index + count] == fresh[index]:
        count += 1
    return count
