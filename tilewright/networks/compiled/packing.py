"""Tracks how tensors lie while a network is rewritten: as the model has them, or channels in
blocks.

A tensor is packed or unpacked when somebody first reads it that way, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from tilewright.networks.relax.bindings import shape_of


@dataclass
class PackedTensor:
    """A value of the network, of the model's `shape`: its expression as the model has it, and
    those of packed forms, (n, c / block, h, w, block), by block."""

    shape: tuple[int, ...] | None
    plain: Any = None
    packed: dict[int, Any] | None = None

    @property
    def block(self) -> int:
        """Of a form that is there; 0 where none is."""
        return next(iter(self.packed), 0) if self.packed else 0


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
        self._known[var] = PackedTensor(shape_of(var), plain, {block: packed} if block else None)

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
        if known.packed is None:
            known.packed = {}
        if block not in known.packed:
            known.packed[block] = self._packed(known, block)
        return known.packed[block]

    def _packed(self, known: PackedTensor, block: int) -> Any:
        n, c, h, w = known.shape or ()
        if known.packed:
            source, (old, _) = next(iter(known.packed.values())), next(iter(known.packed.items()))
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
        block, source = next(iter((known.packed or {}).items()))
        if shape[2:] == (1, 1) or block == 1:
            return self.reshaped(source, shape)
        return self.reshaped(self.emit(relax.op.permute_dims(source, [0, 1, 4, 2, 3])), shape)
