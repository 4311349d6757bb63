"""Computes the packed sizes of a workload and the layout of its tensors in DRAM.

Packed sizes count blocks of the GEMM core instead of channels or batch rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.epilogue import RESIDUALS, EpilogueOp, weight_and_shift
from tilewright.targets.integer_reference import total_taps
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.steps import STEP_KINDS
from tilewright.targets.vta.instruction_format import ALU_ADD, ALU_MAX, ALU_MIN, ALU_SHR
from tilewright.targets.vta.numba_decorators import helper
from tilewright.targets.vta.spec import Machine
from tilewright.targets.workload import Workload

PAGE_BYTES = 4096

EPILOGUE_IMMEDIATE, EPILOGUE_BIAS, EPILOGUE_TENSOR, EPILOGUE_RESIDUAL = 0, 1, 2, 3
"""Kinds of second operands of an epilogue step.

- `EPILOGUE_IMMEDIATE`: the immediate.
- `EPILOGUE_BIAS`: one value per channel. The immediate is the index of the step in
  `channel_vectors`.
- `EPILOGUE_TENSOR`: a tensor with the shape of the output.
- `EPILOGUE_RESIDUAL`: an int8 tensor that the GEMM core adds to the accumulators. The immediate is
  the base-2 logarithm of the tensor's factor, or of a power of two that needs the same instructions
  as the factor.
"""
EPILOGUE_TAKE, EPILOGUE_ASIDE, EPILOGUE_BACK = 4, 5, 6
"""Kinds of ALU operations of a step that is composed of several operations (`targets.steps.step`):
copy the accumulators, change the copy by a constant, and change the accumulators by the copy."""

_ROW_OF = {
    "results": EPILOGUE_IMMEDIATE, "take": EPILOGUE_TAKE, "aside": EPILOGUE_ASIDE,
    "back": EPILOGUE_BACK,
}  # fmt: skip
_ALU = {"add": ALU_ADD, "min": ALU_MIN, "max": ALU_MAX, "shr": ALU_SHR}
_CYCLES = {
    EPILOGUE_IMMEDIATE: (1, 1), EPILOGUE_TAKE: (2, 3), EPILOGUE_ASIDE: (1, 1),
    EPILOGUE_BACK: (1, 2),
}  # fmt: skip
"""Instructions per tile and cycles per accumulator, by the kind of ALU operation. An operation with
two accumulator operands takes two cycles. A copy consists of a reset and such an operation."""

IDENTITY_BITS = 6
"""Base-2 logarithm of the largest power of two that fits into an int8 weight."""

_ALU_OF = {"shr": ALU_SHR, "shl": ALU_SHR, "min": ALU_MIN, "max": ALU_MAX, "offset": ALU_ADD,
           "bias": ALU_ADD, "add": ALU_ADD, "residual": ALU_ADD, "weighted": ALU_ADD,
           "shr_channel": ALU_SHR}  # fmt: skip

CHANNEL_VECTORS = ("bias", "shr_channel")
"""Epilogue steps that read one value per channel. Their values are stored one after another in the
memory region of the bias."""

ADDITIONS = ("bias", "add", "offset", "residual", "weighted")
"""Epilogue steps that are additions, so that their order does not matter."""


class Geometry(NamedTuple):
    """Packed sizes (in blocks), window geometry (in pixels) and DRAM addresses (in elements).

    Channel groups: `ci` and `co` are the input and output blocks of one merged group (see
    `merged_groups`). The channels of a merged group fill whole blocks, except in the last group.
    The data of group g is in blocks g·ci … g·ci+ci−1, and its output in blocks g·co … g·co+co−1. An
    image in memory has only `inp_blocks` and `out_blocks` blocks, as many as its channels fill. The
    remaining blocks of the last group are computed with zero weights and are not stored. The
    weights and biases in memory include all blocks.

    Identity matrix: if the GEMM core copies tensors to the accumulators, the last element of the
    weights is the identity matrix.

    Column: the rows of a batched dense layer can be stored as a `column`, which is a single image
    of width 1 with one pixel for every `batch` rows of the machine. The rows then share transfers,
    weights and instructions.

    Fused max-pool: `oh` and `ow` are the size after the pool, and `sums_h` and `sums_w` the size
    before it. Without a pool, the pooling window is 1×1.

    Fused shortcut: the fields `beside_…` describe the shortcut (see `beside_geometry`). Its weights
    and vectors are stored after those of the convolution, and its image is stored in place of a
    residual.

    Fused average: `oh` and `ow` are the size before the average, and an output image has one pixel.
    """

    batches: int  # batch size in blocks of rows
    groups: int  # number of merged channel groups
    ci: int  # input blocks per group; `co`: output blocks per group
    co: int
    h: int  # height and width of the input
    w: int
    oh: int  # height and width of the output
    ow: int
    kh: int  # kernel size
    kw: int
    sh: int  # stride
    sw: int
    dh: int  # dilation
    dw: int
    pad_top: int
    pad_left: int
    pad_bottom: int
    pad_right: int
    inp_base: int  # DRAM addresses, in elements of the memory type
    wgt_base: int
    bias_base: int
    add_base: int
    out_base: int
    uop_base: int
    column: bool
    bias_lift: int  # constant that is added to each bias in memory, see `bias_lifting`
    # smallest bias for which the lift suffices
    bias_lowest: int
    insn_bytes_at: int  # DRAM byte address of the first instruction
    inp_bytes: int
    wgt_bytes: int
    bias_bytes: int
    add_bytes: int
    out_bytes: int
    res_base: int  # DRAM address of the residual or of the shortcut's input, in input elements
    res_bytes: int
    identity_at: int  # index of the identity matrix among the weights, -1 if there is none
    sums_h: int
    sums_w: int
    pool_kh: int
    pool_kw: int
    pool_sh: int
    pool_sw: int
    pool_top: int
    pool_left: int
    beside_ci: int  # input blocks of the shortcut, 0 without shortcut
    beside_h: int
    beside_w: int
    beside_sh: int
    beside_sw: int
    beside_wgt_base: int
    beside_bias_base: int
    beside_steps: int  # number of the shortcut's epilogue steps, which precede the others
    beside_lift: int  # constant that is added to the shortcut's bias in memory
    beside_lowest: int  # like `bias_lowest`, for the shortcut's bias
    # part of `beside_lift` that remains in the accumulators; subtracted from the other bias
    beside_left: int
    average_taps: int  # sum of the weights of an average, 0 without average
    average_steps: int  # number of the average's epilogue steps, which follow the others
    average_lift: int  # part of the lift that remains in each result, divided by 256
    inp_blocks: int  # input blocks of an image in memory; `out_blocks`: output blocks
    out_blocks: int
    # 1 if an epilogue step works on a copy of the accumulators, which then occupy twice the space
    copies: int

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of the output."""
        return (1, 1) if self.average_taps else (self.oh, self.ow)


@helper
def window(tile: int, stride: int, kernel: int, dilation: int) -> int:
    """Return the number of input rows (or columns) that adjacent outputs read.

    Args:
        tile: number of adjacent output rows (or columns).
        stride: stride of the convolution.
        kernel: size of the kernel.
        dilation: distance between two elements of the kernel.
    """
    return (tile - 1) * stride + (kernel - 1) * dilation + 1


def merged_groups(workload: Workload, machine: Machine) -> int:
    """Return how many channel groups of a convolution are computed together, as one larger group.

    The weights between different groups are zero. The number is the smallest one for which the
    channels fill whole blocks. If no number does, all groups are merged.
    """
    if workload.groups == 1:
        return 1
    per_in = workload.in_channels // workload.groups
    per_out = workload.out_channels // workload.groups
    whole_in = machine.block_in // math.gcd(machine.block_in, per_in)
    whole_out = machine.block_out // math.gcd(machine.block_out, per_out)
    return min(math.lcm(whole_in, whole_out), workload.groups)


def geometry_of(workload: Workload, machine: Machine, column: bool = False) -> Geometry:
    """Compute the packed sizes and the memory layout of a workload for a machine.

    Args:
        workload: the workload.
        machine: the machine.
        column: whether to store a batched dense layer as a column, see `Geometry`.

    Raises:
        WorkloadError: the padding exceeds what a LOAD can pad, the blocks are not square although
            the workload needs an identity matrix, or the tensors exceed 32-bit addresses.
    """
    w = workload
    merged = merged_groups(w, machine)
    groups = -(-w.groups // merged)
    ci = -(-(w.in_channels // w.groups * merged) // machine.block_in)
    co = -(-(w.out_channels // w.groups * merged) // machine.block_out)
    inp_blocks = -(-w.in_channels // machine.block_in)
    out_blocks = -(-w.out_channels // machine.block_out)
    batches = -(-w.batch // machine.batch)
    identity = int(_has_residual(w) or w.operator == "max_pool")
    if identity and machine.block_in != machine.block_out:
        raise WorkloadError(
            f"{w}: tensors can only pass through the GEMM core unchanged if its blocks are "
            f"square, but they are {machine.block_in}×{machine.block_out}"
        )
    taps = 0 if w.operator == "max_pool" else w.kernel_h * w.kernel_w
    if max(w.pad_top, w.pad_left, w.pad_bottom, w.pad_right) > 15:
        raise WorkloadError(
            f"{w}: a LOAD pads at most 15 rows or columns (4-bit fields); pad the image beforehand"
        )
    pool = w.pool or Pool(1, 1)
    if max(pool.pad_top, pool.pad_left, pool.pad_bottom, pool.pad_right) > 15:
        raise WorkloadError(
            f"{w}: a max-pool of sums pads at most 15 rows or columns; make it a layer of its own"
        )
    height, results_height = w.height, w.results_height
    beside = None if w.of_shortcut is None else geometry_of(w.of_shortcut, machine)
    column = column and w.operator == "dense" and batches > 1
    if column:
        batches, height, results_height = 1, batches, batches
    spatial_in, spatial_out = height * w.width, results_height * w.results_width
    sizes = {
        "inp": batches * inp_blocks * spatial_in * machine.inp_bytes,
        "wgt": (groups * co * ci * taps + identity) * machine.wgt_bytes,
        "bias": groups * co * machine.acc_bytes * len(channel_vectors(w)),
        "add": batches * out_blocks * spatial_out * machine.acc_bytes if _has(w, "add") else 0,
        "res": batches * out_blocks * spatial_out * machine.inp_bytes * _has_residual(w),
        "out": batches * out_blocks * (1 if w.average else spatial_out) * machine.out_bytes,
        "uop": machine.uop_bytes << machine.log_uop_depth,
    }
    if beside is not None:
        sizes["wgt"] += beside.wgt_bytes
        sizes["bias"] += beside.bias_bytes
        sizes["res"] = beside.inp_bytes
    element = {
        "inp": machine.inp_bytes, "wgt": machine.wgt_bytes, "bias": machine.acc_bytes,
        "add": machine.acc_bytes, "res": machine.inp_bytes, "out": machine.out_bytes,
        "uop": machine.uop_bytes,
    }  # fmt: skip
    address, base = PAGE_BYTES, {}
    for name, size in sizes.items():
        address = _align(address, max(PAGE_BYTES, element[name]))
        base[name] = address // element[name]
        address += size
    if address >= 1 << 32:
        raise WorkloadError(f"{w}: its tensors need {address} bytes, beyond 32-bit addresses")
    return Geometry(
        batches=batches, groups=groups, ci=ci, co=co, h=height, w=w.width,
        oh=results_height, ow=w.results_width, kh=w.kernel_h, kw=w.kernel_w,
        sh=w.stride_h, sw=w.stride_w, dh=w.dilation_h, dw=w.dilation_w,
        pad_top=w.pad_top, pad_left=w.pad_left, pad_bottom=w.pad_bottom, pad_right=w.pad_right,
        inp_base=base["inp"], wgt_base=base["wgt"], bias_base=base["bias"], add_base=base["add"],
        out_base=base["out"], uop_base=base["uop"], column=column,
        bias_lift=0, bias_lowest=0, insn_bytes_at=_align(address, PAGE_BYTES),
        inp_bytes=sizes["inp"], wgt_bytes=sizes["wgt"], bias_bytes=sizes["bias"],
        add_bytes=sizes["add"], out_bytes=sizes["out"],
        res_base=base["res"], res_bytes=sizes["res"],
        identity_at=groups * co * ci * taps if identity else -1,
        sums_h=results_height if column else w.sums_height, sums_w=w.sums_width,
        pool_kh=pool.kernel_h, pool_kw=pool.kernel_w, pool_sh=pool.stride_h,
        pool_sw=pool.stride_w, pool_top=pool.pad_top, pool_left=pool.pad_left,
        beside_ci=0 if beside is None else beside.ci, beside_h=0 if beside is None else beside.h,
        beside_w=0 if beside is None else beside.w, beside_sh=0 if beside is None else beside.sh,
        beside_sw=0 if beside is None else beside.sw,
        beside_wgt_base=base["wgt"] + groups * co * ci * taps,
        beside_bias_base=base["bias"] + groups * co * len(channel_vectors(w)),
        beside_steps=0 if w.shortcut is None else len(w.shortcut.epilogue),
        beside_lift=0, beside_lowest=0, beside_left=0,
        average_taps=0 if w.average is None else total_taps(w.average.height, w.average.width),
        average_steps=0 if w.average is None else len(w.average.epilogue), average_lift=0,
        inp_blocks=inp_blocks, out_blocks=out_blocks,
        copies=int(any(row[0] == EPILOGUE_TAKE for op in w.epilogue for row in composed_rows(op))),
    )  # fmt: skip


def beside_geometry(workload: Workload, machine: Machine, geo: Geometry) -> Geometry | None:
    """Return the geometry of a convolution's shortcut as its own workload, or None without one.

    The tensors of the shortcut and of the convolution are stored in the same memory.

    Args:
        workload: the workload.
        machine: the machine.
        geo: geometry of the workload.
    """
    if workload.of_shortcut is None:
        return None
    return geometry_of(workload.of_shortcut, machine)._replace(
        inp_base=geo.res_base, wgt_base=geo.beside_wgt_base, bias_base=geo.beside_bias_base,
        out_base=geo.out_base, uop_base=geo.uop_base, insn_bytes_at=geo.insn_bytes_at,
        bias_lift=geo.beside_lift, bias_lowest=geo.beside_lowest,
    )  # fmt: skip


def epilogue_steps(workload: Workload) -> NDArray[np.int64]:
    """Convert the epilogue of a workload to rows (operand kind, ALU opcode, immediate).

    The rows of a shortcut come first, and those of an average come last. A left shift becomes a
    right shift by a negative amount, as the VTA encodes it.

    Returns:
        int64 array of shape (steps, 3).
    """
    parts = []
    if workload.of_shortcut is not None:
        parts.append(epilogue_steps(workload.of_shortcut))
    parts.append(_steps(workload.epilogue, channel_vectors(workload)))
    if workload.average is not None:
        parts.append(_steps(workload.average.epilogue, ()))
    return np.concatenate(parts)


def _steps(epilogue: Sequence[EpilogueOp], vectors: Sequence[str]) -> NDArray[np.int64]:
    operand = {"bias": EPILOGUE_BIAS, "add": EPILOGUE_TENSOR, "residual": EPILOGUE_RESIDUAL,
               "weighted": EPILOGUE_RESIDUAL, "shr_channel": EPILOGUE_BIAS}  # fmt: skip
    rows: list[tuple[int, int, int]] = []
    for op in epilogue:
        if op.kind not in _ALU_OF:
            rows += composed_rows(op)
            continue
        immediate = -op.value if op.kind == "shl" else op.value
        if op.kind == "weighted":
            shift = weight_and_shift(op.value)[1]
            immediate = IDENTITY_BITS + shift if shift else 0  # a power of two with the same effect
        if op.kind in vectors:
            immediate = vectors.index(op.kind)
        rows.append((operand.get(op.kind, EPILOGUE_IMMEDIATE), _ALU_OF[op.kind], immediate))
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def composed_rows(op: EpilogueOp) -> list[tuple[int, int, int]]:
    """Return the ALU operations of an epilogue step that consists of several operations.

    Args:
        op: the epilogue step.

    Returns:
        Rows (operand kind, ALU opcode, immediate); empty if the step is a single basic operation.
    """
    return [
        (_ROW_OF[operation.place], _ALU[operation.operation], operation.value)
        for operation in STEP_KINDS[op.kind].operations(op.value)
    ]


def composed_cycles(op: EpilogueOp) -> int:
    """Return the cycles per accumulator of an epilogue step of several ALU operations.

    The result is 0 if the step is a single basic operation.
    """
    return sum(_CYCLES[row][1] for row, _, _ in composed_rows(op))


def alu_operations(workload: Workload) -> int:
    """Count the instructions per tile that execute the steps of a workload's own epilogue.

    A residual counts as one instruction, although the GEMM core adds it. The second product that a
    shifted residual needs (`shifted_residuals`) is not counted, and neither are the steps of a
    shortcut or of a fused average.
    """
    composed = [row for op in workload.epilogue for row, _, _ in composed_rows(op)]
    plain = sum(op.kind in _ALU_OF for op in workload.epilogue)
    return plain + sum(_CYCLES[row][0] for row in composed)


def check_composed(workload: Workload, is_extended: bool) -> None:
    """Check that the space supports the epilogue steps that consist of several ALU operations.

    Args:
        workload: the workload.
        is_extended: whether the schedule space is the extended one.

    Raises:
        WorkloadError: such a step is used outside of the extended space, for a max-pool layer,
            after a fused pool, or in a shortcut.
    """
    step = next((op for op in workload.epilogue if op.kind not in _ALU_OF), None)
    if step is not None and not (is_extended and workload.operator != "max_pool"):
        raise WorkloadError(
            f"{workload}: only the extended space supports '{step}', and not for max_pool; "
            "use the extended space, or run the step on the CPU"
        )
    if step is not None and workload.pool is not None:
        raise WorkloadError(
            f"{workload}: '{step}' cannot be applied to pooled sums; make the max-pool a "
            "layer of its own"
        )
    own = workload.of_shortcut
    if own is not None and any(op.kind not in _ALU_OF for op in own.epilogue):
        raise WorkloadError(
            f"{workload}: the epilogue of a shortcut only supports the basic steps; make the "
            "shortcut a layer of its own"
        )


def channel_vectors(workload: Workload) -> tuple[str, ...]:
    """Return the kinds of epilogue steps that read one value per channel, in the order of storage.

    These kinds are "bias" and "shr_channel".

    Raises:
        WorkloadError: the epilogue has more than one step of one of these two kinds.
    """
    return tuple(kind for kind in CHANNEL_VECTORS if _has(workload, kind))


def tensor_operands(workload: Workload) -> int:
    """Count the epilogue operations whose second operand is read from the accumulators."""
    rows = [row for op in workload.epilogue for row, _, _ in composed_rows(op)]
    from_copies = sum(row in (EPILOGUE_TAKE, EPILOGUE_BACK) for row in rows)
    return from_copies + sum(op.kind in (*CHANNEL_VECTORS, "add") for op in workload.epilogue)


def check_residual(workload: Workload, has_residuals: bool) -> None:
    """Check that the residual of a workload, if it has one, can be lowered.

    Args:
        workload: the workload.
        has_residuals: whether the schedule space supports residuals.

    Raises:
        WorkloadError: the space does not support residuals, or a step before the residual does not
            commute with the addition of the residual.
    """
    kinds = [op.kind for op in workload.epilogue]
    at = next((i for i, kind in enumerate(kinds) if kind in RESIDUALS), None)
    if at is None:
        return
    if not has_residuals:
        raise WorkloadError(
            f"{workload}: only the extended space can pass a residual through the GEMM core; "
            "use the extended space"
        )
    before = next((k for k in kinds[:at] if k not in ADDITIONS), None)
    if before is not None:
        raise WorkloadError(
            f"{workload}: its epilogue has '{before}' before '{kinds[at]}', which must be "
            "added to the sums themselves; write the residual first, or load it as int32 "
            "('add')"
        )


def _has_residual(workload: Workload) -> bool:
    return _has(workload, *RESIDUALS)


def _has(workload: Workload, *kinds: str) -> bool:
    count = sum(op.kind in kinds for op in workload.epilogue)
    if count > 1:
        raise WorkloadError(
            f"{workload}: its epilogue contains '{kinds[0]}' more than once; fold them into one"
        )
    return count == 1


def _align(value: int, to: int) -> int:
    return -(-value // to) * to
