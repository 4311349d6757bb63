"""Writes the instructions of a tile of an extended schedule: loads, GEMMs and ALU operations.

The module also writes micro-op kernels, and looks up which slot of a ring holds an operand.
Parameters named `state` and `out`, shape (instructions, 2), are those of `instruction_writer`.
`uops`, shape (micro-ops,), is the content of the micro-op scratchpad. `ring`, shape (slots, 2), has
the columns KEY and READER.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import INP, LOAD, PUSH_PREV, WGT, Layout, pack_uop
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.geometry import EPILOGUE_BIAS, EPILOGUE_TENSOR, Geometry
from tilewright.targets.vta.lowering.instruction_writer import ProgramState
from tilewright.targets.vta.lowering.invalid_configs import EMPTY_WINDOW
from tilewright.targets.vta.numba_decorators import helper
from tilewright.targets.vta.spec import Machine

# Columns of a ring: the key of what the slot holds, and the last GEMM that reads the slot.
KEY, READER = 0, 1

# per ring; the slots of both rings limit the outstanding tokens, and the counters hold 255
MAX_SLOTS = 120

_L, _C, _S = 0, 1, 2

# Approximate timings, by which the sizes of parts and pieces are chosen. The simulator has exact
# rules.
# elements per cycle of a STORE with one element per beat, with the overhead of its bursts
WIDE_STORE = 0.93
# approximate cycles of a LOAD in addition to its beats; 16 of them are memory latency
LOAD_LATENCY = 24
# cycles in addition to the iterations: 6 of the pipeline and 1 between two instructions
COMPUTE_LATENCY = 7
LAST_PARTS = 10  # approximate number of parts of the last weights if loads are slower than GEMMs


@helper
def find(ring: NDArray[np.int64], key: int, hint: int) -> int:
    """Return the scratchpad slot that holds an operand, or -1 if none does.

    Args:
        ring: content and last reader of each slot, shape (slots, 2).
        key: number that identifies the operand.
        hint: slot at which the search starts, because slots are filled in turn.
    """
    slots = ring.shape[0]
    j = hint
    for _ in range(slots):
        if j >= slots:
            j = 0
        if ring[j, KEY] == key:
            return j
        j += 1
    return -1


@helper
def one_uop(uops: NDArray[np.uint64], word: int, n_uops: int, first: int) -> int:
    """Search the 63 most recent micro-ops for a given one.

    Args:
        uops: the micro-op scratchpad, shape (micro-ops,).
        word: the encoded micro-op.
        n_uops: number of micro-ops so far.
        first: unused.

    Returns:
        Position of the micro-op, or `n_uops` if it must be added.
    """
    for j in range(n_uops - 1, max(-1, n_uops - 64), -1):
        if uops[j] == word:
            return j
    return n_uops


@helper
def finish(state: ProgramState, out: NDArray[np.uint64], n_uops: int, uop_bytes: int) -> int:
    """Write FINISH after the last STORE, and set the size of the program's first LOAD.

    The first LOAD loads all micro-ops, whose number is known only at the end.

    Args:
        state: counts of the program; changed in place.
        out: the instructions, shape (instructions, 2); changed in place.
        n_uops: number of micro-ops.
        uop_bytes: size of a micro-op in bytes.

    Returns:
        The failure code; OK if the program was written.
    """
    instruction_writer.push(state, out, _S, _C)
    instruction_writer.pop(state, out, _S, _C)
    instruction_writer.finish(state, out)
    size = nb.uint64(n_uops)
    out[0, 1] = nb.uint64(1) | (size << nb.uint64(16)) | (size << nb.uint64(32))
    state.uops = n_uops
    state.uop_bytes += (n_uops - 1) * uop_bytes
    return instruction_writer.outcome(state, out)


@helper
def load_window(
    state: ProgramState, out: NDArray[np.uint64], geo: Geometry, m: Machine, gather: bool,
    channel: int, cis: int, there: int, y0: int, x0: int, ih_here: int, iw: int, ih: int,
    sram: int,
) -> None:  # fmt: skip
    """Write the LOADs of a tile's input window, for several input blocks.

    Blocks after the last block of the image have zero weights, so their data do not matter; the
    last block is loaded instead.

    Args:
        state: counts of the program.
        out: the instructions.
        geo: geometry of the workload.
        m: the machine.
        gather: whether rows that no output reads are skipped.
        channel: first input block.
        cis: number of input blocks.
        there: number of blocks of the image from `channel` on.
        y0: first row of the window in the image; negative in the padding.
        x0: first column of the window in the image; negative in the padding.
        ih_here: number of rows of the window.
        iw: number of columns of the window.
        ih: number of rows per block in the scratchpad.
        sram: first scratchpad element.
    """
    reach_h = (ih_here - 1) * geo.sh + 1 if gather else ih_here
    top, left = max(0, -y0), max(0, -x0)
    bottom, right = max(0, y0 + reach_h - geo.h), max(0, x0 + iw - geo.w)
    rows, cols = ih_here - top - bottom, iw - left - right
    if rows <= 0 or cols <= 0:
        state.problem = EMPTY_WINDOW
        return
    row_stride = geo.sh * geo.w if gather else geo.w
    dram = geo.inp_base + (channel * geo.h + max(0, y0)) * geo.w + max(0, x0)
    one_by_one = 0
    if top + left + bottom + right == 0 and (ih_here == ih or cis == 1):
        one_by_one = max(0, min(cis, there))
        if one_by_one > 0:
            instruction_writer.region(
                state, out, LOAD, INP, sram, dram, one_by_one, geo.h * geo.w, rows, row_stride,
                cols, m.inp_bytes,
            )  # fmt: skip
    for c in range(one_by_one, cis):
        instruction_writer.memory(
            state, out, LOAD, INP, sram + c * ih * iw, dram + min(c, there - 1) * geo.h * geo.w,
            rows, cols, row_stride, top, bottom, left, right, m.inp_bytes,
        )  # fmt: skip


@helper
def tile_transfer(
    state: ProgramState, out: NDArray[np.uint64], geo: Geometry, opcode: int, kind: int,
    sram: int, dram: int, cos: int, rows: int, cols: int, pitch: int, element_bytes: int,
) -> None:  # fmt: skip
    """Write the transfer of an accumulator tile from or to DRAM.

    It is a single transfer if the tile is dense in the scratchpad, otherwise one per output block.

    Args:
        state: counts of the program.
        out: the instructions.
        geo: geometry of the workload.
        opcode: LOAD or STORE.
        kind: memory type.
        sram: first scratchpad element.
        dram: first element in DRAM.
        cos: number of output blocks.
        rows: number of output rows.
        cols: number of output columns.
        pitch: distance between two output blocks in the scratchpad, in elements.
        element_bytes: size of an element in bytes.
    """
    if pitch == rows * cols or cos == 1:
        instruction_writer.region(
            state, out, opcode, kind, sram, dram, cos, geo.oh * geo.ow, rows, geo.ow, cols,
            element_bytes,
        )  # fmt: skip
        return
    for c in range(cos):
        instruction_writer.region(
            state, out, opcode, kind, sram + c * pitch, dram + c * geo.oh * geo.ow,
            1, 0, rows, geo.ow, cols, element_bytes,
        )  # fmt: skip


@helper
def coefficients(
    geo: Geometry, loop: int, pitch: int, ih: int, iw: int, cols: int, cis: int, gather: bool
) -> tuple[int, int, int]:
    """Return the accumulator, input and weight index steps per iteration of a loop.

    Args:
        geo: geometry of the workload.
        loop: index of the loop, see `tile_and_buffer_plan`.
        pitch: distance between two output blocks in accumulators.
        ih: input rows per block in the scratchpad.
        iw: input columns per row in the scratchpad.
        cols: output columns of the tile.
        cis: input blocks of the step.
        gather: whether rows that no output reads are skipped.
    """
    kk = geo.kh * geo.kw
    if loop == 0:
        return cols, (1 if gather else geo.sh) * iw, 0
    if loop == 1:
        return 1, geo.sw, 0
    if loop == 2:
        return pitch, 0, cis * kk
    if loop == 3:
        return 0, ih * iw, kk
    if loop == 4:
        return 0, geo.dh * iw, geo.kw
    return 0, geo.dw, 1


@helper
def write_kernel(
    geo: Geometry, lay: Layout, uops: NDArray[np.uint64], at: int, hw0: int, hw1: int, tco: int,
    cis: int, pitch: int, ih: int, iw: int, acc: int, inp: int, wgt: int, places: int,
) -> None:  # fmt: skip
    """Write the micro-ops of a reduction step, one per iteration of the loops outside of hardware.

    Output blocks vary slowest, so that a range of output blocks is a range of micro-ops.

    Args:
        geo: geometry of the workload.
        lay: bit positions of the instruction fields.
        uops: the micro-op scratchpad, shape (micro-ops,); changed in place.
        at: position of the first micro-op.
        hw0: index of the first hardware loop, -1 for none.
        hw1: index of the second hardware loop, -1 for none.
        tco: number of output blocks.
        cis: number of input blocks.
        pitch: distance between two output blocks in accumulators.
        ih: input rows per block in the scratchpad.
        iw: input columns per row in the scratchpad.
        acc: first accumulator.
        inp: first input element.
        wgt: first weight element.
        places: size of the weight scratchpad in elements. Weight indices wrap around at this size.
    """
    kk = geo.kh * geo.kw
    e2 = 1 if hw0 == 2 or hw1 == 2 else tco
    e3 = 1 if hw0 == 3 or hw1 == 3 else cis
    e4 = 1 if hw0 == 4 or hw1 == 4 else geo.kh
    e5 = 1 if hw0 == 5 or hw1 == 5 else geo.kw
    for i2 in range(e2):
        for i3 in range(e3):
            for i4 in range(e4):
                for i5 in range(e5):
                    uops[at] = pack_uop(
                        lay,
                        acc + i2 * pitch,
                        inp + i3 * ih * iw + i4 * geo.dh * iw + i5 * geo.dw,
                        (wgt + i2 * cis * kk + i3 * kk + i4 * geo.kw + i5) % places,
                    )
                    at += 1


@helper
def gemm(
    state: ProgramState, out: NDArray[np.uint64], lay: Layout, geo: Geometry, bgn: int,
    end: int, hw0: int, hw1: int, rows: int, cols: int, cos: int, cis: int, pitch: int, ih: int,
    iw: int, gather: bool,
) -> None:  # fmt: skip
    """Write a GEMM over a range of micro-ops and the hardware loops.

    Args:
        state: counts of the program.
        out: the instructions.
        lay: bit positions of the instruction fields.
        geo: geometry of the workload.
        bgn: first micro-op.
        end: end of the micro-ops, exclusive.
        hw0: index of the first hardware loop, -1 for none.
        hw1: index of the second hardware loop, -1 for none.
        rows: output rows of the tile.
        cols: output columns of the tile.
        cos: output blocks of the tile.
        cis: input blocks of the step.
        pitch: distance between two output blocks in accumulators.
        ih: input rows per block in the scratchpad.
        iw: input columns per row in the scratchpad.
        gather: whether rows that no output reads are skipped.
    """
    extents = (rows, cols, cos, cis, geo.kh, geo.kw)
    n0, n1 = 1, 1
    d0, s0, w0, d1, s1, w1 = 0, 0, 0, 0, 0, 0
    if hw0 >= 0:
        n0 = extents[hw0]
        if n0 > 1:
            d0, s0, w0 = coefficients(geo, hw0, pitch, ih, iw, cols, cis, gather)
    if hw1 >= 0:
        n1 = extents[hw1]
        if n1 > 1:
            d1, s1, w1 = coefficients(geo, hw1, pitch, ih, iw, cols, cis, gather)
    instruction_writer.gemm(state, out, lay, 0, bgn, end, n0, n1, d0, d1, s0, s1, w0, w1)


@helper
def alu(
    state: ProgramState, out: NDArray[np.uint64], lay: Layout, at: int, cos: int, pixels: int,
    pitch: int, kind: int, opcode: int, immediate: int,
) -> None:  # fmt: skip
    """Write one element-wise operation on the accumulators of a tile.

    Args:
        state: counts of the program.
        out: the instructions.
        lay: bit positions of the instruction fields.
        at: position of the micro-op.
        cos: number of output blocks.
        pixels: number of pixels per block.
        pitch: distance between two output blocks in accumulators.
        kind: kind of the second operand: EPILOGUE_BIAS (one value per channel), EPILOGUE_TENSOR, or
            EPILOGUE_IMMEDIATE.
        opcode: ALU operation.
        immediate: the immediate.
    """
    d0 = pitch if cos > 1 else 0
    d1 = 1 if pixels > 1 else 0
    if kind == EPILOGUE_BIAS:
        s0 = 1 if cos > 1 else 0
        instruction_writer.alu(
            state, out, lay, at, at + 1, cos, pixels, d0, d1, s0, 0, opcode, 0, 0
        )
    elif kind == EPILOGUE_TENSOR:
        instruction_writer.alu(
            state, out, lay, at, at + 1, cos, pixels, d0, d1, d0, d1, opcode, 0, 0
        )
    else:
        instruction_writer.alu(
            state, out, lay, at, at + 1, cos, pixels, d0, d1, d0, d1, opcode, 1, immediate
        )


@helper
def epilogue_piece(
    m: Machine, operations: int, tail: int, done: int, cos: int, rows: int, c0: int, r0: int
) -> tuple[int, int]:
    """Return the size of the next piece of the last tile's epilogue, in output blocks and rows.

    A piece consists of whole blocks, or of rows within one block. The store of a piece overlaps
    with the epilogue of the next piece. If a store is faster than the epilogue, each piece is
    smaller than the previous one by that ratio, so that few pieces make the last store short.
    Otherwise, all pieces have the same size.

    Args:
        m: the machine.
        operations: number of ALU operations of the epilogue.
        tail: requested number of pieces.
        done: number of pieces before this one.
        cos: number of output blocks of the tile.
        rows: number of rows of the tile.
        c0: block at which the piece begins.
        r0: row at which the piece begins.
    """
    if tail <= 1 or operations == 0:
        return cos, rows
    fast = m.out_bytes <= m.bus_bytes
    if fast:
        tail = -(-tail // 2)  # every piece needs more instructions
    shrink = operations * WIDE_STORE
    if not fast or shrink <= 1:
        if cos >= tail:
            return min(-(-cos // tail), cos - c0), rows
        return 1, min(max(1, rows // -(-tail // cos)), rows - r0)
    left, pieces = (cos - c0) * rows - r0, max(1, tail - done)
    take = max(1, int(left * (1 - 1 / shrink) / (1 - shrink**-pieces)))
    if r0 == 0 and take >= rows:
        return take // rows, rows
    return 1, min(take, rows - r0)


@helper
def last_part(left: int, later: int, pixels: int, element_beats: int) -> int:
    """Return the size of the next part of weights, for loads that are slower than the GEMMs.

    With this size, the last element of the part arrives when compute has finished all its earlier
    work except for `later` cycles. Each part costs both modules their latency.

    Args:
        left: number of weight elements that remain to be loaded.
        later: cycles of other work of the compute module.
        pixels: number of pixels per weight element.
        element_beats: bus beats per weight element.
    """
    slack = left * (element_beats - pixels) - later + LAST_PARTS * (LOAD_LATENCY - COMPUTE_LATENCY)
    return max(-(-3 * LOAD_LATENCY // pixels), slack // element_beats)


@helper
def load_bound(geo: Geometry, m: Machine, operations: int, pixels: int) -> bool:
    """Return whether the weights for `pixels` pixels take longer to load than to use.

    Outside of compiled code, `pixels` may be an array.

    Args:
        geo: geometry of the workload.
        m: the machine.
        operations: iterations per accumulator in addition to reset and reduction.
        pixels: number of pixels that use each weight.
    """
    reduction = geo.ci * geo.kh * geo.kw
    return pixels * (reduction + 1 + operations) < reduction * max(1, m.wgt_bytes // m.bus_bytes)


@helper
def weights_stream(
    geo: Geometry, m: Machine, resident: bool, elements: int, th: int, tw: int, nk: int, places: int
) -> bool:  # fmt: skip
    """Return whether weights that should be resident but do not fit are streamed instead.

    Streaming requires that each weight is read only once, in the order of memory, and that only
    loops over pixels run in hardware. Outside of compiled code, the numbers may be arrays.

    Args:
        geo: geometry of the workload.
        m: the machine.
        resident: whether the weights should be resident.
        elements: number of weight elements.
        th: output rows per tile.
        tw: output columns per tile.
        nk: reduction steps per tile.
        places: number of tiles of pixels.
    """
    once = (geo.groups * places == 1) & (nk == 1)
    too_many = elements > m.wgt_built - (geo.identity_at >= 0)
    return resident & too_many & once & (th > 1) & ((tw > 1) | (geo.column != 0))


@helper
def wgt_places(geo: Geometry, m: Machine) -> int:
    """Return the number of elements of the weight scratchpad that are free for weights.

    An identity matrix, if the program needs one, occupies one element.
    """
    return m.wgt_built - (1 if geo.identity_at >= 0 else 0)


@helper
def load_stream(
    state: ProgramState, out: NDArray[np.uint64], geo: Geometry, m: Machine,
    reader: NDArray[np.int64], loaded: int, size: int, freed: int,
) -> int:  # fmt: skip
    """Write the LOAD of a stream's next `size` weights, after the GEMMs that read their places.

    Args:
        state: counts of the program.
        out: the instructions.
        geo: geometry of the workload.
        m: the machine.
        reader: index of the last GEMM that reads each place of the weight scratchpad, shape
            (places,).
        loaded: number of weights loaded so far.
        size: number of weights to load.
        freed: index of the last GEMM for which the load module has already waited.

    Returns:
        The new value of `freed`.
    """
    places = reader.shape[0]
    # The GEMM that reads the last of these places comes after those that read the others.
    last = reader[(loaded + size - 1) % places]
    if last > freed:
        freed = last
        instruction_writer.flag(state, out, last, PUSH_PREV)
        instruction_writer.pop(state, out, _C, _L)
    instruction_writer.memory(
        state, out, LOAD, WGT, loaded % places, geo.wgt_base + loaded, 1, size, size,
        0, 0, 0, 0, m.wgt_bytes,
    )  # fmt: skip
    return freed


@helper
def stream_part(places: int, loaded: int, left: int, wanted: int) -> int:
    """Return the size of the next LOAD of a stream of weights, in weight elements.

    The stream passes through the weight scratchpad as a ring. The size is at most half of the ring,
    so that GEMMs can read the other half. It is large enough that few LOADs are outstanding, and
    the LOAD never crosses the end of the ring.

    Args:
        places: number of weight elements of the ring.
        loaded: number of elements loaded so far.
        left: number of elements that remain.
        wanted: desired size.
    """
    part = max(min(wanted, places // 2), -(-places // MAX_SLOTS))
    return min(part, left, places - loaded % places)
