"""Lays activations out in memory: blocks of channels, for as many rows as the machine takes at
once.

What one layer stores is what the next loads, if both have blocks of one size and the same
`Packing`. Else the host unpacks and packs in between.
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
    """Elements of a packed tensor: (batches, blocks, height, width) of an `image` or a `column`
    (one batch, one pixel wide), (row blocks, channel blocks, 1, 1) of `weights`. A block has
    `block` channels."""

    form: PortForm
    batches: int
    blocks: int
    height: int
    width: int
    block: int

    @property
    def elements(self) -> int:
        """How many there are."""
        return self.batches * self.blocks * self.height * self.width

    @property
    def place(self) -> tuple[int, ...]:
        """What decides where a value of a given tensor lies. Rows of channels that fit one element
        lie alike in a column and in an image."""
        weights = int(self.form == "weights")
        return weights, self.batches, self.blocks, self.height * self.width, self.block

    def element_bytes(self, m: Machine) -> int:
        """Of one element."""
        return self.block * (m.block_out if self.form == "weights" else m.batch)

    def bytes(self, m: Machine) -> int:
        """Of the packed tensor."""
        return self.elements * self.element_bytes(m)


def data_packing(layer: Layer, shape: tuple[int, ...], geo: Geometry, m: Machine) -> Packing:
    """How a layer's input of that shape lies in memory: an image, or rows of channels, or an image
    of which a dense layer takes all pixels as its channels."""
    w = layer.workload
    packing = Packing("image", geo.batches, geo.inp_blocks, geo.h, geo.w, m.block_in)
    if layer.unfold is not None or shape == (w.batch, w.in_channels, w.height, w.width):
        return packing
    if w.operator == "dense" and not _is_rows(shape, w.batch, w.in_channels):
        h, wide = shape[2:]
        return replace(packing, blocks=packing.blocks // (h * wide), height=h, width=wide)
    return _rows(packing)


def output_packing(layer: Layer, shape: tuple[int, ...], geo: Geometry, m: Machine) -> Packing:
    """How a layer's output of that shape lies in memory: an image, or rows of channels."""
    w = layer.workload
    packing = Packing("image", geo.batches, geo.out_blocks, *geo.output, m.block_out)
    if shape == (w.batch, w.out_channels, w.out_height, w.out_width):
        return packing
    return _rows(packing)


def residual_packing(output: Packing, geo: Geometry) -> Packing:
    """How what is added to a layer's sums lies in memory: as its output, but for an average of
    it."""
    return replace(output, height=geo.oh, width=geo.ow) if geo.average_taps else output


def weights_packing(geo: Geometry, m: Machine) -> Packing:
    """Of an activation that a dense layer takes as its weights."""
    return Packing("weights", geo.co, geo.ci, 1, 1, m.block_in)


def shortcut_packing(geo: Geometry, m: Machine) -> Packing:
    """Of the image that a layer's shortcut reads."""
    return Packing("image", geo.batches, geo.beside_ci, geo.beside_h, geo.beside_w, m.block_in)


def _is_rows(shape: tuple[int, ...], rows: int, channels: int) -> bool:
    return shape[-1] == channels and prod(shape[:-1]) == rows


def _rows(packing: Packing) -> Packing:
    """Rows as the pixels of one image; rows that only fill batches stay an image of one pixel."""
    if packing.batches > 1:
        return packing
    return replace(packing, form="column", height=packing.height * packing.width, width=1)


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """A tensor's shape as that of an image: rows of channels are images of one pixel."""
    if len(shape) == 4:
        n, c, h, w = shape
        return n, c, h, w
    return prod(shape[:-1]), shape[-1], 1, 1


def pack(packing: Packing, m: Machine, tensor: Values) -> Values:
    """The values of a tensor as they lie in memory, flat. Its shape is (n, c, h, w) for an image,
    else any whose last axis are channels."""
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
    """The tensor of that shape out of its values in memory, flat; the inverse of `pack`."""
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
    """(…, c) → (rows, channels), zeros behind and beside it."""
    flat = tensor.reshape(-1, tensor.shape[-1])
    padded = np.zeros((rows, channels), np.int8)
    padded[: len(flat), : flat.shape[1]] = flat
    return padded
