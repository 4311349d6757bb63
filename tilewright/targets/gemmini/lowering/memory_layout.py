"""Memory layout of a single workload's tensors: packing of operands and reading of the output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini.lowering.geometry import (
    MEMORY_BASE,
    PAGE_BYTES,
    BlockGeometry,
    round_up,
)
from tilewright.targets.gemmini.spec import DIM
from tilewright.targets.workload import Workload

Array = NDArray[Any]


def random_tensors(workload: Workload, seed: int) -> dict[str, Array]:
    """Draw random operands of a workload.

    Args:
        workload: the workload.
        seed: seed of the random generator.

    Returns:
        `data` (n, c, h, w) and `weight` (o, c / groups, kh, kw), int8, over the whole range. If the
        epilogue reads them, also `bias` (o,), int32, over 20 bits, and `residual` (n, o, oh, ow),
        int8.
    """
    w, rng = workload, np.random.default_rng(seed)

    def draw(*shape: int) -> Array:
        return rng.integers(-128, 128, shape, np.int8)

    tensors: dict[str, Array] = {
        "data": draw(w.batch, w.in_channels, w.height, w.width),
        "weight": draw(w.out_channels, w.in_channels // w.groups, w.kernel_h, w.kernel_w),
    }
    kinds = {step.kind for step in w.epilogue}
    if "bias" in kinds:
        tensors["bias"] = rng.integers(-(1 << 19), 1 << 19, w.out_channels, np.int32)
    if kinds & {"residual", "weighted"}:
        tensors["residual"] = draw(w.batch, w.out_channels, w.out_height, w.out_width)
    return tensors


def pixel_rows(image: Array, stride: int) -> NDArray[np.int8]:
    """Convert an image to its memory layout, one row per pixel.

    Args:
        image: int8 array of shape (n, c, h, w).
        stride: bytes per pixel.

    Returns:
        Int8 array of shape (pixels, stride), with zeros after the channels.
    """
    rows = image.transpose(0, 2, 3, 1).reshape(-1, image.shape[1])
    padded_rows = np.zeros((len(rows), stride), np.int8)
    padded_rows[:, : rows.shape[1]] = rows
    return padded_rows


def pack_weight(g: BlockGeometry, weight: Array) -> NDArray[np.int8]:
    """Convert weights to their memory layout.

    Args:
        g: geometry of the workload.
        weight: int8 weights, shape (o, c / groups, kh, kw).

    Returns:
        Int8 array of shape (groups, kh, kw, c, o), with merged groups. Weights between different
        groups that share a block are zero.
    """
    per_out = g.out_channels // g.merged
    o, per_in, kh, kw = weight.shape
    packed = np.zeros((g.groups, kh, kw, round_up(g.in_channels), g.weight_stride), np.int8)
    for first in range(0, o, per_out):
        own = first // per_out
        group, place = divmod(own, g.merged)
        rows = slice(place * per_in, (place + 1) * per_in)
        columns = slice(place * per_out, (place + 1) * per_out)
        packed[group, :, :, rows, columns] = weight[first : first + per_out].transpose(2, 3, 1, 0)
    return packed


def pack_bias(g: BlockGeometry, bias: Array | None) -> NDArray[np.int32]:
    """Return the initial values of the accumulators: the bias plus the epilogue's constant.

    Args:
        g: geometry of the workload.
        bias: biases, shape (o,); None if there are none.

    Returns:
        Int32 array of shape (groups, columns).
    """
    packed = np.full((g.groups, g.weight_stride), g.epilogue.constant, np.int32)
    if bias is not None:
        for group in range(g.groups):
            values = bias[group * g.out_channels :][: g.out_channels_of(group)]
            packed[group, : len(values)] += values.astype(np.int32)
    return packed


def identity_blocks(g: BlockGeometry) -> NDArray[np.int8]:
    """Return the scaled identity matrices that are multiplied with a residual.

    Their rows have the same distance in memory as rows of weights.

    Args:
        g: geometry of the workload.

    Returns:
        Int8 array of shape (n, 16, columns), with one matrix per factor of `g.identities`.
    """
    packed = np.zeros((len(g.identities), DIM, g.weight_stride), np.int8)
    packed[:, :, :DIM] = np.eye(DIM, dtype=np.int8) * np.array(g.identities, np.int8)[:, None, None]
    return packed


def constants(g: BlockGeometry, weight: Array, bias: Array | None) -> dict[str, Array]:
    """Convert weights and biases to their memory layout, and add the identity matrices, if any.

    Args:
        g: geometry of the workload.
        weight: weights, shape (o, c / groups, kh, kw).
        bias: biases, shape (o,); None if there are none.

    Returns:
        Packed tensors by role: `weight`, and `bias` and `identity` if the epilogue needs them.
    """
    arrays: dict[str, Array] = {"weight": pack_weight(g, weight)}
    if g.epilogue.loads_sums:
        arrays["bias"] = pack_bias(g, bias)
    if g.epilogue.residual:
        arrays["identity"] = identity_blocks(g)
    return arrays


def unpack_weight(
    g: BlockGeometry, workload: Workload, image: NDArray[np.uint8]
) -> NDArray[np.int8]:
    """Read weights from a memory image; the inverse of `pack_weight`.

    Args:
        g: geometry of the workload, which contains the address of the weights.
        workload: the workload.
        image: memory image, uint8 array of shape (bytes,).

    Returns:
        Int8 weights, shape (o, c / groups, kh, kw).
    """
    w, rows = workload, round_up(g.in_channels)
    at = g.addresses["weight"] - MEMORY_BASE
    shape = (g.groups, g.kernel_h, g.kernel_w, rows, g.weight_stride)
    packed = image[at : at + int(np.prod(shape))].view(np.int8).reshape(shape)
    per_in, per_out = w.in_channels // w.groups, w.out_channels // w.groups
    weights = np.zeros((w.out_channels, per_in, g.kernel_h, g.kernel_w), np.int8)
    for group in range(w.groups):
        block, place = divmod(group, g.merged)
        own = packed[
            block, :, :, place * per_in : (place + 1) * per_in,
            place * per_out : (place + 1) * per_out,
        ]  # fmt: skip
        weights[group * per_out : (group + 1) * per_out] = own.transpose(3, 2, 0, 1)
    return weights


def unpack_bias(g: BlockGeometry, image: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Read the biases from a memory image; the inverse of `pack_bias`.

    The constant that `pack_bias` added is subtracted.

    Args:
        g: geometry of the workload, which contains the address of the biases.
        image: memory image, uint8 array of shape (bytes,).

    Returns:
        Int32 biases, shape (o,).
    """
    at = g.addresses["bias"] - MEMORY_BASE
    raw = image[at : at + 4 * g.groups * g.weight_stride].view(np.int32)
    rows = raw.reshape(g.groups, g.weight_stride)[:, : g.out_channels].reshape(-1)
    return rows[: g.all_out_channels] - np.int32(g.epilogue.constant)


def memory_image(g: BlockGeometry, tensors: Mapping[str, Array]) -> NDArray[np.uint8]:
    """Build a memory image with all tensors of a workload at their addresses.

    Args:
        g: geometry of the workload.
        tensors: operands by name.

    Returns:
        Uint8 array of shape (bytes,), whose first byte is at `MEMORY_BASE`.
    """
    parts = constants(g, tensors["weight"], tensors.get("bias"))
    parts["data"] = pixel_rows(tensors["data"], g.data_stride)
    if g.epilogue.residual:
        parts["residual"] = pixel_rows(tensors["residual"], g.residual_stride)
    ends = [g.addresses[role] + size for role, size in g.sizes().items()]
    image = np.zeros(round_up(max(ends) - MEMORY_BASE, PAGE_BYTES), np.uint8)
    for role, values in parts.items():
        write_array(image, g.addresses[role] - MEMORY_BASE, values)
    return image


def write_array(image: NDArray[np.uint8], at: int, values: Array) -> None:
    """Copy the bytes of an array into a memory image.

    Args:
        image: memory image, shape (bytes,), which is modified.
        at: index of the first byte to write.
        values: the array, of any shape and type.
    """
    raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    image[at : at + len(raw)] = raw


def read_output(g: BlockGeometry, workload: Workload, image: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Read the output of a program from a memory image.

    Args:
        g: geometry of the workload, which contains the address of the output.
        workload: the workload.
        image: memory image, shape (bytes,).

    Returns:
        Output, shape (n, o, oh, ow).
    """
    w, at = workload, g.addresses["output"] - MEMORY_BASE
    rows = image[at : at + g.pixels * g.output_stride].view(np.int8)
    pixels = rows.reshape(w.batch, w.out_height, w.out_width, g.output_stride)
    return pixels[..., : w.out_channels].transpose(0, 3, 1, 2)
