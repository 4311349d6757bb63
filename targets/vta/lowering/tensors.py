"""Tensors in and out of VTA's DRAM, packed into blocks; the integer reference to compare with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targets.vta.lowering.geometry import PAGE_BYTES, Geometry
from targets.vta.spec import Machine
from targets.workload import Workload

Tensors = dict[str, NDArray[np.int64]]
"""`data` (n, c, h, w), `weight` (o, c/groups, kh, kw); maybe `bias` (o,), `add` (n, o, oh, ow)."""


def random_tensors(workload: Workload, machine: Machine, seed: int) -> Tensors:
    """Integers in the shapes of `Tensors`: data and weights over the whole range of the machine's
    types, bias and residual over that of 20 bits."""
    w, rng = workload, np.random.default_rng(seed)

    def draw(bits: int, *shape: int) -> NDArray[np.int64]:
        return rng.integers(-(1 << bits - 1), 1 << bits - 1, size=shape, dtype=np.int64)

    tensors = {
        "data": draw(machine.inp_bits, w.batch, w.in_channels, w.height, w.width),
        "weight": draw(
            machine.wgt_bits, w.out_channels, w.in_channels // w.groups, w.kernel_h, w.kernel_w
        ),
    }
    kinds = {op.kind for op in w.epilogue}
    if "bias" in kinds:
        tensors["bias"] = draw(20, w.out_channels)
    if "add" in kinds:
        tensors["add"] = draw(20, w.batch, w.out_channels, w.out_height, w.out_width)
    return tensors


def reference(workload: Workload, machine: Machine, tensors: Tensors) -> NDArray[np.int64]:
    """What the accelerator must compute, by plain integer arithmetic; shape (n, o, oh, ow).

    Sums wrap modulo 2^acc_bits, the result is truncated to the input's width, as STORE does.
    """
    w = workload
    data = np.pad(
        tensors["data"],
        ((0, 0), (0, 0), (w.pad_top, w.pad_bottom), (w.pad_left, w.pad_right)),
    )
    per_in, per_out = w.in_channels // w.groups, w.out_channels // w.groups
    total = np.zeros((w.batch, w.out_channels, w.out_height, w.out_width), np.int64)
    rows = slice(None, (w.out_height - 1) * w.stride_h + 1, w.stride_h)
    cols = slice(None, (w.out_width - 1) * w.stride_w + 1, w.stride_w)
    for g in range(w.groups):
        weight = tensors["weight"][g * per_out : (g + 1) * per_out].astype(np.float64)
        image = data[:, g * per_in : (g + 1) * per_in]
        for i in range(w.kernel_h):
            for j in range(w.kernel_w):
                window = image[:, :, i * w.dilation_h :, j * w.dilation_w :][:, :, rows, cols]
                # float64 sums of these products are exact: far below 2^53
                part = np.einsum("oc,nchw->nohw", weight[:, :, i, j], window, optimize=True)
                total[:, g * per_out : (g + 1) * per_out] += part.astype(np.int64)
    for op in w.epilogue:
        if op.kind == "bias":
            total += tensors["bias"][None, :, None, None]
        elif op.kind == "add":
            total += tensors["add"]
        elif op.kind == "shr":
            total = _wrap(total, machine.acc_bits) >> op.value
        elif op.kind == "shl":
            total = total << op.value
        elif op.kind == "min":
            total = np.minimum(_wrap(total, machine.acc_bits), op.value)
        else:
            total = np.maximum(_wrap(total, machine.acc_bits), op.value)
        total = _wrap(total, machine.acc_bits)
    return _wrap(total, machine.inp_bits)


def pack_image(
    workload: Workload, machine: Machine, geo: Geometry, tensors: Tensors, uops: NDArray[np.uint64]
) -> NDArray[np.uint8]:
    """The DRAM image from byte address `PAGE_BYTES` on, shape (bytes,): tensors, `uops`
    (micro-ops,), room for the output."""
    w, m = workload, machine
    image = np.zeros(geo.insn_bytes_at - PAGE_BYTES, np.uint8)

    def put(base: int, element_bytes: int, values: NDArray[np.int64], bits: int) -> None:
        raw = np.ascontiguousarray(values.astype(f"<i{bits // 8}")).view(np.uint8).ravel()
        at = base * element_bytes - PAGE_BYTES
        image[at : at + raw.size] = raw

    data = _image(tensors["data"], m, geo)
    data = _blocked(data, geo.batches * m.batch, w.groups, geo.ci * m.block_in)
    data = data.reshape(geo.batches, m.batch, w.groups * geo.ci, m.block_in, geo.h, geo.w)
    put(geo.inp_base, m.inp_bytes, data.transpose(0, 2, 4, 5, 1, 3), m.inp_bits)

    per_out = w.out_channels // w.groups
    weight = np.zeros(
        (w.groups, geo.co * m.block_out, geo.ci * m.block_in, w.kernel_h, w.kernel_w), np.int64
    )
    weight[:, :per_out, : w.in_channels // w.groups] = tensors["weight"].reshape(
        w.groups, per_out, w.in_channels // w.groups, w.kernel_h, w.kernel_w
    )
    weight = weight.reshape(
        w.groups * geo.co, m.block_out, geo.ci, m.block_in, w.kernel_h, w.kernel_w
    )
    put(geo.wgt_base, m.wgt_bytes, weight.transpose(0, 2, 4, 5, 1, 3), m.wgt_bits)

    if "bias" in tensors:
        bias = np.zeros((w.groups, geo.co * m.block_out), np.int64)
        bias[:, :per_out] = tensors["bias"].reshape(w.groups, per_out)
        rows = np.repeat(bias.reshape(-1, 1, m.block_out), m.batch, axis=1)
        put(geo.bias_base, m.acc_bytes, rows, m.acc_bits)
    if "add" in tensors:
        add = _image(tensors["add"], m, geo)
        add = _blocked(add, geo.batches * m.batch, w.groups, geo.co * m.block_out)
        add = add.reshape(geo.batches, m.batch, w.groups * geo.co, m.block_out, geo.oh, geo.ow)
        put(geo.add_base, m.acc_bytes, add.transpose(0, 2, 4, 5, 1, 3), m.acc_bits)
    words = uops.astype(f"<u{m.uop_bytes}").view(np.uint8)
    at = geo.uop_base * m.uop_bytes - PAGE_BYTES
    image[at : at + words.size] = words
    return image


def unpack_output(
    workload: Workload, machine: Machine, geo: Geometry, image: NDArray[np.uint8]
) -> NDArray[np.int64]:
    """The output tensor (n, o, oh, ow) out of a DRAM image that starts at `PAGE_BYTES`."""
    w, m = workload, machine
    at = geo.out_base * m.out_bytes - PAGE_BYTES
    raw = image[at : at + geo.out_bytes].view(f"<i{m.inp_bits // 8}")
    blocks = raw.reshape(geo.batches, w.groups, geo.co, geo.oh, geo.ow, m.batch, m.block_out)
    # Of a column, pixels belong to the batch; nothing else has both.
    order = (0, 3, 4, 5, 1, 2, 6) if geo.column else (0, 5, 1, 2, 6, 3, 4)
    whole = blocks.transpose(order).reshape(
        -1, w.groups, geo.co * m.block_out, w.out_height, w.out_width
    )
    kept = whole[: w.batch, :, : w.out_channels // w.groups]
    return kept.reshape(w.batch, w.out_channels, w.out_height, w.out_width).astype(np.int64)


def _image(tensor: NDArray[np.int64], m: Machine, geo: Geometry) -> NDArray[np.int64]:
    """A tensor (n, c, h, w) as it lies in memory: the rows of a column as the pixels of an image,
    (batch, c, pixels, 1)."""
    if not geo.column:
        return tensor
    rows = np.zeros((geo.h * m.batch, tensor.shape[1]), np.int64)
    rows[: len(tensor)] = tensor[:, :, 0, 0]
    return rows.reshape(geo.h, m.batch, -1).transpose(1, 2, 0)[..., None]


def _blocked(
    tensor: NDArray[np.int64], batch: int, groups: int, channels: int
) -> NDArray[np.int64]:
    """Zero-pad the batch and each group's channels up to whole blocks."""
    n, c, h, w = tensor.shape
    out = np.zeros((batch, groups, channels, h, w), np.int64)
    out[:n, :, : c // groups] = tensor.reshape(n, groups, c // groups, h, w)
    return out.reshape(batch, groups * channels, h, w)


def _wrap(values: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """Two's complement wrap-around to `bits`."""
    half = 1 << (bits - 1)
    return (values + half & (1 << bits) - 1) - half
