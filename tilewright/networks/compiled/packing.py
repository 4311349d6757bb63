"""Tracks how tensors lie while a network is rewritten: as the model has them, or channels in
blocks, these also in bfloat16.

A tensor is packed or unpacked when somebody first reads it that way, once. It is widened to float32
for each reader, which TVM fuses with what reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import relax, te, tirx

from tilewright.core.bfloat16 import BELOW_HALF, NAN
from tilewright.networks.relax.bindings import shape_of

OPAQUE = 8
"""TVM's pattern of functions that nothing is fused with."""
_BITS = 16
"""Of a bfloat16: the upper half of a float32."""


@dataclass
class PackedTensor:
    """A value of the network, of the model's `shape`: its expression as the model has it, and
    those of packed forms, (n, c / block, h, w, block), by block: in float32, and as uint16 that
    hold bfloat16."""

    shape: tuple[int, ...] | None
    plain: Any = None
    packed: dict[int, Any] = field(default_factory=dict)
    bfloat16: dict[int, Any] = field(default_factory=dict)

    @property
    def block(self) -> int:
        """Of a form that is there; 0 where none is."""
        return next(iter((*self.packed, *self.bfloat16)), 0)


class PackedTensors:
    """The values known so far, by variable of the model's function."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self._known: dict[Any, PackedTensor] = {}
        self._source: dict[Any, Any] = {}  # of what is only another shape of it

    def emit(self, expression: Any) -> Any:
        """A variable of an expression."""
        return self._builder.emit(expression)

    def reshaped(self, expression: Any, shape: Sequence[int]) -> Any:
        """The same numbers with other axes. A shape of a shape is one of the first value: TVM would
        fuse both and copy."""
        source = self._source.get(expression, expression)
        if shape_of(source) == tuple(shape):
            return source
        made = self.emit(relax.op.reshape(source, tuple(shape)))
        self._source[made] = source
        return made

    def put(self, var: Any, *, plain: Any = None, packed: Any = None, block: int = 0) -> None:
        """Say what a variable of the model is now."""
        self._known[var] = PackedTensor(shape_of(var), plain, {block: packed} if block else {})

    def put_bfloat16(self, var: Any, stored: Any, block: int) -> None:
        """Say what a variable of the model is now, in bfloat16."""
        self._known[var] = PackedTensor(shape_of(var), bfloat16={block: stored})

    def is_bfloat16(self, var: Any, block: int) -> bool:
        """Whether a value lies in such blocks in bfloat16."""
        return var in self._known and block in self._known[var].bfloat16

    def bfloat16(self, var: Any, block: int) -> Any:
        """The value in blocks of so many channels, (n, c / block, h, w, block), in bfloat16."""
        known = self._known[var]
        if block not in known.bfloat16:
            known.bfloat16[block] = self.narrow(self.packed(var, block))
        return known.bfloat16[block]

    def narrow(self, expression: Any) -> Any:
        """float32 as the nearest bfloat16."""
        return self._builder.emit_te(_narrow, expression, primfunc_name_hint="narrow")

    def copied_rows(self, rows: Any, places: Any) -> Any:
        """The rows (n, length) of a tensor at the places (m,), zeros where a place is negative."""
        whole = {"op_pattern": OPAQUE}  # a shape behind it stays one
        return self._builder.emit_te(
            _copy_rows, rows, places, primfunc_name_hint="copy_rows", primfunc_attrs=whole
        )

    def block_of(self, var: Any) -> int:
        """In which blocks a variable's value lies; 0 where it lies as the model has it."""
        return self._known[var].block if var in self._known else 0

    def plain(self, var: Any) -> Any:
        """The value as the model has it."""
        known = self._known[var]
        if known.plain is None:
            known.plain = self._unpacked(known)
        return known.plain

    def packed(self, var: Any, block: int) -> Any:
        """The value in blocks of so many channels, (n, c / block, h, w, block)."""
        known = self._known[var]
        if block in known.bfloat16 and block not in known.packed:
            return self._widen(known.bfloat16[block])
        if block not in known.packed:
            known.packed[block] = self._packed(known, block)
        return known.packed[block]

    def _widen(self, stored: Any) -> Any:
        return self._builder.emit_te(_widen, stored, primfunc_name_hint="widen")

    def _some_form(self, known: PackedTensor) -> tuple[int, Any] | None:
        """A packed form that is there, in float32."""
        if not known.packed and known.bfloat16:
            block, stored = next(iter(known.bfloat16.items()))
            return block, self._widen(stored)
        return next(iter(known.packed.items()), None)

    def _packed(self, known: PackedTensor, block: int) -> Any:
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
        if (h, w) == (1, 1) or block == 1:
            return self.reshaped(known.plain, (n, c // block, h, w, block))
        split = self.reshaped(known.plain, (n, c // block, block, h, w))
        return self.emit(relax.op.permute_dims(split, [0, 1, 3, 4, 2]))

    def _unpacked(self, known: PackedTensor) -> Any:
        shape = known.shape or ()
        form = self._some_form(known)
        assert form is not None, "a value has a form"
        block, source = form
        if shape[2:] == (1, 1) or block == 1:
            return self.reshaped(source, shape)
        return self.reshaped(self.emit(relax.op.permute_dims(source, [0, 1, 4, 2, 3])), shape)


def _copy_rows(rows: Any, places: Any) -> Any:
    def value(m: Any, i: Any) -> Any:
        zero = tirx.const(0, rows.dtype)
        return tirx.if_then_else(places[m] >= 0, rows[places[m], i], zero)

    return te.compute((places.shape[0], rows.shape[1]), value, name="copy_rows")


def _widen(stored: Any) -> Any:
    def value(*place: Any) -> Any:
        bits = tirx.shift_left(tirx.Cast("uint32", stored[place]), tirx.const(_BITS, "uint32"))
        return tirx.reinterpret("float32", bits)

    return te.compute(stored.shape, value, name="widen")


def _narrow(x: Any) -> Any:
    """Halves to even, as `targets.cpu.kernels.matrix_tiles` rounds."""

    def bits_of(value: int) -> Any:
        return tirx.const(value, "uint32")

    def value(*place: Any) -> Any:
        bits = tirx.Var("bits", "uint32")  # computed once, however often it is read
        odd = tirx.bitwise_and(tirx.shift_right(bits, bits_of(_BITS)), bits_of(1))
        near = tirx.shift_right(bits + odd + bits_of(BELOW_HALF), bits_of(_BITS))
        nan = tirx.bitwise_and(bits, bits_of(0x7FFFFFFF)) > bits_of(0x7F800000)
        made = tirx.Cast("uint16", tirx.Select(nan, bits_of(NAN), near))
        return tirx.Let(bits, tirx.reinterpret("uint32", x[place]), made)

    return te.compute(x.shape, value, name="narrow")
