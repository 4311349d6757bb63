"""Tracks how tensors lie while a network is rewritten: as the model has them, or channels in
blocks, these also in bfloat16.

A tensor is packed or unpacked when somebody first reads it that way, once. It is widened to float32
for each reader, which TVM fuses with what reads it.
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
    along,
    linear_taps,
    normalised,
    pool,
)
from tilewright.networks.compiled.vector_math import narrowed, widened
from tilewright.networks.relax.bindings import shape_of
from tilewright.networks.relax.nan_propagation import NAN_SAFE

OPAQUE = 8
"""TVM's pattern of functions that nothing is fused with."""
FLOAT_BLOCK = 16
"""Channels that a block of float32 has at most: a vector. Those of bfloat16 have up to two."""


@dataclass
class PackedTensor:
    """A value of the network, of the model's `shape`: its expression as the model has it, and
    those of packed forms, (n, c / block, h, w, block), by block: in float32, and as uint16 that
    hold bfloat16."""

    shape: tuple[int, ...] | None
    plain: RelaxExpr | None = None
    packed: dict[int, RelaxExpr] = field(default_factory=dict)
    bfloat16: dict[int, RelaxExpr] = field(default_factory=dict)

    @property
    def block(self) -> int:
        """Of a form that is there; 0 where none is."""
        return next(iter((*self.packed, *self.bfloat16)), 0)


class PackedTensors:
    """The values known so far, by variable of the model's function."""

    def __init__(self, builder: BlockBuilder) -> None:
        self._builder = builder
        self._known: dict[RelaxVar, PackedTensor] = {}
        self._source: dict[RelaxExpr, RelaxExpr] = {}  # of what is only another shape of it

    def emit(self, expression: RelaxExpr) -> RelaxExpr:
        """A variable of an expression."""
        return self._builder.emit(expression)

    def reshaped(self, expression: RelaxExpr, shape: Sequence[int]) -> RelaxExpr:
        """The same numbers with other axes. A shape of a shape is one of the first value: TVM would
        fuse both and copy."""
        source = self._source.get(expression, expression)
        if shape_of(source) == tuple(shape):
            return source
        made = self.emit(relax.op.reshape(source, tuple(shape)))
        self._source[made] = source
        return made

    def put(
        self,
        var: RelaxVar,
        *,
        plain: RelaxExpr | None = None,
        packed: RelaxExpr | None = None,
        block: int = 0,
    ) -> None:
        """Say what a variable of the model is now."""
        self._known[var] = PackedTensor(shape_of(var), plain, {block: packed} if block else {})

    def put_bfloat16(self, var: RelaxVar, stored: RelaxExpr, block: int) -> None:
        """Say what a variable of the model is now, in bfloat16."""
        self._known[var] = PackedTensor(shape_of(var), bfloat16={block: stored})

    def stored_block(self, var: RelaxVar, block: int) -> int:
        """In which blocks, of several `block` each, a value lies in bfloat16; 0 where it does not
        lie so."""
        known = self._known[var].bfloat16 if var in self._known else {}
        return next((each for each in known if each % block == 0), 0)

    def bfloat16(self, var: RelaxVar, block: int) -> RelaxExpr:
        """The value in blocks of so many channels, (n, c / block, h, w, block), in bfloat16."""
        known = self._value(var)
        if block not in known.bfloat16:
            if known.bfloat16:
                stored = next(iter(known.bfloat16.values()))
                known.bfloat16[block] = self._in_blocks(stored, block)
            else:
                known.bfloat16[block] = self.narrow(self.packed(var, block))
        return known.bfloat16[block]

    def narrow(self, expression: RelaxExpr) -> RelaxExpr:
        """float32 as the nearest bfloat16."""
        return self._builder.emit_te(_narrow, expression, primfunc_name_hint="narrow")

    def _in_blocks(self, packed: RelaxExpr, block: int) -> RelaxExpr:
        """What is packed, in other blocks."""
        if (shape_of(packed) or ())[4] == block:
            return packed
        return self._builder.emit_te(_in_blocks, packed, block, primfunc_name_hint="in_blocks")

    def copied_rows(self, rows: RelaxExpr, places: RelaxExpr) -> RelaxExpr:
        """The rows (n, length) of a tensor at the places (m,), zeros where a place is negative."""
        whole = {"op_pattern": OPAQUE}  # a shape behind it stays one
        return self._builder.emit_te(
            _copy_rows, rows, places, primfunc_name_hint="copy_rows", primfunc_attrs=whole
        )

    def pooled(self, var: RelaxVar, block: int, window: PoolWindow, *, bfloat16: bool) -> RelaxExpr:
        """A pool of a value, in blocks of so many channels, in `bfloat16` or in float32."""
        stored = self._known[var].bfloat16
        image = self.bfloat16(var, block) if stored else self.packed(var, block)
        name = f"{'avg' if window.mean else 'max'}_pool2d"
        # Fused, what is read would be computed for every window.
        whole = {"op_pattern": OPAQUE, NAN_SAFE: 1}
        return self._builder.emit_te(
            lambda image: pool(image, window, bfloat16), image, primfunc_name_hint=name,
            primfunc_attrs=whole,
        )  # fmt: skip

    def beside(self, found: PixelsBeside, *, bfloat16: bool) -> tuple[RelaxExpr, int] | None:
        """Channels that become pixels, and their block, in `bfloat16` or in float32; None where
        blocks hold channels of several pixels."""
        known = self._known[found.source]
        stored = bool(known.bfloat16) and bfloat16
        block = known.block if stored else min(known.block, FLOAT_BLOCK)
        if not block or found.channels % block:
            return None
        form = self.bfloat16 if stored else self.packed
        image = form(found.source, block)
        made = self._builder.emit_te(
            put_beside(image, found), image, primfunc_name_hint="pixels_beside"
        )
        return (self.narrow(made) if bfloat16 and not stored else made), block

    def shuffled(self, found: ChannelShuffle) -> tuple[RelaxExpr, int] | None:
        """Shuffled channels, and their block; None where they lie in none."""
        block = min(self.block_of(found.source), FLOAT_BLOCK)
        if block < 4:
            return None
        function = shuffle_function(found, block).with_attr("op_pattern", OPAQUE)
        name = self._builder.add_func(function.without_attr("global_symbol"), "shuffled")
        image = self.packed(found.source, block)
        made = self.emit(
            relax.call_tir(name, [image], relax.TensorType(shape_of(image), "float32"))
        )
        return made, block

    def normalised(self, found: LocalResponse) -> RelaxExpr:
        """A local response normalisation (n, c, h, w)."""
        return self._builder.emit_te(
            lambda image: normalised(image, found), self.plain(found.source),
            primfunc_name_hint="local_response", primfunc_attrs={"op_pattern": OPAQUE},
        )  # fmt: skip

    def resized(
        self, var: RelaxVar, block: int, size: Sequence[int], mode: str
    ) -> tuple[RelaxExpr, int]:
        """A value (n, c, h, w) resized linearly to `size`, in blocks of so many channels, and the
        block."""
        image = self.packed(var, block) if block else self.plain(var)
        for axis, wanted in ((3, size[1]), (2, size[0])):
            taps = linear_taps((shape_of(image) or ())[axis], wanted, mode)
            arrays = [
                relax.const(array, str(array.dtype))
                for array in (taps.first, taps.second, taps.share)
            ]
            # The second pass reads each value of the first twice, or more.
            whole = {"op_pattern": OPAQUE} if axis == 3 else None
            image = self._builder.emit_te(
                along(axis), image, *arrays, primfunc_name_hint="resize2d", primfunc_attrs=whole
            )
        return image, block

    def block_of(self, var: RelaxVar) -> int:
        """In which blocks a variable's value lies; 0 where it lies as the model has it."""
        return self._known[var].block if var in self._known else 0

    def _value(self, var: RelaxVar) -> PackedTensor:
        """Return what is known of a variable. A constant is one that nobody has put here."""
        if var not in self._known and isinstance(var, GenericConst):
            self.put(var, plain=var)
        return self._known[var]

    def plain(self, var: RelaxVar) -> RelaxExpr:
        """The value as the model has it."""
        known = self._value(var)
        if known.plain is None:
            known.plain = self._unpacked(known)
        return known.plain

    def packed(self, var: RelaxVar, block: int) -> RelaxExpr:
        """The value in blocks of so many channels, (n, c / block, h, w, block)."""
        known = self._value(var)
        if block not in known.packed and known.bfloat16:
            stored = known.bfloat16.get(block)
            if stored is None:
                stored = self._in_blocks(next(iter(known.bfloat16.values())), block)
            return self._widen(stored)
        if block not in known.packed:
            known.packed[block] = self._packed(known, block)
        return known.packed[block]

    def _widen(self, stored: RelaxExpr) -> RelaxExpr:
        return self._builder.emit_te(_widen, stored, primfunc_name_hint="widen")

    def _some_form(self, known: PackedTensor) -> tuple[int, RelaxExpr] | None:
        """A packed form that is there, in float32."""
        if not known.packed and known.bfloat16:
            block, stored = next(iter(known.bfloat16.items()))
            return block, self._widen(stored)
        return next(iter(known.packed.items()), None)

    def _packed(self, known: PackedTensor, block: int) -> RelaxExpr:
        n, c, h, w = known.shape or ()
        if (form := self._some_form(known)) is not None:
            old, source = form
            if (h, w) != (1, 1) and old % block == 0:  # in several of a block
                split = self.reshaped(source, (n, c // old, h, w, old // block, block))
                moved = self.emit(relax.op.permute_dims(split, [0, 1, 4, 2, 3, 5]))
                return self.reshaped(moved, (n, c // block, h, w, block))
            if (h, w) == (1, 1):
                return self.reshaped(source, (n, c // block, 1, 1, block))
        if known.plain is None:
            known.plain = self._unpacked(known)
        if isinstance(known.plain, GenericConst):
            # packed here once, or the library would pack it again in every run
            blocks = known.plain.value.numpy().reshape(n, c // block, block, h, w)
            array = np.ascontiguousarray(blocks.transpose(0, 1, 3, 4, 2))
            return relax.const(array, str(array.dtype))
        if (h, w) == (1, 1) or block == 1:
            return self.reshaped(known.plain, (n, c // block, h, w, block))
        split = self.reshaped(known.plain, (n, c // block, block, h, w))
        return self.emit(relax.op.permute_dims(split, [0, 1, 3, 4, 2]))

    def _unpacked(self, known: PackedTensor) -> RelaxExpr:
        shape = known.shape or ()
        form = self._some_form(known)
        assert form is not None, "a value has a form"
        block, source = form
        if shape[2:] == (1, 1) or block == 1:
            return self.reshaped(source, shape)
        return self.reshaped(self.emit(relax.op.permute_dims(source, [0, 1, 4, 2, 3])), shape)


def _copy_rows(rows: Tensor, places: Tensor) -> Tensor:
    def value(m: Expression, i: Expression) -> Expression:
        zero = tirx.const(0, rows.dtype)
        return tirx.if_then_else(places[m] >= 0, rows[places[m], i], zero)

    return te.compute((places.shape[0], rows.shape[1]), value, name="copy_rows")


def _in_blocks(packed: Tensor, block: int) -> Tensor:
    """(n, c / b, h, w, b) → (n, c / block, h, w, block)."""
    n, count, h, w, each = map(int, packed.shape)

    def value(
        n: Expression, c: Expression, y: Expression, x: Expression, i: Expression
    ) -> Expression:
        if each % block == 0:
            several = each // block
            inside = tirx.indexmod(c, several) * block + i
            return packed[n, tirx.indexdiv(c, several), y, x, inside]
        channel = c * block + i
        return packed[n, tirx.indexdiv(channel, each), y, x, tirx.indexmod(channel, each)]

    return te.compute((n, count * each // block, h, w, block), value, name="in_blocks")


def _widen(stored: Tensor) -> Tensor:
    return te.compute(stored.shape, lambda *at: widened(stored[at]), name="widen")


def _narrow(x: Tensor) -> Tensor:
    return te.compute(x.shape, lambda *at: narrowed(x[at]), name="narrow")
