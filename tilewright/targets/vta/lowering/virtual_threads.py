"""Writes the instructions of a template schedule, whose tiles are computed by virtual threads.

A group of tiles has one tile for each of up to four threads. The loads, GEMMs, epilogues and stores
of these threads alternate, so that one thread's transfers overlap with another thread's arithmetic.
The order of instructions is that of the stock compiler.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import (
    ACC,
    INP,
    LOAD,
    OUT,
    STORE,
    UOP,
    WGT,
    Layout,
    pack_uop,
)
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.geometry import (
    EPILOGUE_BIAS,
    EPILOGUE_IMMEDIATE,
    EPILOGUE_TENSOR,
    Geometry,
)
from tilewright.targets.vta.lowering.instruction_writer import ProgramState
from tilewright.targets.vta.lowering.invalid_configs import (
    EMPTY_WINDOW,
    UOP_CAPACITY,
)
from tilewright.targets.vta.lowering.template_tiling import (
    KernelLoops,
    LoopNest,
    TemplateTile,
    TemplateTiling,
    ThreadGroup,
    gemm_nest,
    group_at,
    loops_of,
    reset_nest,
    tile_of,
    write_uops,
)
from tilewright.targets.vta.numba_decorators import helper, stage
from tilewright.targets.vta.spec import Machine

_L, _C, _S = 0, 1, 2

_RESET, _GEMM, EPILOGUE_KERNELS = 0, 1, 2
"""Column indices in the table of micro-op kernels, which has one row per thread: the reset, the
GEMM, and the first epilogue step. Each further epilogue step has a column of its own."""
MOST_THREADS = 4  # two knobs, `oc_nthread` and `h_nthread`, with at most two threads each


class TemplateProgram(NamedTuple):
    """Program of a template schedule that is being written, with its tiles and loops."""

    geo: Geometry
    m: Machine
    lay: Layout
    epilogue: NDArray[np.int64]  # shape (steps, 3)
    tiling: TemplateTiling
    reset: KernelLoops
    gemm: KernelLoops
    kernels: NDArray[np.int64]  # shape (threads, 2 + steps): first micro-op, -1 before it is loaded
    out: NDArray[np.uint64]
    uops: NDArray[np.uint64]
    state: ProgramState


@helper
def write_threads(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], t: TemplateTiling,
    kernels: NDArray[np.int64], out: NDArray[np.uint64], uops: NDArray[np.uint64],
    state: ProgramState,
) -> int:  # fmt: skip
    """Write the program of a template schedule.

    Groups of tiles, with one tile per virtual thread, are computed one after the other.

    Args:
        geo: geometry of the workload.
        m: the machine.
        lay: bit positions of the instruction fields.
        epilogue: ALU operations as rows (operand kind, opcode, immediate) of `epilogue_steps`,
            shape (steps, 3).
        t: sizes and numbers of the tiles.
        kernels: filled with the first micro-op of each kernel of each thread.
        out: filled with instructions, uint64, shape (instructions, 2).
        uops: filled with micro-ops, uint64, shape (micro-ops,).
        state: filled with the program's counts, such as the numbers of instructions.

    Returns:
        The failure code; OK if the program was written.
    """
    reset, gemm = loops_of(reset_nest(t)), loops_of(gemm_nest(geo, t))
    total_uops = t.threads * (reset.uops + gemm.uops + epilogue.shape[0])
    if total_uops > 1 << m.log_uop_depth or total_uops > uops.shape[0]:
        return UOP_CAPACITY
    w = TemplateProgram(geo, m, lay, epilogue, t, reset, gemm, kernels, out, uops, state)
    if t.groups > 1:
        for _ in range(t.threads):
            instruction_writer.push(state, out, _S, _C)
    for number in range(t.groups):
        group = group_at(geo, t, number)
        _reset(w, group)
        for k in range(t.nk):
            _load(w, group, k)
            _multiply(w, group)
        if t.nk > 1:
            _end_sums(w, group)
        _store(w, group)
    return _finish(w)


# -- micro-op kernels --------------------------------------------------------------------------


@helper
def _load_uops(
    state: ProgramState, out: NDArray[np.uint64], m: Machine, geo: Geometry, count: int
) -> None:
    """Write the LOAD of the next micro-ops, which follow those that were loaded before.

    Args:
        state: counts of the program; changed in place.
        out: the instructions, shape (instructions, 2); changed in place.
        m: the machine.
        geo: geometry of the workload.
        count: number of micro-ops to load.
    """
    instruction_writer.memory(
        state, out, LOAD, UOP, state.uops, geo.uop_base + state.uops, 1, count, count,
        0, 0, 0, 0, m.uop_bytes,
    )  # fmt: skip
    state.uops += count


@stage
def _load_kernel(
    w: TemplateProgram, kernel: int, thread: int, nest: LoopNest, loops: KernelLoops, src: int,
    wgt: int,
) -> int:  # fmt: skip
    """Return the first micro-op of a thread's kernel, and load the kernel before its first use.

    A kernel is a range of micro-ops.

    Args:
        w: the program that is being written; changed in place.
        kernel: index of the kernel among those of a thread.
        thread: index of the virtual thread.
        nest: the loops of the kernel.
        loops: the loops that run in hardware.
        src: first input that the kernel reads.
        wgt: first weight that the kernel reads.
    """
    if w.kernels[thread, kernel] < 0:
        at = w.state.uops
        w.kernels[thread, kernel] = at
        write_uops(
            w.lay, w.uops, at, nest, loops.first, loops.second, thread * w.tiling.tile, src, wgt
        )
        _load_uops(w.state, w.out, w.m, w.geo, loops.uops)
    return w.kernels[thread, kernel]


# -- a group of threads, in order --------------------------------------------------------------


@stage
def _reset(w: TemplateProgram, group: ThreadGroup) -> None:
    """Write the resets of a group's accumulators, after the stores of their previous content.

    Args:
        w: the program that is being written; changed in place.
        group: the group of tiles, one per virtual thread.
    """
    t, state, out, loops = w.tiling, w.state, w.out, w.reset
    state.tiles += group.threads
    # Threads without a tile pass their token on. Otherwise the first reset of the next group would
    # take the token and overtake the store of this group.
    for _ in range(t.threads - group.threads):
        instruction_writer.pop(state, out, _S, _C)
        instruction_writer.commit_pops(state, out, _C)
    for thread in range(group.threads):
        if t.groups > 1:
            instruction_writer.pop(state, out, _S, _C)
        at = _load_kernel(w, _RESET, thread, reset_nest(t), loops, 0, 0)
        instruction_writer.gemm(
            state, out, w.lay, 1, at, at + loops.uops, loops.n0, loops.n1, loops.d0, loops.d1,
            0, 0, 0, 0,
        )  # fmt: skip
        instruction_writer.push(state, out, _C, _L)


@stage
def _load(w: TemplateProgram, group: ThreadGroup, k: int) -> None:
    """Write the loads of the inputs and weights of a reduction step, for each thread of a group.

    Args:
        w: the program that is being written; changed in place.
        group: the group of tiles, one per virtual thread.
        k: index of the reduction step.
    """
    t, geo, state, out = w.tiling, w.geo, w.state, w.out
    state.steps += group.threads
    for thread in range(group.threads):
        tile = tile_of(geo, t, group, thread)
        instruction_writer.pop(state, out, _C, _L)
        _load_window(w, tile, k * t.tci)
        weights = (tile.co * geo.ci + k * t.tci) * geo.kh * geo.kw
        instruction_writer.region(
            state, out, LOAD, WGT, thread * t.wgt, geo.wgt_base + weights,
            1, 0, t.tco, geo.ci * geo.kh * geo.kw, t.tci * geo.kh * geo.kw, w.m.wgt_bytes,
        )  # fmt: skip
        instruction_writer.push(state, out, _L, _C)


@stage
def _load_window(w: TemplateProgram, tile: TemplateTile, ci: int) -> None:
    """Write the loads of the inputs that a tile reads in one reduction step.

    The LOAD instruction fills the padding with zeros.

    Args:
        w: the program that is being written; changed in place.
        tile: the output tile.
        ci: first input block.
    """
    t, geo, state, out = w.tiling, w.geo, w.state, w.out
    y0, x0 = tile.row * geo.sh - geo.pad_top, tile.col * geo.sw - geo.pad_left
    top, left = max(0, -y0), max(0, -x0)
    bottom, right = max(0, y0 + t.ih - geo.h), max(0, x0 + t.iw - geo.w)
    rows, cols = t.ih - top - bottom, t.iw - left - right
    # Blocks beyond the last block of the image have zero weights, so their data do not matter. The
    # last block is loaded instead.
    there = geo.inp_blocks - tile.group * geo.ci - ci
    channel = tile.image * geo.inp_blocks + tile.group * geo.ci + ci
    sram = tile.thread * t.inp
    dram = geo.inp_base + (channel * geo.h + max(0, y0)) * geo.w + max(0, x0)
    one_by_one = 0
    if not t.padded:
        one_by_one = max(0, min(t.tci, there))
        if one_by_one > 0:
            instruction_writer.region(
                state, out, LOAD, INP, sram, dram,
                one_by_one, geo.h * geo.w, t.ih, geo.w, t.iw, w.m.inp_bytes,
            )  # fmt: skip
    elif rows <= 0 or cols <= 0:
        # A window that is entirely in the padding cannot be filled by a LOAD, because a LOAD with
        # x_size 0 writes nothing.
        state.problem = EMPTY_WINDOW
    for c in range(one_by_one, t.tci):
        instruction_writer.memory(
            state, out, LOAD, INP, sram + c * t.ih * t.iw,
            dram + min(c, there - 1) * geo.h * geo.w,
            rows, cols, geo.w, top, bottom, left, right, w.m.inp_bytes,
        )  # fmt: skip


@stage
def _multiply(w: TemplateProgram, group: ThreadGroup) -> None:
    """Write one GEMM per thread of a group.

    If there is only one reduction step, the epilogues follow.

    Args:
        w: the program that is being written; changed in place.
        group: the group of tiles, one per virtual thread.
    """
    t, state, out, loops = w.tiling, w.state, w.out, w.gemm
    for thread in range(group.threads):
        instruction_writer.pop(state, out, _L, _C)
        nest = gemm_nest(w.geo, t)
        at = _load_kernel(w, _GEMM, thread, nest, loops, thread * t.inp, thread * t.wgt)
        instruction_writer.gemm(
            state, out, w.lay, 0, at, at + loops.uops, loops.n0, loops.n1, loops.d0, loops.d1,
            loops.s0, loops.s1, loops.w0, loops.w1,
        )  # fmt: skip
        if t.nk > 1:
            instruction_writer.push(state, out, _C, _L)
        else:
            _write_epilogue(w, tile_of(w.geo, w.tiling, group, thread))
            instruction_writer.push(state, out, _C, _S)


@stage
def _end_sums(w: TemplateProgram, group: ThreadGroup) -> None:
    """Write the epilogues of a group of tiles whose reduction has several steps.

    If the reduction has one step, `_multiply` has already written the epilogues.

    Args:
        w: the program that is being written; changed in place.
        group: the group of tiles, one per virtual thread.
    """
    for _ in range(group.threads):
        instruction_writer.pop(w.state, w.out, _C, _L)
    for thread in range(group.threads):
        _write_epilogue(w, tile_of(w.geo, w.tiling, group, thread))
        instruction_writer.push(w.state, w.out, _C, _S)


@stage
def _write_epilogue(w: TemplateProgram, tile: TemplateTile) -> None:
    """Write one ALU instruction per epilogue step, which changes a tile's accumulators in place.

    Operands that are loaded are stored after the accumulators of all threads.

    Args:
        w: the program that is being written; changed in place.
        tile: the tile of one virtual thread.
    """
    t, state, out = w.tiling, w.state, w.out
    pixels, accumulators = t.th * t.tw, tile.thread * t.tile
    operand = t.threads * t.tile + accumulators
    for e in range(w.epilogue.shape[0]):
        kind, opcode, immediate = w.epilogue[e, 0], w.epilogue[e, 1], w.epilogue[e, 2]
        if kind == EPILOGUE_BIAS:
            bias = w.geo.bias_base + immediate * w.geo.groups * w.geo.co + tile.co
            instruction_writer.memory(
                state, out, LOAD, ACC, operand, bias, 1, t.tco, t.tco, 0, 0, 0, 0, w.m.acc_bytes
            )
        elif kind == EPILOGUE_TENSOR:
            _load_tensor(state, out, w.geo, w.m, t.tco, t.th, t.tw, tile, operand)
        constant = kind == EPILOGUE_IMMEDIATE
        at = w.kernels[tile.thread, EPILOGUE_KERNELS + e]
        if at < 0:
            at = state.uops
            w.kernels[tile.thread, EPILOGUE_KERNELS + e] = at
            if at < w.uops.shape[0]:
                source = accumulators if constant else operand
                w.uops[at] = pack_uop(w.lay, accumulators, source, 0)
            _load_uops(state, out, w.m, w.geo, 1)
        if kind == EPILOGUE_BIAS:
            # One element per channel block, which applies to all pixels of the tile.
            instruction_writer.alu(
                state, out, w.lay, at, at + 1, t.tco, pixels, pixels, 1, 1, 0, opcode, 0, 0
            )
        else:
            step = 1 if t.tile > 1 else 0
            use_imm = 1 if constant else 0
            instruction_writer.alu(
                state, out, w.lay, at, at + 1, 1, t.tile, 0, step, 0, step, opcode, use_imm,
                immediate if constant else 0,
            )  # fmt: skip
        if not constant:
            operand += t.threads * t.tile


@helper
def _load_tensor(
    state: ProgramState, out: NDArray[np.uint64], geo: Geometry, m: Machine, tco: int, th: int,
    tw: int, tile: TemplateTile, operand: int,
) -> None:  # fmt: skip
    """Write the loads of the part of an epilogue's tensor that is added to a tile.

    For blocks after the last block of the image, the last block of the image is loaded.

    Args:
        state: counts of the program; changed in place.
        out: the instructions, shape (instructions, 2); changed in place.
        geo: geometry of the workload.
        m: the machine.
        tco: output blocks per tile.
        th: output rows per tile.
        tw: output columns per tile.
        tile: the output tile.
        operand: first accumulator to load to.
    """
    there = geo.out_blocks - tile.co
    blocks = max(0, min(tco, there))
    first_block = tile.image * geo.out_blocks + tile.co
    add = geo.add_base + (first_block * geo.oh + tile.row) * geo.ow + tile.col
    if blocks > 0:
        instruction_writer.region(
            state, out, LOAD, ACC, operand, add,
            blocks, geo.oh * geo.ow, th, geo.ow, tw, m.acc_bytes,
        )  # fmt: skip
    for c in range(blocks, tco):  # these blocks are not stored
        instruction_writer.region(
            state, out, LOAD, ACC, operand + c * th * tw,
            add + (there - 1) * geo.oh * geo.ow, 1, 0, th, geo.ow, tw, m.acc_bytes,
        )  # fmt: skip


@stage
def _store(w: TemplateProgram, group: ThreadGroup) -> None:
    """Write the stores of a group of tiles, without blocks that lie outside of the image.

    Args:
        w: the program that is being written; changed in place.
        group: the group of tiles, one per virtual thread.
    """
    t, geo, state, out = w.tiling, w.geo, w.state, w.out
    for thread in range(group.threads):
        tile = tile_of(geo, t, group, thread)
        instruction_writer.pop(state, out, _C, _S)
        stored = min(t.tco, geo.out_blocks - tile.co)
        if stored > 0:
            first_block = tile.image * geo.out_blocks + tile.co
            first = geo.out_base + (first_block * geo.oh + tile.row) * geo.ow + tile.col
            instruction_writer.region(
                state, out, STORE, OUT, thread * t.tile, first,
                stored, geo.oh * geo.ow, t.th, geo.ow, t.tw, w.m.out_bytes,
            )  # fmt: skip
        else:
            instruction_writer.commit_pops(state, out, _S)
        if t.groups > 1:
            instruction_writer.push(state, out, _S, _C)
    for _ in range(t.threads - group.threads):
        instruction_writer.push(state, out, _S, _C)


@stage
def _finish(w: TemplateProgram) -> int:
    """Write FINISH after the last STORE and LOAD, and return the failure code.

    Args:
        w: the program that is being written; changed in place.
    """
    state, out = w.state, w.out
    # The stock runtime writes the last pop of a single-threaded program only after FINISH.
    if w.tiling.groups > 1 and w.tiling.threads >= 2:
        for _ in range(w.tiling.threads):
            instruction_writer.pop(state, out, _S, _C)
    instruction_writer.push(state, out, _S, _C)
    instruction_writer.push(state, out, _L, _C)
    instruction_writer.pop(state, out, _S, _C)
    instruction_writer.pop(state, out, _L, _C)
    instruction_writer.commit_pops(state, out, _C)
    instruction_writer.finish(state, out)
    return instruction_writer.outcome(state, out)
