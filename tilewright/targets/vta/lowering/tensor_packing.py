"""Packs tensors into VTA's DRAM layout, unpacks the output, and computes the integer reference."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.epilogue import RESIDUALS, EpilogueOp, weight_and_shift
from tilewright.targets.integer_reference import reference as integers
from tilewright.targets.patterns.shortcut import shortcut_tensors
from tilewright.targets.vta.lowering.bias_lifting import SUMS
from tilewright.targets.vta.lowering.geometry import (
    IDENTITY_BITS,
    PAGE_BYTES,
    Geometry,
    beside_geometry,
    channel_vectors,
    merged_groups,
)
from tilewright.targets.vta.spec import Machine
from tilewright.targets.workload import Workload

Tensors = dict[str, NDArray[np.int64]]
"""Operands of a workload by name, int64.

- `data`: shape (n, c, h, w).
- `weight`: shape (o, c / groups, kh, kw); absent for max-pools.
- `bias`, `shr_channel`: shape (o,), if the epilogue reads them.
- `add`, `residual`: shape (n, o, oh, ow) before an average pool, if the epilogue reads them.
- Names that begin with `shortcut_`: operands of a fused shortcut.
"""


def random_tensors(workload: Workload, machine: Machine, seed: int) -> Tensors:
    """Draw random operands for a workload.

    Data and weights cover the whole range of the machine's types. Biases and added int32 tensors
    have 20 bits. Shift amounts cover the range that the epilogue permits.

    Args:
        workload: the workload.
        machine: the machine, which defines the widths of data and weights.
        seed: seed of the random generator.
    """
    w, rng = workload, np.random.default_rng(seed)

    def draw(bits: int, *shape: int) -> NDArray[np.int64]:
        return rng.integers(-(1 << bits - 1), 1 << bits - 1, size=shape, dtype=np.int64)

    tensors = {"data": draw(machine.inp_bits, w.batch, w.in_channels, w.height, w.width)}
    if w.operator != "max_pool":
        tensors["weight"] = draw(
            machine.wgt_bits, w.out_channels, w.in_channels // w.groups, w.kernel_h, w.kernel_w
        )
    kinds = {op.kind for op in w.epilogue}
    if "bias" in kinds:
        tensors["bias"] = draw(20, w.out_channels)
    if "shr_channel" in kinds:
        least, most = channel_shift(w).shift_range
        tensors["shr_channel"] = rng.integers(least, most + 1, w.out_channels, dtype=np.int64)
    if "add" in kinds:
        tensors["add"] = draw(20, w.batch, w.out_channels, w.results_height, w.results_width)
    if kinds & set(RESIDUALS):
        shape = (w.batch, w.out_channels, w.results_height, w.results_width)
        tensors["residual"] = draw(machine.inp_bits, *shape)
    if w.of_shortcut is not None:
        shortcut = random_tensors(w.of_shortcut, machine, seed + 1)
        tensors |= {f"shortcut_{name}": values for name, values in shortcut.items()}
    return tensors


def reference(workload: Workload, machine: Machine, tensors: Tensors) -> NDArray[np.int64]:
    """Compute the expected output of a workload in plain integer arithmetic.

    Accumulators wrap around modulo 2^acc_bits. The result is truncated to the width of the input,
    like the result of a STORE instruction.

    Args:
        workload: the workload.
        machine: the machine, which defines the widths.
        tensors: the operands.

    Returns:
        int64 array of shape (n, o, oh, ow).
    """
    return integers(workload, tensors, machine.acc_bits, machine.inp_bits)


def pack_image(
    workload: Workload, machine: Machine, geo: Geometry, tensors: Tensors, uops: NDArray[np.uint64]
) -> NDArray[np.uint8]:
    """Build the DRAM image with all tensors and micro-ops, and space for the output.

    Args:
        workload: the workload.
        machine: the machine.
        geo: geometry of the workload.
        tensors: the operands.
        uops: micro-ops, uint64, shape (micro-ops,).

    Returns:
        uint8 array of shape (bytes,), which begins at byte address `PAGE_BYTES`.
    """
    w, m = workload, machine
    image = np.zeros(geo.insn_bytes_at - PAGE_BYTES, np.uint8)

    def put(base: int, element_bytes: int, values: NDArray[np.int64], bits: int) -> None:
        raw = np.ascontiguousarray(values.astype(f"<i{bits // 8}")).view(np.uint8).ravel()
        at = base * element_bytes - PAGE_BYTES
        image[at : at + raw.size] = raw

    data = packed_image(tensors["data"], m, geo, geo.inp_blocks, m.block_in)
    put(geo.inp_base, m.inp_bytes, data, m.inp_bits)
    put(geo.wgt_base, m.wgt_bytes, packed_weights(w, m, geo, tensors), m.wgt_bits)
    vectors = packed_vectors(w, m, geo, tensors)
    put(geo.bias_base, m.acc_bytes, vectors, m.acc_bits)
    if "add" in tensors:
        add = packed_image(tensors["add"], m, geo, geo.out_blocks, m.block_out)
        put(geo.add_base, m.acc_bytes, add, m.acc_bits)
    if "residual" in tensors:
        residual = packed_image(tensors["residual"], m, geo, geo.out_blocks, m.block_out)
        put(geo.res_base, m.inp_bytes, residual, m.inp_bits)
    beside = beside_geometry(w, m, geo)
    if beside is not None and w.of_shortcut is not None:
        operands = shortcut_tensors(tensors)
        data = packed_image(operands["data"], m, beside, beside.inp_blocks, m.block_in)
        put(beside.inp_base, m.inp_bytes, data, m.inp_bits)
        weights = packed_weights(w.of_shortcut, m, beside, operands)
        put(beside.wgt_base, m.wgt_bytes, weights, m.wgt_bits)
        vectors = packed_vectors(w.of_shortcut, m, beside, operands)
        put(beside.bias_base, m.acc_bytes, vectors, m.acc_bits)
    words = uops.astype(f"<u{m.uop_bytes}").view(np.uint8)
    at = geo.uop_base * m.uop_bytes - PAGE_BYTES
    image[at : at + words.size] = words
    return image


def unpack_output(
    workload: Workload, machine: Machine, geo: Geometry, image: NDArray[np.uint8]
) -> NDArray[np.int64]:
    """Read the output of a program from a memory image.

    Args:
        workload: the workload.
        machine: the machine.
        geo: geometry of the workload, which contains the address of the output.
        image: memory image that begins at byte address `PAGE_BYTES`, uint8, shape (bytes,).

    Returns:
        int64 array of shape (n, o, oh, ow).
    """
    w, m = workload, machine
    at = geo.out_base * m.out_bytes - PAGE_BYTES
    raw = image[at : at + geo.out_bytes].view(f"<i{m.inp_bits // 8}")
    blocks = raw.reshape(geo.batches, geo.out_blocks, *geo.output, m.batch, m.block_out)
    # The pixels of a column are stored in the place of the batch, see `packed_image`.
    order = (0, 2, 3, 4, 1, 5) if geo.column else (0, 4, 1, 5, 2, 3)
    channels = geo.out_blocks * m.block_out
    whole = blocks.transpose(order).reshape(-1, channels, w.out_height, w.out_width)
    return whole[: w.batch, : w.out_channels].astype(np.int64)


def packed_image(
    tensor: NDArray[np.int64], m: Machine, geo: Geometry, blocks: int, block: int
) -> NDArray[np.int64]:
    """Convert a tensor (n, c, h, w) to blocks of channels.

    Args:
        tensor: the tensor.
        m: the machine.
        geo: geometry of the workload.
        blocks: number of blocks per image.
        block: number of channels per block.

    Returns:
        Array of shape (batches, blocks, h, w, batch, block). If the geometry is a column, the rows
        of the batch become the pixels of one image.
    """
    if geo.column:
        rows = np.zeros((geo.h * m.batch, tensor.shape[1]), np.int64)
        rows[: len(tensor)] = tensor[:, :, 0, 0]
        tensor = rows.reshape(geo.h, m.batch, -1).transpose(1, 2, 0)[..., None]
    n, c, h, w = tensor.shape
    out = np.zeros((geo.batches * m.batch, blocks * block, h, w), np.int64)
    out[:n, :c] = tensor
    split = out.reshape(geo.batches, m.batch, blocks, block, h, w)
    return split.transpose(0, 2, 4, 5, 1, 3)


def packed_weights(w: Workload, m: Machine, geo: Geometry, tensors: Tensors) -> NDArray[np.int64]:
    """Convert weights to the machine's blocks.

    The weights between channel groups that are computed together are zero. The identity matrix
    follows the weights if the program needs it.

    Args:
        w: the workload.
        m: the machine.
        geo: geometry of the workload.
        tensors: the operands; `weight` is missing for a max-pool.

    Returns:
        Array of shape (elements, block_out, block_in).
    """
    parts = []
    if "weight" in tensors:
        merged = merged_groups(w, m)
        per_in, per_out = w.in_channels // w.groups, w.out_channels // w.groups
        taps = (w.kernel_h, w.kernel_w)
        weight = np.zeros((geo.groups, merged, per_out, merged, per_in, *taps), np.int64)
        weights = np.zeros((geo.groups * merged, per_out, per_in, *taps), np.int64)
        weights[: w.groups] = tensors["weight"].reshape(w.groups, per_out, per_in, *taps)
        weights = weights.reshape(geo.groups, merged, per_out, per_in, *taps)
        for g in range(merged):
            weight[:, g, :, g] = weights[:, g]
        whole = np.zeros((geo.groups, geo.co * m.block_out, geo.ci * m.block_in, *taps), np.int64)
        whole[:, : merged * per_out, : merged * per_in] = weight.reshape(
            geo.groups, merged * per_out, merged * per_in, *taps
        )
        whole = whole.reshape(
            geo.groups * geo.co, m.block_out, geo.ci, m.block_in, w.kernel_h, w.kernel_w
        )
        parts.append(whole.transpose(0, 2, 4, 5, 1, 3).reshape(-1, m.block_out, m.block_in))
    if geo.identity_at >= 0:
        parts.append(identity_of(w, m)[None])
    return np.concatenate(parts)


def identity_of(workload: Workload, m: Machine) -> NDArray[np.int64]:
    """Return the weights with which the GEMM core copies a tensor, or adds a residual.

    For a max-pool, they are the identity matrix. For a residual, they are the identity matrix times
    the residual's factor. If the factor exceeds the range of a weight, the matrix holds as much of
    it as possible, and the lowering supplies the rest.

    Returns:
        Array of shape (block_out, block_in).
    """
    step = next((op for op in workload.epilogue if op.kind in RESIDUALS), EpilogueOp("residual"))
    times = (
        weight_and_shift(step.value)[0]
        if step.kind == "weighted"
        else 1 << min(step.value, IDENTITY_BITS)
    )
    return np.eye(m.block_out, dtype=np.int64) * times


def packed_vectors(w: Workload, m: Machine, geo: Geometry, tensors: Tensors) -> NDArray[np.int64]:
    """Convert the values per output channel to the machine's blocks.

    The values are those of `bias` and then those of `shr_channel`, as far as the epilogue has these
    steps. Every batch row of an accumulator gets the same values.

    Args:
        w: the workload.
        m: the machine.
        geo: geometry of the workload.
        tensors: the operands, with `bias` and `shr_channel` of shape (o,).

    Returns:
        Array of shape (blocks, batch, block_out).

    Raises:
        WorkloadError: a bias lies outside the range for which the schedules are exact, or a shift
            lies outside the range that the epilogue declares.
    """
    kinds, bias = channel_vectors(w), tensors.get("bias")
    shifts = np.zeros(w.out_channels, np.int64)
    whole = np.zeros((len(kinds), geo.groups * geo.co * m.block_out), np.int64)
    if "shr_channel" in kinds:
        (least, most), shifts = channel_shift(w).shift_range, tensors["shr_channel"]
        if not least <= shifts.min() <= shifts.max() <= most:
            raise WorkloadError(
                f"the channels are shifted by {shifts.min()} to {shifts.max()} bits, but the "
                f"epilogue of {w} promises {least} to {most}; write '>> channel' in it for "
                "any amount"
            )
        whole[-1] = least
        whole[-1, : w.out_channels] = shifts
        shifts = whole[-1] - least
    if bias is not None:
        if geo.bias_lift and not geo.bias_lowest <= bias.min() <= bias.max() < SUMS:
            raise WorkloadError(
                f"the bias ranges from {bias.min()} to {bias.max()}, but the schedules are "
                f"only exact from {geo.bias_lowest} to {SUMS - 1}; write 'bias 32' in the "
                "epilogue for any bias"
            )
        whole[0, : w.out_channels] = bias
        whole[0] += geo.bias_lift << shifts if len(kinds) > 1 else geo.bias_lift
        whole[0] -= geo.beside_left
    return np.repeat(whole.reshape(-1, 1, m.block_out), m.batch, axis=1)


def unpacked_vectors(w: Workload, m: Machine, geo: Geometry, packed: NDArray[np.int64]) -> Tensors:
    """Convert values per channel from the machine's blocks; the inverse of `packed_vectors`.

    Args:
        w: the workload.
        m: the machine.
        geo: geometry of the workload.
        packed: result of `packed_vectors`.

    Returns:
        `bias` and `shr_channel` of shape (o,), as far as the epilogue has these steps.
    """
    kinds = channel_vectors(w)
    channels = geo.groups * geo.co * m.block_out
    rows = packed.reshape(-1, m.batch, m.block_out)[:, 0].reshape(len(kinds), channels)
    vectors = {kind: rows[i, : w.out_channels] for i, kind in enumerate(kinds)}
    if "bias" in vectors:
        shifts = vectors.get("shr_channel")
        above = 0 if shifts is None else shifts - channel_shift(w).shift_range[0]
        vectors["bias"] = vectors["bias"] - (geo.bias_lift << above) + geo.beside_left
    return vectors


def channel_shift(workload: Workload) -> EpilogueOp:
    """Return the epilogue step that shifts every channel by an amount of its own."""
    return next(op for op in workload.epilogue if op.kind == "shr_channel")
