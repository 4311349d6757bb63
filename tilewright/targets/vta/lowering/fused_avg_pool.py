"""Lowers average pooling that is fused with a convolution and computed in the accumulators.

Each channel block of an image then has a single output element. A tile contains all convolution
results of its blocks, followed by two accumulators per block. The weights of an average differ by
at most one (see `targets.integer_reference`). Results with the larger weight are summed in the
first accumulator, and the other results in the second one. Then the sum of both accumulators,
multiplied by the smaller weight, is added to the first one. The ALU cannot multiply, so each bit of
the weight becomes a shift and an addition.
"""

from __future__ import annotations

from tilewright.core.errors import WorkloadError
from tilewright.targets.vta.instruction_format import (
    ALU_ADD,
    ALU_SHR,
    OUT,
    PUSH_NEXT,
    STORE,
    pack_uop,
)
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.output_tiles import (
    FULL,
    GemmProgram,
    GemmTile,
    TilePiece,
    epilogue_of,
    load_bias,
    stored_blocks,
)
from tilewright.targets.vta.lowering.tile_and_buffer_plan import LoweringPlan
from tilewright.targets.vta.numba_decorators import stage
from tilewright.targets.workload import Workload

_C, _S = 1, 2

# Micro-ops of a slot: on the first accumulator of a block, on the second, from the first to the
# second and back. Then the results with the larger tap are added to the first accumulator, and the
# others to the second.
_FIRST, _SECOND, _TO_SECOND, _TO_FIRST, _RESULTS = 0, 1, 2, 3, 4


def check_averaged(workload: Workload, is_extended: bool) -> None:
    """Check that a fused average, if the workload has one, can be lowered.

    Args:
        workload: the workload.
        is_extended: whether the schedule space is the extended one.

    Raises:
        WorkloadError: the space is not the extended one.
    """
    if workload.average is not None and not is_extended:
        raise WorkloadError(
            f"{workload}: only the extended space averages results in the accumulators; use it, or "
            "make the average a layer of its own"
        )


@stage
def average_uops(plan: LoweringPlan) -> int:
    """Return the number of micro-ops that a fused average needs; 0 without an average.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
    """
    if plan.geo.average_taps == 0:
        return 0
    return plan.slots.acc * (_RESULTS + plan.geo.oh * plan.geo.ow)


@stage
def write_average(plan: LoweringPlan, program: GemmProgram) -> None:
    """Write the micro-ops with which the ALU averages the results of a tile.

    They follow the first micro-ops, of which there is one per accumulator slot.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        program: the program that is being written; changed in place.
    """
    pixels, count = plan.geo.oh * plan.geo.ow, average_uops(plan) // plan.slots.acc
    for slot in range(plan.slots.acc if count else 0):
        acc, at = slot * plan.slots.acc_size, plan.slots.acc + slot * count
        first = acc + plan.tiling.tco * pixels
        second = first + plan.tiling.tco
        program.uops[at + _FIRST] = pack_uop(plan.lay, first, first, 0)
        program.uops[at + _SECOND] = pack_uop(plan.lay, second, second, 0)
        program.uops[at + _TO_SECOND] = pack_uop(plan.lay, second, first, 0)
        program.uops[at + _TO_FIRST] = pack_uop(plan.lay, first, second, 0)
        before, behind = at + _RESULTS, at + _RESULTS + _to_first(plan)
        for pixel in range(pixels):
            if _has_larger_tap(plan, pixel) or _to_first(plan) == pixels:
                program.uops[before] = pack_uop(plan.lay, first, acc + pixel, 0)
                before += 1
            else:
                program.uops[behind] = pack_uop(plan.lay, second, acc + pixel, 0)
                behind += 1


@stage
def _to_first(plan: LoweringPlan) -> int:
    """Return the number of results that are summed in the first accumulator of a channel block.

    Each block has two accumulators for sums. The first one gets the results with the larger of the
    two averaging weights, or all results if all weights are equal.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
    """
    pixels = plan.geo.oh * plan.geo.ow
    larger = plan.geo.average_taps % pixels
    return larger if larger else pixels


@stage
def _has_larger_tap(plan: LoweringPlan, pixel: int) -> bool:
    """Return whether a pixel has the larger of the two averaging weights.

    `integer_reference.average_weights` defines the weights.

    Args:
        plan: plan of the schedule.
        pixel: index of the pixel in the averaged image.
    """
    pixels, total = plan.geo.oh * plan.geo.ow, plan.geo.average_taps
    return (pixel + 1) * total // pixels - pixel * total // pixels > total // pixels


@stage
def end_averaged(plan: LoweringPlan, program: GemmProgram, tile: GemmTile, n_uops: int) -> int:
    """Write the end of a tile whose results are averaged.

    The end consists of the epilogue of the convolution, the average, the epilogue of the average,
    and the store.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        program: the program that is being written; changed in place.
        tile: the output tile.
        n_uops: number of micro-ops so far.

    Returns:
        The new number of micro-ops, or FULL if they do not fit into the scratchpad.
    """
    geo, state, out = plan.geo, program.state, program.out
    if not plan.operations.lifted:
        load_bias(plan, program, tile)
    n_uops = epilogue_of(plan, program, tile, TilePiece(0, tile.cos, 0, tile.rows, 0), n_uops)
    if n_uops == FULL:
        return FULL
    at = plan.slots.acc + tile.slot * (average_uops(plan) // plan.slots.acc)
    _sum_up(plan, program, tile, at)
    for e in range(plan.behind.shape[0]):
        _each_block(plan, program, tile, at + _FIRST, plan.behind[e, 1], 1, plan.behind[e, 2])
    instruction_writer.flag(state, out, state.instructions - 1, PUSH_NEXT)
    instruction_writer.pop(state, out, _C, _S)
    stored = stored_blocks(tile, 0, tile.cos)
    if stored > 0:
        instruction_writer.memory(
            state, out, STORE, OUT, tile.acc + plan.tiling.tco * geo.oh * geo.ow,
            geo.out_base + tile.image * geo.out_blocks + tile.group * geo.co + tile.co, 1, stored,
            stored, 0, 0, 0, 0, plan.m.out_bytes,
        )  # fmt: skip
    else:
        instruction_writer.commit_pops(state, out, _S)
    program.store_of[tile.slot] = state.instructions - 1
    return n_uops


@stage
def _sum_up(plan: LoweringPlan, program: GemmProgram, tile: GemmTile, at: int) -> None:
    """Write the instructions that compute the weighted sum of each channel block's results.

    The sum of a block is computed in its first accumulator.

    Args:
        plan: plan of the schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
        at: position of the first micro-op of the average.
    """
    pixels, tco, first = plan.geo.oh * plan.geo.ow, plan.tiling.tco, _to_first(plan)
    count = tco + tile.cos if first < pixels else tile.cos
    instruction_writer.gemm(
        program.state, program.out, plan.lay, 1, at + _FIRST, at + _FIRST + 1, 1, count, 0,
        1 if count > 1 else 0, 0, 0, 0, 0,
    )  # fmt: skip
    _take_back_lift(plan, program, tile, at, count)
    _add_results(plan, program, tile, at + _RESULTS, at + _RESULTS + first)
    if first == pixels:
        return
    _add_results(plan, program, tile, at + _RESULTS + first, at + _RESULTS + pixels)
    _each_block(plan, program, tile, at + _TO_SECOND, ALU_ADD, 0, 0)
    tap, shift = plan.geo.average_taps // pixels, 0
    while tap:
        if tap & 1:
            if shift:
                _each_block(plan, program, tile, at + _SECOND, ALU_SHR, 1, -shift)
                shift = 0
            _each_block(plan, program, tile, at + _TO_FIRST, ALU_ADD, 0, 0)
        tap >>= 1
        shift += 1


@stage
def _take_back_lift(
    plan: LoweringPlan, program: GemmProgram, tile: GemmTile, at: int, count: int
) -> None:
    """Write the instructions that subtract the bias's lift from the accumulators for sums.

    The lift is a constant that was added to the bias: see `bias_lifting`.

    Args:
        plan: plan of the schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
        at: position of the first micro-op of the average.
        count: number of accumulators for sums.
    """
    pixels, first, lift = plan.geo.oh * plan.geo.ow, _to_first(plan), plan.geo.average_lift
    if lift == 0:
        return
    _each_block(plan, program, tile, at + _FIRST, ALU_ADD, 1, -lift * first)
    if first < pixels:
        _each_block(plan, program, tile, at + _SECOND, ALU_ADD, 1, -lift * (pixels - first))
    step = 1 if count > 1 else 0
    instruction_writer.alu(
        program.state, program.out, plan.lay, at + _FIRST, at + _FIRST + 1, 1, count, 0, step, 0,
        step, ALU_SHR, 1, -8,
    )  # fmt: skip


@stage
def _add_results(
    plan: LoweringPlan, program: GemmProgram, tile: GemmTile, bgn: int, end: int
) -> None:
    """Write the ALU instruction that adds results to the accumulators for sums of their blocks.

    Args:
        plan: plan of the schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
        bgn: first micro-op; there is one micro-op per result.
        end: end of the micro-ops, exclusive.
    """
    dst, src = 0, 0
    if tile.cos > 1:
        dst, src = 1, tile.pitch
    instruction_writer.alu(
        program.state, program.out, plan.lay, bgn, end, tile.cos, 1, dst, 0, src, 0, ALU_ADD, 0, 0
    )


@stage
def _each_block(
    plan: LoweringPlan, program: GemmProgram, tile: GemmTile, at: int, opcode: int, use_imm: int,
    immediate: int,
) -> None:  # fmt: skip
    """Write an ALU instruction that applies one micro-op to each channel block of a tile.

    Args:
        plan: plan of the schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
        at: position of the micro-op, which refers to the first block.
        opcode: the ALU operation.
        use_imm: 1 if the second operand is the immediate, else 0.
        immediate: the immediate.
    """
    step = 1 if tile.cos > 1 else 0
    instruction_writer.alu(
        program.state, program.out, plan.lay, at, at + 1, 1, tile.cos, 0, step, 0, step, opcode,
        use_imm, immediate,
    )  # fmt: skip
