"""Evaluate expressions that depend only on weights, with NumPy.

Only the few operators that occur between the constants of a quantised model and their readers are
supported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from tvm.ir import GenericConst

from tilewright.core.tvm_types import Array, RelaxExpr
from tilewright.networks.relax.bindings import Binding, FlatGraph


def value_of(flat: FlatGraph, value: RelaxExpr) -> Array | None:
    """Return the value of a constant expression.

    Args:
        flat: the graph.
        value: the expression.

    Returns:
        Array with the shape of the expression; float32 values are returned as float64. None if the
        expression changes with each run or uses an unsupported operator.
    """
    if isinstance(value, GenericConst):
        array: Array = value.value.numpy()
        return array.astype(np.float64) if array.dtype == np.float32 else array
    binding = flat.by_var.get(value)
    if binding is None or binding.op not in _RULES or binding.shape is None:
        return None
    operands = [value_of(flat, arg) for arg in binding.args[: _OPERANDS.get(binding.op, 1)]]
    known = [operand for operand in operands if operand is not None]
    return _RULES[binding.op](binding, *known) if len(known) == len(operands) else None


def integers_of(flat: FlatGraph, value: RelaxExpr) -> tuple[Array, Binding] | None:
    """Return the integers of a dequantised constant, and the binding that dequantises them.

    Args:
        flat: the graph.
        value: the constant after dequantisation. Reshapes and permutations in between are applied
            to the integers.

    Returns:
        The integers, as an array with the shape of `value`, and the binding. None for any other
        expression.
    """
    binding = flat.by_var.get(value)
    if binding is None or not binding.args:
        return None
    if binding.op == "relax.dequantize":
        array = value_of(flat, binding.args[0])
        return None if array is None else (array, binding)
    if binding.op in _MOVES and (integers := integers_of(flat, binding.args[0])) is not None:
        return _RULES[binding.op](binding, integers[0]), integers[1]
    return None


def along_channels(flat: FlatGraph, value: RelaxExpr, values: Array) -> Array:
    """Broadcast one value per quantisation scale to the shape of a dequantised constant.

    Args:
        flat: the graph.
        value: the constant, an expression for which `integers_of` returns a result.
        values: one value per scale, array of shape (scales,).

    Returns:
        Array with the shape of `value`.
    """
    binding = flat.by_var[value]
    if binding.op == "relax.dequantize":
        return np.broadcast_to(_align_scales(binding, values), binding.shape or ())
    return _RULES[binding.op](binding, along_channels(flat, binding.args[0], values))


def _dequantise(binding: Binding, x: Array, scale: Array, zero: Array) -> Array:
    return (x.astype(np.float64) - _align_scales(binding, zero)) * _align_scales(binding, scale)


def _quantise(binding: Binding, x: Array, scale: Array, zero: Array) -> Array:
    dtype = np.dtype(str(binding.var.ty.dtype))
    info = np.iinfo(dtype)
    q = np.rint(x / _align_scales(binding, scale)) + _align_scales(binding, zero)
    integers: Array = np.clip(q, info.min, info.max).astype(dtype)
    return integers


def _align_scales(binding: Binding, values: Array) -> Array:
    """Reshape one value per quantisation scale so that it broadcasts with the dequantised tensor.

    Args:
        binding: the dequantisation, whose attribute states the axis of the scales.
        values: one value per scale, of shape (scales,).
    """
    rank = len(binding.shape or ())
    if values.size == 1 or rank == 0:
        return values.reshape(())
    shape = [1] * rank
    shape[int(binding.value.attrs.axis) % rank] = values.size
    return values.reshape(shape).astype(np.float64)


def _permute(binding: Binding, x: Array) -> Array:
    axes = binding.value.attrs.axes
    return np.transpose(x, None if axes is None else [int(axis) for axis in axes])


def _reshape(binding: Binding, x: Array) -> Array:
    return x.reshape(binding.shape or ())


def _where(_: Binding, condition: Array, x: Array, y: Array) -> Array:
    chosen: Array = np.where(condition, x, y)
    return chosen


_MOVES = ("relax.permute_dims", "relax.reshape", "relax.expand_dims", "relax.squeeze")
_OPERANDS: Mapping[str, int] = {
    "relax.dequantize": 3, "relax.quantize": 3,
    "relax.add": 2, "relax.subtract": 2, "relax.multiply": 2, "relax.divide": 2,
    "relax.where": 3,
}  # fmt: skip
_RULES: Mapping[str, Callable[..., Array]] = {
    "relax.permute_dims": _permute,
    "relax.reshape": _reshape,
    "relax.expand_dims": _reshape,
    "relax.squeeze": _reshape,
    "relax.broadcast_to": lambda binding, x: np.broadcast_to(x, binding.shape or ()),
    "relax.astype": lambda binding, x: x.astype(str(binding.var.ty.dtype)),
    "relax.dequantize": _dequantise,
    "relax.quantize": _quantise,
    "relax.add": lambda _, x, y: x + y,
    "relax.subtract": lambda _, x, y: x - y,
    "relax.multiply": lambda _, x, y: x * y,
    "relax.divide": lambda _, x, y: x / y,
    "relax.isnan": lambda _, x: np.isnan(x),
    "relax.where": _where,
}
