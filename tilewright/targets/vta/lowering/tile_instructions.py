"""Writes the instructions of a pipelined schedule's tile.

These are window loads, tile transfers, micro-op kernels, and GEMM and ALU instructions. It also
looks up what a ring of scratchpad slots holds. `state` and `out` (instructions, 2) are those of
`instruction_writer`. `uops` (micro-ops,) is the image of the micro-op scratchpad. `ring` (slots, 2)
has the columns named below.
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

# Columns of a ring: the key a slot holds, the GEMM that read it last.
KEY, READER = 0, 1

MAX_SLOTS = 120  # of either ring: their sum bounds the tokens outstanding (counters hold 255)

_L, _C, _S = 0, 1, 2

# What the sizes of parts and pieces are chosen by; the simulator has its own, exact rules.
WIDE_STORE = 0.93  # elements a cycle that a STORE moves where one is a beat, bursts of 64 included
LOAD_LATENCY = 24  # cycles of a LOAD besides its beats
COMPUTE_LATENCY = 7  # cycles of a GEMM or ALU instruction besides its iterations
LAST_PARTS = 10  # about how many the last weights come in where loads are slower than GEMMs


@helper
def find(ring: NDArray[np.int64], key: int, hint: int) -> int:
    """The slot that holds `key`, or -1. Rings are walked in order, so the hint mostly hits."""
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
    """The place of a micro-op among the latest ones, or `n_uops` if it must be added."""
    for j in range(n_uops - 1, max(-1, n_uops - 64), -1):
        if uops[j] == word:
            return j
    return n_uops


@helper
def finish(state: ProgramState, out: NDArray[np.uint64], n_uops: int, uop_bytes: int) -> int:
    """FINISH behind the last STORE, and the size of the first LOAD, which brings all micro-ops.
    Returns a failure code."""
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
    """An input window of `cis` blocks, rows `iw` apart, blocks `ih·iw` apart in the scratchpad.

    From block `channel` on `there` are of the image: in place of those beyond, whose weights are
    zero, its last one is loaded.
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
    """An accumulator tile from or to DRAM: one transfer if dense, else one an output block."""
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
    """What one step of a loop adds to the accumulator, input and weight index."""
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
    """The unrolled loops, output blocks slowest, so that a part of them is a run of micro-ops.
    Weights beyond the last of the scratchpad's places go on at the first."""
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
    """A GEMM over micro-ops bgn … end-1 and the loops `hw0` and `hw1` (-1: none) of a tile of
    `rows` × `cols` pixels, `cos` output and `cis` input blocks."""
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
    """One element-wise operation over `cos` output blocks of `pixels` each."""
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
    """Output blocks, and rows of them, of the epilogue piece after `done` others, which goes on at
    block `c0`, row `r0` of the last tile: whole blocks, or rows within one.

    The store of a piece hides under the epilogue of the next. Where it is the faster of the two,
    pieces shrink by that ratio, so that few of them make the last store short; else they are equal.
    """
    if tail <= 1 or operations == 0:
        return cos, rows
    fast = m.out_bytes <= m.bus_bytes
    if fast:
        tail = -(-tail // 2)  # every piece costs instructions
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
    """Weight elements of the next part where loads are slower than GEMMs and `left` are to come:
    as many as leave compute done with the rest, and with the `later` cycles of its other work, when
    the last element arrives. A part costs each of the two its latency."""
    slack = left * (element_beats - pixels) - later + LAST_PARTS * (LOAD_LATENCY - COMPUTE_LATENCY)
    return max(-(-3 * LOAD_LATENCY // pixels), slack // element_beats)


@helper
def load_bound(geo: Geometry, m: Machine, operations: int, pixels: int) -> bool:
    """Whether the weights of so many pixels take longer to load than to use. `pixels` may be an
    array, for the plain function."""
    reduction = geo.ci * geo.kh * geo.kw
    return pixels * (reduction + 1 + operations) < reduction * max(1, m.wgt_bytes // m.bus_bytes)


@helper
def weights_stream(
    geo: Geometry, m: Machine, resident: bool, elements: int, th: int, tw: int, nk: int, places: int
) -> bool:  # fmt: skip
    """Whether weights that should stay and do not fit pass through the scratchpad instead, provided
    loads bound: where one tile of pixels (`places`) reads each once, in the order of memory, and
    only pixels run in hardware loops. Numbers may be arrays, for the plain function."""
    once = (geo.groups * places == 1) & (nk == 1)
    too_many = elements > m.wgt_built - (geo.identity_at >= 0)
    return resident & too_many & once & (th > 1) & ((tw > 1) | (geo.column != 0))


@helper
def wgt_places(geo: Geometry, m: Machine) -> int:
    """Places of the weight scratchpad for weights: the last is the identity's, if there is one."""
    return m.wgt_built - (1 if geo.identity_at >= 0 else 0)


@helper
def load_stream(
    state: ProgramState, out: NDArray[np.uint64], geo: Geometry, m: Machine,
    reader: NDArray[np.int64], loaded: int, size: int, freed: int,
) -> int:  # fmt: skip
    """LOAD the `size` weights of a stream that follow the `loaded` first, once the GEMMs that read
    their places are done. `reader` (places,) is the last one's instruction by place; returns the
    instruction up to which LOAD knows GEMMs as done (`freed` before)."""
    places = reader.shape[0]
    # The reader of the last of these places read the others before.
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
    """Weight elements of a stream's next LOAD into a ring of so many places. At most half of them,
    so that GEMMs read the other half meanwhile; at least as many as leave few LOADs outstanding;
    never beyond the ring's last place."""
    part = max(min(wanted, places // 2), -(-places // MAX_SLOTS))
    return min(part, left, places - loaded % places)
