"""Memory layouts of activations, which are stored in blocks of channels.

An element of memory holds one block of channels for as many rows as the machine processes at once.
A tensor that one layer stores can be loaded by the next layer if both use the same block size and
the same `Packing`. Otherwise, the host unpacks and repacks the tensor in between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.layer import Layer
from tilewright.targets.vta.board.program import PortForm
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.spec import Machine

Values = NDArray[np.int8]


@dataclass(frozen=True)
class Packing:
    """Memory layout of a packed tensor.

    The elements are ordered as (batches, blocks, height, width) for an `image` or a `column` (one
    batch, one pixel wide), and as (row blocks, channel blocks, 1, 1) for `weights`. Each element
    holds `block` channels of several rows.

    Attributes:
        form: kind of the layout.
        batches: number of batches, or of row blocks.
        blocks: number of channel blocks.
        height: height of the image.
        width: width of the image.
        block: number of channels per block.
    """

    form: PortForm
    batches: int
    blocks: int
    height: int
    width: int
    block: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.batches * self.blocks * self.height * self.width

    @property
    def place(self) -> tuple[int, ...]:
        """Key for comparing layouts: layouts that store a tensor identically have equal keys.

        A `column` and an `image` can have equal keys, because they store rows of channels
        identically.
        """
        weights = int(self.form == "weights")
        return weights, self.batches, self.blocks, self.height * self.width, self.block

    def element_bytes(self, m: Machine) -> int:
        """Return the size of one element in bytes."""
        return self.block * (m.block_out if self.form == "weights" else m.batch)

    def bytes(self, m: Machine) -> int:
        """Return the size of the packed tensor in bytes."""
        return self.elements * self.element_bytes(m)


def data_packing(layer: Layer, shape: tuple[int, ...], geo: Geometry, m: Machine) -> Packing:
    """Return the memory layout of a layer's input: an image, or rows of channels.

    If a dense layer reads an image, all pixels of the image together are its input channels.

    Args:
        layer: the layer.
        shape: shape of the input tensor.
        geo: geometry of the layer's workload.
        m: the machine.
    """
    w = layer.workload
    packing = Packing("image", geo.batches, geo.inp_blocks, geo.h, geo.w, m.block_in)
    if layer.unfold is not None or shape == (w.batch, w.in_channels, w.height, w.width):
        return packing
    if w.operator == "dense" and not _is_rows(shape, w.batch, w.in_channels):
        h, wide = shape[2:]
        return replace(packing, blocks=packing.blocks // (h * wide), height=h, width=wide)
    return _rows(packing)


def output_packing(layer: Layer, shape: tuple[int, ...], geo: Geometry, m: Machine) -> Packing:
    """Return the memory layout of a layer's output: an image, or rows of channels.

    Args:
        layer: the layer.
        shape: shape of the output tensor.
        geo: geometry of the layer's workload.
        m: the machine.
    """
    w = layer.workload
    packing = Packing("image", geo.batches, geo.out_blocks, *geo.output, m.block_out)
    if shape == (w.batch, w.out_channels, w.out_height, w.out_width):
        return packing
    return _rows(packing)


def residual_packing(output: Packing, geo: Geometry) -> Packing:
    """Return the memory layout of the int8 tensor that is added to a layer's accumulators.

    The layout is that of the output, except that the height and width are those before a fused
    average.

    Args:
        output: memory layout of the layer's output.
        geo: geometry of the layer.
    """
    return replace(output, height=geo.oh, width=geo.ow) if geo.average_taps else output


def weights_packing(geo: Geometry, m: Machine) -> Packing:
    """Return the memory layout of an activation that a dense layer reads as its weights."""
    return Packing("weights", geo.co, geo.ci, 1, 1, m.block_in)


def shortcut_packing(geo: Geometry, m: Machine) -> Packing:
    """Return the memory layout of the image that a layer's shortcut reads."""
    return Packing("image", geo.batches, geo.beside_ci, geo.beside_h, geo.beside_w, m.block_in)


def _is_rows(shape: tuple[int, ...], rows: int, channels: int) -> bool:
    return shape[-1] == channels and prod(shape[:-1]) == rows


def _rows(packing: Packing) -> Packing:
    """Return the layout in which the pixels of an image are stored as rows of channels.

    Several images with one pixel each are already stored as rows, so their layout is returned
    unchanged.

    Args:
        packing: layout of the image.
    """
    if packing.batches > 1:
        return packing
    return replace(packing, form="column", height=packing.height * packing.width, width=1)


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return the shape (n, c, h, w) of a tensor when it is treated as images.

    If the tensor has no height and width, each row of channels becomes an image of one pixel.

    Args:
        shape: shape of the tensor. The last axis holds the channels if there are not four axes.
    """
    if len(shape) == 4:
        n, c, h, w = shape
        return n, c, h, w
    return prod(shape[:-1]), shape[-1], 1, 1


def pack(packing: Packing, m: Machine, tensor: Values) -> Values:
    """Convert a tensor to its memory layout.

    Args:
        packing: the memory layout.
        m: the machine.
        tensor: int8 array of shape (n, c, h, w) for an image; otherwise of any shape whose last
            axis holds the channels.

    Returns:
        int8 array of shape (bytes,).
    """
    p = packing
    if p.form == "weights":
        rows = _padded_rows(tensor, p.batches * m.block_out, p.blocks * p.block)
        blocks = rows.reshape(p.batches, m.block_out, p.blocks, p.block)
        return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3)).reshape(-1)
    if p.form == "column":
        rows = _padded_rows(tensor, p.height * m.batch, p.blocks * p.block)
        pixels = rows.reshape(p.height, m.batch, p.blocks, p.block)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1, 3)).reshape(-1)
    n, c, h, w = image_shape(tensor.shape)
    packed = np.zeros((p.batches * m.batch, p.blocks * p.block, h, w), np.int8)
    packed[:n, :c] = tensor.reshape(n, c, h, w)
    blocks = packed.reshape(p.batches, m.batch, p.blocks, p.block, h, w)
    return np.ascontiguousarray(blocks.transpose(0, 2, 4, 5, 1, 3)).reshape(-1)


def unpack(packing: Packing, m: Machine, raw: Values, shape: tuple[int, ...]) -> Values:
    """Convert a tensor from its memory layout. This is the inverse of `pack`.

    Args:
        packing: the memory layout.
        m: the machine.
        raw: int8 array of shape (bytes,).
        shape: shape of the result.
    """
    p = packing
    if p.form == "column":
        pixels = raw.reshape(p.blocks, p.height, m.batch, p.block)
        rows = pixels.transpose(1, 2, 0, 3).reshape(p.height * m.batch, -1)
        n = prod(shape[:-1])
        return np.ascontiguousarray(rows[:n, : shape[-1]]).reshape(shape)
    n, c, h, w = image_shape(shape)
    blocks = raw.reshape(p.batches, p.blocks, h, w, m.batch, p.block)
    image = blocks.transpose(0, 4, 1, 5, 2, 3).reshape(p.batches * m.batch, -1, h, w)
    return np.ascontiguousarray(image[:n, :c]).reshape(shape)


def _padded_rows(tensor: Values, rows: int, channels: int) -> Values:
    """Reshape a tensor to a matrix, and pad the matrix with zeros to the given size.

    Args:
        tensor: int8 array whose last axis holds the channels.
        rows: number of rows of the result.
        channels: number of columns of the result.
    """
    flat = tensor.reshape(-1, tensor.shape[-1])
    padded = np.zeros((rows, channels), np.int8)
    padded[: len(flat), : flat.shape[1]] = flat
    return padded
