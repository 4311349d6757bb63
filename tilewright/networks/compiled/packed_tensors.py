"""Track the memory layouts of tensors while a network is rewritten.

A tensor has the model's layout, or it is packed: its channels are stored in blocks, in float32 or
bfloat16. Packing and unpacking are computed once, when an operator first needs the other layout. In
contrast, a tensor is converted from bfloat16 to float32 for each reader separately, because TVM
fuses this conversion with the reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import GenericConst

from tilewright.core.tvm_types import BlockBuilder, Expression, RelaxExpr, RelaxVar, Tensor
from tilewright.networks.compiled.channel_rearrangements import (
    ChannelShuffle,
    PixelsBeside,
    put_beside,
    shuffle_function,
)
from tilewright.networks.compiled.image_operators import (
    LocalResponse,
    PoolWindow,
    interpolate_along,
    linear_taps,
    local_response_norm,
    pool,
)
from tilewright.networks.compiled.vector_math import bfloat16_to_float32, float32_to_bfloat16
from tilewright.networks.relax.bindings import shape_of
from tilewright.networks.relax.nan_propagation import NAN_SAFE

OPAQUE = 8
"""TVM's code for the pattern of functions that are not fused with other functions."""
FLOAT_BLOCK = 16
"""Maximum number of channels per block of a float32 tensor: one vector of 16 values. Blocks of
bfloat16 tensors have up to two vectors."""


@dataclass
class PackedTensor:
    """The layouts in which a tensor is available.

    Attributes:
        shape: shape of the tensor in the model.
        plain: expression of the tensor in the model's layout, or None.
        packed: expressions of the packed float32 tensor (n, c / block, h, w, block), by block size.
        bfloat16: expressions of the packed bfloat16 tensor, stored as uint16, by block size.
    """

    shape: tuple[int, ...] | None
    plain: RelaxExpr | None = None
    packed: dict[int, RelaxExpr] = field(default_factory=dict)
    bfloat16: dict[int, RelaxExpr] = field(default_factory=dict)

    @property
    def block(self) -> int:
        """Block size of one of the available packed layouts, or 0 if there is none."""
        return next(iter((*self.packed, *self.bfloat16)), 0)


class PackedTensors:
    """Tensors of a network that is being rewritten, with the layouts in which they are available.

    Tensors are looked up by their variables in the model's function. A layout that a reader needs
    is added on first use.

    Args:
        builder: builder of the new function, to which conversions are added.
    """

    def __init__(self, builder: BlockBuilder) -> None:
        self._builder = builder
        self._known: dict[RelaxVar, PackedTensor] = {}
        self._source: dict[RelaxExpr, RelaxExpr] = {}  # tensor of which another is a reshaped view

    def emit(self, expression: RelaxExpr) -> RelaxExpr:
        """Bind an expression to a new variable and return the variable."""
        return self._builder.emit(expression)

    def reshape(self, expression: RelaxExpr, shape: Sequence[int]) -> RelaxExpr:
        """Return a tensor in another shape.

        A tensor that is itself a reshaped tensor is replaced by its source. TVM would otherwise
        fuse both reshapes and copy the data.

        Args:
            expression: the tensor.
            shape: the new shape.
        """
        source = self._source.get(expression, expression)
        if shape_of(source) == tuple(shape):
            return source
        result = self.emit(relax.op.reshape(source, tuple(shape)))
        self._source[result] = source
        return result

    def record(
        self,
        var: RelaxVar,
        *,
        plain: RelaxExpr | None = None,
        packed: RelaxExpr | None = None,
        block: int = 0,
    ) -> None:
        """Record the expressions of the new function that compute a variable of the model.

        Args:
            var: the variable of the model.
            plain: expression in the model's layout, or None.
            packed: packed float32 expression, or None.
            block: channels per block of the packed expression, or 0 if there is none.
        """
        self._known[var] = PackedTensor(shape_of(var), plain, {block: packed} if block else {})

    def put_bfloat16(self, var: RelaxVar, stored: RelaxExpr, block: int) -> None:
        """Record the expression of the new function that computes a model variable in bfloat16.

        Args:
            var: the variable of the model.
            stored: packed expression of bfloat16, stored as uint16.
            block: channels per block of the expression.
        """
        self._known[var] = PackedTensor(shape_of(var), bfloat16={block: stored})

    def stored_block(self, var: RelaxVar, block: int) -> int:
        """Return the block size in which a variable is stored in bfloat16.

        Args:
            var: the variable.
            block: a number of channels. Only block sizes that are a multiple of it are considered.

        Returns:
            The block size, or 0 if the variable is not stored in bfloat16 with such a block size.
        """
        known = self._known[var].bfloat16 if var in self._known else {}
        return next((size for size in known if size % block == 0), 0)

    def bfloat16(self, var: RelaxVar, block: int) -> RelaxExpr:
        """Return a tensor in bfloat16, converting it if it is not available in this layout.

        Args:
            var: variable of the tensor.
            block: channels per block.

        Returns:
            Expression of shape (n, c / block, h, w, block), stored as uint16.
        """
        known = self._value(var)
        if block not in known.bfloat16:
            if known.bfloat16:
                stored = next(iter(known.bfloat16.values()))
                known.bfloat16[block] = self._in_blocks(stored, block)
            else:
                known.bfloat16[block] = self.narrow(self.as_packed(var, block))
        return known.bfloat16[block]

    def narrow(self, expression: RelaxExpr) -> RelaxExpr:
        """Round a float32 tensor to bfloat16, stored as uint16."""
        return self._builder.emit_te(_narrow_tensor, expression, primfunc_name_hint="narrow")

    def _in_blocks(self, packed: RelaxExpr, block: int) -> RelaxExpr:
        """Return a packed tensor with another block size.

        Args:
            packed: tensor of shape (n, c / b, h, w, b).
            block: the new number of channels per block.
        """
        if (shape_of(packed) or ())[4] == block:
            return packed
        return self._builder.emit_te(_in_blocks, packed, block, primfunc_name_hint="in_blocks")

    def copied_rows(self, rows: RelaxExpr, places: RelaxExpr) -> RelaxExpr:
        """Gather rows of a matrix.

        Args:
            rows: tensor of shape (n, length).
            places: row indices of shape (m,). A negative index gives a row of zeros.

        Returns:
            Tensor of shape (m, length).
        """
        # Opaque, so that a following reshape is not fused and costs nothing.
        whole = {"op_pattern": OPAQUE}
        return self._builder.emit_te(
            _copy_rows, rows, places, primfunc_name_hint="copy_rows", primfunc_attrs=whole
        )

    def pool(self, var: RelaxVar, block: int, window: PoolWindow, *, bfloat16: bool) -> RelaxExpr:
        """Apply a pool to a tensor, and return the packed result.

        Args:
            var: variable of the tensor.
            block: channels per block, both of the input and of the result.
            window: parameters of the pool.
            bfloat16: store the result in bfloat16.
        """
        stored = self._known[var].bfloat16
        image = self.bfloat16(var, block) if stored else self.as_packed(var, block)
        name = f"{'avg' if window.mean else 'max'}_pool2d"
        # If the operators before were fused, they would be computed again for every window.
        whole = {"op_pattern": OPAQUE, NAN_SAFE: 1}
        return self._builder.emit_te(
            lambda image: pool(image, window, bfloat16), image, primfunc_name_hint=name,
            primfunc_attrs=whole,
        )  # fmt: skip

    def channels_to_pixels(
        self, rearrangement: PixelsBeside, *, bfloat16: bool
    ) -> tuple[RelaxExpr, int] | None:
        """Rearrange channels of a packed image to pixels.

        Args:
            rearrangement: the rearrangement.
            bfloat16: store the result in bfloat16.

        Returns:
            The result and its block size. None if the image is not packed, or if a block contains
            channels of several result pixels.
        """
        known = self._known[rearrangement.source]
        stored = bool(known.bfloat16) and bfloat16
        block = known.block if stored else min(known.block, FLOAT_BLOCK)
        if not block or rearrangement.channels % block:
            return None
        form = self.bfloat16 if stored else self.as_packed
        image = form(rearrangement.source, block)
        result = self._builder.emit_te(
            put_beside(image, rearrangement), image, primfunc_name_hint="pixels_beside"
        )
        return (self.narrow(result) if bfloat16 and not stored else result), block

    def shuffle_channels(self, shuffle: ChannelShuffle) -> tuple[RelaxExpr, int] | None:
        """Shuffle the channels of a packed image.

        Args:
            shuffle: the shuffle.

        Returns:
            The result and its block size. None if the image is not packed, or packed in blocks of
            fewer than four channels.
        """
        block = min(self.block_of(shuffle.source), FLOAT_BLOCK)
        if block < 4:
            return None
        function = shuffle_function(shuffle, block).with_attr("op_pattern", OPAQUE)
        name = self._builder.add_func(function.without_attr("global_symbol"), "shuffled")
        image = self.as_packed(shuffle.source, block)
        result = self.emit(
            relax.call_tir(name, [image], relax.TensorType(shape_of(image), "float32"))
        )
        return result, block

    def normalise(self, response: LocalResponse) -> RelaxExpr:
        """Compute a local response normalisation in the model's layout, (n, c, h, w).

        Args:
            response: the source image and the parameters of the normalisation.
        """
        return self._builder.emit_te(
            lambda image: local_response_norm(image, response), self.as_plain(response.source),
            primfunc_name_hint="local_response", primfunc_attrs={"op_pattern": OPAQUE},
        )  # fmt: skip

    def resize(
        self, var: RelaxVar, block: int, size: Sequence[int], mode: str
    ) -> tuple[RelaxExpr, int]:
        """Resize an image (n, c, h, w) with linear interpolation.

        Args:
            var: variable of the image.
            block: channels per block, or 0 for the model's layout.
            size: rows and columns of the result.
            mode: ONNX's coordinate transformation mode.

        Returns:
            The result and its block size.
        """
        image = self.as_packed(var, block) if block else self.as_plain(var)
        for axis, wanted in ((3, size[1]), (2, size[0])):
            taps = linear_taps((shape_of(image) or ())[axis], wanted, mode)
            arrays = [
                relax.const(array, str(array.dtype))
                for array in (taps.first, taps.second, taps.share)
            ]
            # The second pass reads each value of the first at least twice, so that they are not
            # fused.
            whole = {"op_pattern": OPAQUE} if axis == 3 else None
            image = self._builder.emit_te(
                interpolate_along(axis),
                image,
                *arrays,
                primfunc_name_hint="resize2d",
                primfunc_attrs=whole,
            )
        return image, block

    def block_of(self, var: RelaxVar) -> int:
        """Return the number of channels per block of a tensor.

        Args:
            var: variable of the tensor in the model.

        Returns:
            The number; 0 if the tensor is only available in the model's layout.
        """
        return self._known[var].block if var in self._known else 0

    def _value(self, var: RelaxVar) -> PackedTensor:
        """Return the layouts in which a tensor is available. A constant is recorded on first use.

        Args:
            var: variable of the tensor in the model.
        """
        if var not in self._known and isinstance(var, GenericConst):
            self.record(var, plain=var)
        return self._known[var]

    def as_plain(self, var: RelaxVar) -> RelaxExpr:
        """Return a tensor in the model's layout, unpacking it if necessary.

        Args:
            var: variable of the tensor in the model.
        """
        known = self._value(var)
        if known.plain is None:
            known.plain = self._unpack_tensor(known)
        return known.plain

    def as_packed(self, var: RelaxVar, block: int) -> RelaxExpr:
        """Return a packed float32 tensor, converting it if it is not available in this layout.

        Args:
            var: variable of the tensor.
            block: channels per block.

        Returns:
            Expression of shape (n, c / block, h, w, block).
        """
        known = self._value(var)
        if block not in known.packed and known.bfloat16:
            stored = known.bfloat16.get(block)
            if stored is None:
                stored = self._in_blocks(next(iter(known.bfloat16.values())), block)
            return self._widen(stored)
        if block not in known.packed:
            known.packed[block] = self._pack_tensor(known, block)
        return known.packed[block]

    def _widen(self, stored: RelaxExpr) -> RelaxExpr:
        return self._builder.emit_te(_widen, stored, primfunc_name_hint="widen")

    def _some_form(self, known: PackedTensor) -> tuple[int, RelaxExpr] | None:
        """Return one of the packed float32 layouts in which a tensor is available.

        Args:
            known: the available layouts of the tensor.

        Returns:
            The block size and the expression, or None if there is no packed float32 layout.
        """
        if not known.packed and known.bfloat16:
            block, stored = next(iter(known.bfloat16.items()))
            return block, self._widen(stored)
        return next(iter(known.packed.items()), None)

    def _pack_tensor(self, known: PackedTensor, block: int) -> RelaxExpr:
        n, c, h, w = known.shape or ()
        if (form := self._some_form(known)) is not None:
            old, source = form
            if (h, w) != (1, 1) and old % block == 0:  # split each block into smaller blocks
                split = self.reshape(source, (n, c // old, h, w, old // block, block))
                moved = self.emit(relax.op.permute_dims(split, [0, 1, 4, 2, 3, 5]))
                return self.reshape(moved, (n, c // block, h, w, block))
            if (h, w) == (1, 1):
                return self.reshape(source, (n, c // block, 1, 1, block))
        if known.plain is None:
            known.plain = self._unpack_tensor(known)
        if isinstance(known.plain, GenericConst):
            # constants are packed here, instead of at every inference
            blocks = known.plain.value.numpy().reshape(n, c // block, block, h, w)
            array = np.ascontiguousarray(blocks.transpose(0, 1, 3, 4, 2))
            return relax.const(array, str(array.dtype))
        if (h, w) == (1, 1) or block == 1:
            return self.reshape(known.plain, (n, c // block, h, w, block))
        split = self.reshape(known.plain, (n, c // block, block, h, w))
        return self.emit(relax.op.permute_dims(split, [0, 1, 3, 4, 2]))

    def _unpack_tensor(self, known: PackedTensor) -> RelaxExpr:
        shape = known.shape or ()
        form = self._some_form(known)
        assert form is not None, "a value has a form"
        block, source = form
        if shape[2:] == (1, 1) or block == 1:
            return self.reshape(source, shape)
        return self.reshape(self.emit(relax.op.permute_dims(source, [0, 1, 4, 2, 3])), shape)


def _copy_rows(rows: Tensor, places: Tensor) -> Tensor:
    def value(m: Expression, i: Expression) -> Expression:
        zero = tirx.const(0, rows.dtype)
        return tirx.if_then_else(places[m] >= 0, rows[places[m], i], zero)

    return te.compute((places.shape[0], rows.shape[1]), value, name="copy_rows")


def _in_blocks(packed: Tensor, block: int) -> Tensor:
    """Change the block size of a tensor: (n, c / b, h, w, b) → (n, c / block, h, w, block)."""
    n, count, h, w, old_block = map(int, packed.shape)

    def value(
        n: Expression, c: Expression, y: Expression, x: Expression, i: Expression
    ) -> Expression:
        if old_block % block == 0:
            several = old_block // block
            inside = tirx.indexmod(c, several) * block + i
            return packed[n, tirx.indexdiv(c, several), y, x, inside]
        channel = c * block + i
        return packed[n, tirx.indexdiv(channel, old_block), y, x, tirx.indexmod(channel, old_block)]

    return te.compute((n, count * old_block // block, h, w, block), value, name="in_blocks")


def _widen(stored: Tensor) -> Tensor:
    return te.compute(stored.shape, lambda *at: bfloat16_to_float32(stored[at]), name="widen")


def _narrow_tensor(x: Tensor) -> Tensor:
    return te.compute(x.shape, lambda *at: float32_to_bfloat16(x[at]), name="narrow")
