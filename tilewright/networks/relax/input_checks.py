"""Add run-time checks of integer inputs on which compiled code would fail: indices and divisors.

Compiled code reads and writes wherever an index points, and an integer division by zero ends the
process. Therefore, each index and each divisor that is computed at run time is passed through a
function that raises an error in the cases in which onnxruntime raises an error. Constants are
checked when the model is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence, Sequence
from copy import copy
from math import prod
from typing import Protocol

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import GenericConst
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tilewright.core.tvm_types import (
    BlockBuilder,
    Condition,
    Expression,
    OnnxAttributes,
    RelaxExpr,
    Statement,
    Tensor,
    TirBuffer,
)
from tilewright.networks.errors import REFUSED_INPUTS
from tilewright.networks.relax.bindings import shape_of

_KIND = "ValueError"
OPAQUE = 8
"""TVM's code for the pattern of functions that are not fused with other functions."""

Limits = Sequence[int]


class _Cells(Protocol):
    """Elements of a buffer in TVM's IR builder. Setting an element emits a store statement."""

    def __getitem__(self, place: Expression, /) -> Expression: ...
    def __setitem__(self, place: Expression, value: Expression, /) -> None: ...


def checked_inputs(
    bb: BlockBuilder,
    operator: str,
    node: str,
    inputs: MutableSequence[RelaxExpr],
    attributes: OnnxAttributes,
) -> MutableSequence[RelaxExpr]:
    """Return an ONNX operator's inputs, with checked copies of its indices or its divisor.

    In the checked copies, negative indices are replaced by the equivalent non-negative indices.

    Args:
        bb: block builder of the importer.
        operator: type of the operator.
        node: name of the operator, for the error message.
        inputs: inputs of the operator.
        attributes: attributes of the operator.

    Raises:
        ValueError: a constant index is out of range, or a constant integer divisor is zero.
    """
    given = copy(inputs)  # TVM's kind of list has None for inputs that are left out
    if operator in ("Div", "Mod") and len(given) == 2 and _is_integer(given[1]):
        given[1] = _divisor(bb, given[1], node)
    result = _LIMITS.get(operator)
    if result is None:
        return given
    place, limits_of = result
    if len(given) <= place or not _is_integer(given[place]):
        return given
    limits = limits_of(given, attributes)
    if limits is not None:
        given[place] = _indices(bb, given[place], limits, node)
    return given


def _along_axis(inputs: Sequence[RelaxExpr], attributes: OnnxAttributes) -> Limits | None:
    shape = shape_of(inputs[0])
    return [shape[int(attributes.get("axis", 0))]] if shape else None


def _coordinates(inputs: Sequence[RelaxExpr], attributes: OnnxAttributes) -> Limits | None:
    """Return the upper limits of the numbers in an index, for an operator such as GatherND.

    Args:
        inputs: the data and the indices. The last axis of the indices holds one number per axis of
            the data.
        attributes: attributes of the operator.

    Returns:
        Sizes of these axes of the data, or None if a shape is unknown.
    """
    shape, places = shape_of(inputs[0]), shape_of(inputs[1])
    if not shape or not places:
        return None
    begin = int(attributes.get("batch_dims", 0))
    return list(shape[begin : begin + places[-1]])


def _images(inputs: Sequence[RelaxExpr], _: OnnxAttributes) -> Limits | None:
    shape = shape_of(inputs[0])
    return [shape[0]] if shape else None


_LIMITS: Mapping[
    str, tuple[int, Callable[[Sequence[RelaxExpr], OnnxAttributes], Limits | None]]
] = {
    "Gather": (1, _along_axis),
    "GatherElements": (1, _along_axis),
    "Scatter": (1, _along_axis),
    "ScatterElements": (1, _along_axis),
    "GatherND": (1, _coordinates),
    "ScatterND": (1, _coordinates),
    "RoiAlign": (2, _images),
}
"""Limits of the indices in the inputs of operators, by operator type. Each entry consists of the
position of the input that contains indices, and a function that returns the exclusive upper limits
of the indices: one limit for all indices, or one per position along the last axis."""


def _is_integer(value: RelaxExpr) -> bool:
    """Return whether a value is a tensor of integers with a static shape."""
    if isinstance(value, relax.ShapeExpr) or not isinstance(
        getattr(value, "ty", None), relax.TensorType
    ):
        return False
    return str(value.ty.dtype).startswith(("int", "uint")) and shape_of(value) is not None


def _indices(bb: BlockBuilder, indices: RelaxExpr, limits: Limits, node: str) -> RelaxExpr:
    dtype, listed = str(indices.ty.dtype), "×".join(map(str, limits))
    if isinstance(indices, GenericConst):
        known = indices.value.numpy()
        sizes = np.asarray(limits, known.dtype)
        if ((known < -sizes) | (known >= sizes)).any():
            raise ValueError(f"it has a constant index outside of the {listed} valid positions")
        counted = np.where(known < 0, known + sizes, known).reshape(known.shape)
        return relax.const(counted, dtype)  # a lone number stays one
    if 0 in (shape_of(indices) or ()):
        return indices
    message = f"operator '{node}' got an index outside of its {listed} valid positions"

    def write(source: _Cells, made: _Cells, i: Expression) -> None:
        for place, limit in enumerate(limits):
            at = i * len(limits) + place
            value = source[at]
            size = tirx.const(limit, dtype)
            _refuse_unless(tirx.And(value >= -size, value < size), message)
            made[at] = tirx.Select(value < 0, value + size, value)

    return _copy_by_steps(bb, indices, len(limits), write, "check_indices")


def _divisor(bb: BlockBuilder, divisor: RelaxExpr, node: str) -> RelaxExpr:
    if isinstance(divisor, GenericConst):
        if (divisor.value.numpy() == 0).any():
            raise ValueError("it divides integers by a constant zero")
        return divisor
    message = f"operator '{node}' divides an integer by zero"

    def write(source: _Cells, made: _Cells, i: Expression) -> None:
        _refuse_unless(source[i] != 0, message)
        made[i] = source[i]

    return _copy_by_steps(bb, divisor, 1, write, "check_divisor")


def _refuse_unless(condition: Condition, message: str) -> None:
    with T.Assert(condition, REFUSED_INPUTS + message, _KIND):
        pass


def _copy_by_steps(
    bb: BlockBuilder,
    value: RelaxExpr,
    step: int,
    write: Callable[[_Cells, _Cells, Expression], None],
    name: str,
) -> RelaxExpr:
    """Return a copy of a tensor that is written in steps of several elements.

    Args:
        bb: block builder of the importer.
        value: the tensor.
        step: number of consecutive elements per step.
        write: function of the source buffer, the result buffer and the number of a step. It emits
            the statements that write this step.
        name: name of the function that makes the copy.
    """
    shape, dtype = shape_of(value) or (), str(value.ty.dtype)
    if not shape:
        whole = _copy_by_steps(bb, bb.emit(relax.op.reshape(value, (1,))), step, write, name)
        return bb.emit(relax.op.reshape(whole, ()))

    def compute(source: Tensor) -> Tensor:
        def body(ins: Sequence[TirBuffer], outs: Sequence[TirBuffer]) -> Statement:
            with IRBuilder() as builder:
                given, made = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
                with T.serial(0, prod(shape) // step) as i:
                    write(given, made, i)
            return builder.get()

        given, made = (
            tirx.decl_buffer(source.shape, dtype, item, layout=None) for item in ("x", "y")
        )
        copied: Tensor = te.extern(
            [source.shape], [source], body, dtype=dtype, in_buffers=[given], out_buffers=[made],
            name=name,
        )  # fmt: skip
        return copied

    attributes = {"op_pattern": OPAQUE}  # TVM does not see that the loop reads what it checks
    return bb.emit(bb.call_te(compute, value, primfunc_name_hint=name, primfunc_attrs=attributes))
