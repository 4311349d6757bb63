"""Lets the kernel of a batched product read and write tensors whose axes were moved where they lie.

Attention splits the columns of a dense layer into heads, and moves the heads to the front. Behind
the products it moves them back. Both are copies of all data, which a product does not need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from tilewright.networks.relax.bindings import Binding, FlatGraph, shape_of, variables

MOVED = "relax.permute_dims"
SHAPES = ("relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims")
"""Operators that give the numbers they read, in order, with other axes."""

Place = Callable[[Sequence[Any]], Sequence[Any]]
"""Where a number is in another buffer, by its indices."""


@dataclass(frozen=True)
class MovedAxes:
    """A tensor of `shape`, whose axes are moved to the order `axes` before a product sees it, or
    behind it the other way round. The last one stays, so that vectors lie together."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def moved(self) -> tuple[int, ...]:
        """The shape that the product knows."""
        return tuple(self.shape[axis] for axis in self.axes)

    def fits(self, wanted: Sequence[int]) -> bool:
        """Whether a product of (batch, rows, columns) can find its numbers in it."""
        *batch, rows, columns = self.moved
        stays = self.axes[-1] == len(self.axes) - 1
        return stays and (math.prod(batch), rows, columns) == tuple(wanted)

    def place(self, indices: Sequence[Any]) -> list[Any]:
        """The indices in the tensor, by those of (batch, rows, columns)."""
        rest, found = indices[0], []
        for size in reversed(self.moved[:-2]):
            found.append(tirx.indexmod(rest, size) if size > 1 else tirx.const(0, "int32"))
            rest = tirx.indexdiv(rest, size) if size > 1 else rest
        known = [*found[::-1], *indices[1:]]
        return [known[self.axes.index(axis)] for axis in range(len(self.axes))]


def moved_operand(flat: FlatGraph, var: Any) -> tuple[Any, MovedAxes] | None:
    """What a variable is before its axes were moved, and how; None where they were not."""
    binding = flat.by_var.get(var)
    while binding is not None and binding.op in SHAPES:
        binding = flat.by_var.get(binding.args[0])
    return _moved(binding) if binding is not None and binding.op == MOVED else None


def moved_result(flat: FlatGraph, result: Binding) -> tuple[Binding, MovedAxes] | None:
    """What moves the axes of a result that nobody else reads, and the tensor that it makes."""
    user = flat.sole_user(result.var)
    if user is None or user.op != MOVED or user.shape is None:
        return None
    if any(var.same_as(result.var) for var in _results(flat)):
        return None
    _, behind = _moved(user) or (None, None)
    if behind is None:
        return None
    back = tuple(behind.axes.index(axis) for axis in range(len(behind.axes)))
    return user, MovedAxes(user.shape, back)


def _results(flat: FlatGraph) -> Sequence[Any]:
    return tuple(variables(flat.module["main"].body.body))


def _moved(binding: Binding) -> tuple[Any, MovedAxes] | None:
    shape, axes = shape_of(binding.args[0]), binding.value.attrs.axes
    if shape is None or axes is None or len(shape) < 3:
        return None
    return binding.args[0], MovedAxes(shape, tuple(int(axis) % len(shape) for axis in axes))


def on_moved(function: Any, moved: Sequence[tuple[int, MovedAxes]]) -> Any:
    """A kernel's function whose parameters of these numbers are such tensors."""
    params, body = list(function.params), function.body
    for number, axes in moved:
        old = params[number]
        new = tirx.decl_buffer(axes.shape, old.dtype, name=str(old.name))
        body = elsewhere(body, old, new, axes.place)
        params[number] = new
    return tirx.PrimFunc(params, body, function.ret_type).with_attrs(function.attrs)


def elsewhere(body: Any, old: Any, new: Any, place: Place) -> Any:
    """A body that finds the numbers of a buffer in another one, at the `place` of their indices."""

    def load(found: Any) -> Any:
        if not found.source.same_as(old):
            return found
        return tirx.BufferLoad(new, list(place(found.indices)))

    def store(found: Any) -> Any:
        if not found.buffer.same_as(old):
            return found
        return tirx.BufferStore(new, found.value, list(place(found.indices)))

    return tvm_ffi.structural_map(body, [(TensorLoad, load), (tirx.BufferStore, store)])
