"""Fold each BatchNorm into the preceding convolution or matrix product.

This works on Relax modules, so it applies to models of all file formats. The folded weights and
bias are w' = w·γ/√(σ²+ε) and b' = (b − μ)·γ/√(σ²+ε) + β (Jacob et al., CVPR 2018, eq. 14).
Constants are folded in float64 and rounded once. If the weights are parameters of the module, the
module computes the folded weights when it runs. Multiplications and additions of per-channel
constants after a BatchNorm, as in Caffe models, are folded as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tilewright.core.tvm_types import Array, RelaxExpr, RelaxVar
from tilewright.networks.relax.bindings import Binding, FlatGraph, flatten, is_per_channel, shape_of

NORM, ITEM, ADD, MULTIPLY = (
    "relax.nn.batch_norm", "TupleGetItem", "relax.add", "relax.multiply",
)  # fmt: skip
MATMUL, CONVOLUTIONS = "relax.matmul", ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")
CHANNEL_AXIS = 1

_Value: TypeAlias = Array | RelaxExpr
"""An array whose values are known now, or a Relax expression that computes the array at run
time."""


@dataclass(frozen=True, eq=False)
class Fold:
    """A BatchNorm that can be folded, with the operators around it.

    Attributes:
        head: the convolution or matrix product before the BatchNorm.
        bias: the addition of a constant between the two, or None.
        norm: the BatchNorm.
        item: the binding that takes the result out of the tuple that the BatchNorm returns.
        behind: the multiplications and additions of per-channel constants after the BatchNorm.
    """

    head: Binding
    bias: Binding | None
    norm: Binding
    item: Binding
    behind: tuple[Binding, ...]

    @property
    def result(self) -> Binding:
        """The last binding, whose variable other operators read."""
        return (self.item, *self.behind)[-1]

    @property
    def removed_bindings(self) -> tuple[Binding, ...]:
        """The bindings that folding removes from the graph."""
        return self.norm, *(self.item, *self.behind)[:-1]


def fold_batch_norm(flat: FlatGraph) -> FlatGraph:
    """Fold each BatchNorm that directly follows a convolution or matrix product.

    The result of the convolution must have no other reader. An addition of a per-channel constant
    takes the place of the BatchNorm, and keeps its source operator's name and its variable.

    Args:
        flat: the graph.

    Returns:
        The changed graph, or `flat` itself if there is nothing to fold.
    """
    bindings = [
        fold for b in flat.bindings if b.op == NORM and (fold := _fold(flat, b)) is not None
    ]
    blocks = flat.module["main"].body.blocks
    if not bindings or len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
        return flat
    main, builder = flat.module["main"], relax.BlockBuilder()
    folded = {var: value for fold in bindings for var, value in _Folded(builder, fold).values()}
    gone = {binding.var for fold in bindings for binding in fold.removed_bindings}
    with builder.function("main", list(main.params)):
        with builder.dataflow():
            for binding in flat.bindings:
                if binding.var not in gone:
                    make = folded.get(binding.var)
                    value = binding.value if make is None else builder.normalize(make())
                    builder.emit_normalized(relax.VarBinding(binding.var, value))
        builder.emit_func_output(main.body.body)
    module = flat.module.clone()
    module.update_func(module.get_global_var("main"), builder.get()["main"].with_attrs(main.attrs))
    return flatten(module, flat.data, {b.var: b.node for b in flat.bindings})


def _fold(flat: FlatGraph, norm: Binding) -> Fold | None:
    attrs, result = norm.value.attrs, flat.sole_user(norm.var)
    if result is None or result.op != ITEM or result.value.index != 0:
        return None
    given = all(isinstance(arg, GenericConst) or flat.is_weight(arg) for arg in norm.args[1:])
    if attrs.training or attrs.axis != CHANNEL_AXIS or not given:
        return None
    head, bias = _computing_binding(flat, norm, norm.args[0]), None
    if head is not None and _adds_constant(flat, head):
        head, bias = _computing_binding(flat, head, head.args[0]), head
    if head is None or not _is_foldable(flat, head):
        return None
    known = all(isinstance(arg, GenericConst) for arg in norm.args[1:])
    behind = tuple(_following_bindings(flat, result)) if known else ()
    return Fold(head, bias, norm, result, behind)


def _following_bindings(flat: FlatGraph, last: Binding) -> Iterator[Binding]:
    """Yield the multiplications and additions of per-channel constants that follow an operator.

    The sequence ends where a result has several readers.

    Args:
        flat: the graph.
        last: binding of the operator.
    """
    while (user := flat.sole_user(last.var)) is not None:
        given = _other_operand(user, last.var) if user.op in (ADD, MULTIPLY) else None
        if not isinstance(given, GenericConst) or user.shape != last.shape:
            return
        if not is_per_channel(user.shape, shape_of(given), CHANNEL_AXIS):
            return
        yield user
        last = user


def _other_operand(binding: Binding, var: RelaxVar) -> RelaxExpr:
    one, other = binding.args
    return other if one is var or (isinstance(one, relax.Var) and one.same_as(var)) else one


def _adds_constant(flat: FlatGraph, binding: Binding) -> bool:
    """Return whether an operator adds a constant with one value per channel.

    Args:
        flat: the graph.
        binding: the operator. The constant must be its second operand.
    """
    if binding.op != ADD or not flat.is_constant(binding.args[1]):
        return False
    return is_per_channel(binding.shape, shape_of(binding.args[1]), CHANNEL_AXIS)


def _computing_binding(flat: FlatGraph, reader: Binding, value: RelaxExpr) -> Binding | None:
    """Return the binding that computes a value, if a given binding is its only reader.

    Args:
        flat: the graph.
        reader: the reader.
        value: the value.

    Returns:
        The binding. None if the value has other readers or is not computed by a binding.
    """
    binding = flat.by_var.get(value)
    return binding if binding is not None and flat.sole_user(value) is reader else None


def _is_foldable(flat: FlatGraph, head: Binding) -> bool:
    """Return whether a BatchNorm after an operator can be folded into the operator's weights.

    The operator must be a convolution or matrix product with constant float weights in a known
    layout.

    Args:
        flat: the graph.
        head: binding of the operator.
    """
    if head.op not in (*CONVOLUTIONS, MATMUL):
        return False
    weight = head.args[1]
    source = flat.by_var.get(weight)
    if not flat.is_constant(weight) or (source is not None and source.op == "relax.dequantize"):
        return False
    if head.op == MATMUL:
        return len(head.shape or ()) == len(shape_of(weight) or ()) == 2
    return str(head.value.attrs.data_layout).startswith("NC")


class _Folded:
    """New values of the variables that change when one BatchNorm is folded.

    The graph is rewritten in order, and each value is created at the position of its variable.

    Args:
        builder: builder of the new function.
        fold: the BatchNorm to fold.
    """

    def __init__(self, builder: relax.BlockBuilder, fold: Fold) -> None:
        self._builder = builder
        self._fold = fold
        self._factor: _Value  # of the weights; `_head`, whose place comes first, sets both
        self._sum: _Value
        self._dtype = str(fold.head.var.ty.dtype)

    def values(self) -> list[tuple[RelaxVar, Callable[[], RelaxExpr]]]:
        """Return pairs of a variable and a function that creates its value, in graph order."""
        fold = self._fold
        middle = [] if fold.bias is None else [(fold.bias.var, self._bias)]
        return [(fold.head.var, self._head), *middle, (fold.result.var, self._offset)]

    def _head(self) -> RelaxExpr:
        head = self._fold.head
        _, gamma, beta, mean, variance = map(_constant_value, self._fold.norm.args)
        epsilon = np.float64(self._fold.norm.value.attrs.epsilon)
        deviation = self._compute("sqrt", self._compute("add", variance, epsilon))
        self._factor = self._compute("divide", gamma, deviation)
        self._sum = self._compute("subtract", beta, self._compute("multiply", mean, self._factor))
        previous = self._fold.item
        for binding in self._fold.behind:
            given = _constant_value(_other_operand(binding, previous.var)).ravel()
            if binding.op == MULTIPLY:
                self._factor = self._factor * given
                self._sum = self._sum * given
            else:
                self._sum = self._sum + given
            previous = binding
        factor = self._factor
        if head.op != MATMUL:
            rank = len(shape_of(head.args[1]) or ())
            factor = self._compute("reshape", factor, (-1, *[1] * (rank - 1)))
        weight = self._expression(self._compute("multiply", _constant_value(head.args[1]), factor))
        return relax.Call(head.value.op, [head.args[0], weight], head.value.attrs)

    def _bias(self) -> RelaxExpr:
        bias = self._fold.bias
        assert bias is not None
        scaled = self._compute(
            "multiply", _constant_value(bias.args[1]), self._per_channel(self._factor)
        )
        return relax.op.add(bias.args[0], self._expression(scaled))

    def _offset(self) -> RelaxExpr:
        data = self._fold.norm.args[0]
        return relax.op.add(data, self._expression(self._per_channel(self._sum)))

    def _per_channel(self, value: _Value) -> _Value:
        """Reshape one value per channel so that it broadcasts with the layer's result.

        Args:
            value: array or expression of shape (channels,).
        """
        rank = len(self._fold.head.shape or ())
        return self._compute("reshape", value, (1, -1, *[1] * (rank - 2)))

    def _compute(self, operation: str, *operands: _Value) -> _Value:
        """Apply an operation to operands, as an array if all of them are arrays.

        Args:
            operation: name of the operation in both NumPy and Relax.
            *operands: arrays or Relax expressions.

        Returns:
            An array if NumPy computed the result, otherwise a new variable of the function.
        """
        if not any(isinstance(operand, relax.Expr) for operand in operands):
            return getattr(np, operation)(*operands)
        return self._builder.emit(getattr(relax.op, operation)(*map(self._expression, operands)))

    def _expression(self, value: _Value) -> RelaxExpr:
        """Convert an array to a Relax constant; return shapes and expressions unchanged."""
        if not isinstance(value, np.ndarray | np.generic):
            return value
        return relax.const(np.asarray(value, self._dtype), self._dtype)


def _constant_value(value: RelaxExpr) -> _Value:
    """Convert a Relax constant to a float64 array; return other expressions unchanged."""
    return value.value.numpy().astype(np.float64) if isinstance(value, GenericConst) else value
