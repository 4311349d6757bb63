"""A flat view of a Relax function: its bindings, with their readers and source operators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tvm import relax
from tvm.ir import Call, GenericConst

from tilewright.core.tvm_types import IRModule, RelaxBinding, RelaxExpr, RelaxType, RelaxVar


@dataclass(frozen=True, eq=False)
class Binding:
    """A binding `var = op(args)` of a Relax function.

    Attributes:
        var: the variable.
        value: the bound expression.
        op: name of the called operator. If the expression is not a call, name of its Python class.
        args: arguments of the call; empty if the expression is not a call.
        node: name of the operator of the source model to which the binding belongs; "" if unknown.
    """

    var: RelaxVar
    value: RelaxExpr
    op: str
    args: tuple[RelaxExpr, ...]
    node: str

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The static shape of the result, or None if it is not a tensor of known shape."""
        return shape_of(self.var)


@dataclass
class FlatGraph:
    """The bindings of a module's function `main`, in execution order.

    Dictionaries and sets of variables compare variables by identity.

    Attributes:
        module: the module.
        bindings: the bindings.
        data: the parameters that change with each run. All other parameters are weights.
        by_var: the binding of each variable.
        users: the bindings that read each variable. A binding that reads it twice occurs twice.
        constants: the variables that depend only on weights.
    """

    module: IRModule
    bindings: list[Binding]
    data: frozenset[RelaxVar]
    by_var: dict[RelaxVar, Binding] = field(init=False)
    users: dict[RelaxVar, list[Binding]] = field(init=False)
    constants: set[RelaxVar] = field(init=False)

    def __post_init__(self) -> None:
        self.by_var = {binding.var: binding for binding in self.bindings}
        self.users = {}
        params = self.module["main"].params
        self.constants = {param for param in params if param not in self.data}
        for binding in self.bindings:
            operands = list(variables(binding.value))
            for operand in operands:
                self.users.setdefault(operand, []).append(binding)
            # A region without inputs may draw random numbers: it is no weight.
            region = binding.op == "relax.call_dps_packed"
            if not region and all(operand in self.constants for operand in operands):
                self.constants.add(binding.var)

    def is_constant(self, value: RelaxExpr) -> bool:
        """Return whether a value depends only on weights."""
        return isinstance(value, GenericConst) or value in self.constants

    def is_weight(self, value: RelaxExpr) -> bool:
        """Return whether a value is a parameter that contains a weight."""
        return value in self.constants and value not in self.by_var

    def sole_user(self, var: RelaxVar) -> Binding | None:
        """Return the only binding that reads a variable.

        Args:
            var: the variable.

        Returns:
            The binding, or None if the variable is not read exactly once.
        """
        readers = self.users.get(var, [])
        return readers[0] if len(readers) == 1 else None


def flatten(
    module: IRModule, data: Iterable[RelaxVar], owners: Mapping[RelaxVar, str]
) -> FlatGraph:
    """Create the flat view of a module's function `main`.

    Args:
        module: the module.
        data: the parameters that change with each run.
        owners: name of each source operator, by the last variable that the operator binds. All
            bindings between this variable and the last variable of the previous operator belong to
            the same operator.
    """
    raw = [b for block in module["main"].body.blocks for b in block.bindings]
    names = _spread(raw, owners)
    bindings = []
    for item, node in zip(raw, names, strict=True):
        value = item.value
        called = isinstance(value, Call)
        op = str(getattr(value.op, "name", "")) if called else type(value).__name__
        bindings.append(Binding(item.var, value, op, tuple(value.args) if called else (), node))
    return FlatGraph(module, bindings, frozenset(data))


def dynamic_nodes(flat: FlatGraph) -> tuple[str, ...]:
    """Return the names of the operators at which shapes start to depend on tensor values.

    Operators whose inputs already have such a shape are left out.

    Args:
        flat: the graph.
    """
    dynamic: set[RelaxVar] = set()
    names: dict[str, None] = {}
    for binding in flat.bindings:
        if _is_static(binding.var.ty):
            continue
        if dynamic.isdisjoint(variables(binding.value)):
            names[binding.node] = None
        dynamic.add(binding.var)
    return tuple(names)


def _is_static(ty: RelaxType) -> bool:
    """Return whether all tensors in a type have known shapes."""
    if isinstance(ty, relax.TupleType):
        return all(map(_is_static, ty.fields))
    shape = getattr(ty, "shape", None)
    if not isinstance(ty, relax.TensorType):
        return True
    sizes = getattr(shape, "values", None)
    return sizes is not None and all(hasattr(size, "value") for size in sizes)


def shape_of(value: RelaxExpr) -> tuple[int, ...] | None:
    """Return the static shape of a tensor.

    Args:
        value: expression of the tensor.

    Returns:
        The shape, or None if a size is unknown or the value is not a tensor.
    """
    shape = getattr(value.ty, "shape", None)
    if shape is None or not hasattr(shape, "values"):
        return None
    sizes = [getattr(size, "value", None) for size in shape.values]
    return (
        None
        if any(size is None for size in sizes)
        else tuple(int(s) for s in sizes if s is not None)
    )


def is_per_channel(whole: tuple[int, ...] | None, shape: tuple[int, ...] | None, axis: int) -> bool:
    """Return whether a tensor has one element, or one element per channel of another tensor.

    Args:
        whole: shape of the other tensor, or None if it is unknown.
        shape: shape of the tensor, or None if it is unknown. It is aligned with `whole` as in
            broadcasting.
        axis: index of the channel dimension in `whole`.
    """
    if shape is None or whole is None or len(shape) > len(whole):
        return False
    aligned = (1,) * (len(whole) - len(shape)) + shape
    size = math.prod(shape)
    return size == 1 or aligned[axis] == whole[axis] == size


def _spread(raw: Sequence[RelaxBinding], owners: Mapping[RelaxVar, str]) -> list[str]:
    names, pending = [""] * len(raw), 0
    for i, item in enumerate(raw):
        if item.var in owners:
            names[pending : i + 1] = [owners[item.var]] * (i + 1 - pending)
            pending = i + 1
    return names


def variables(value: RelaxExpr) -> Iterator[RelaxVar]:
    """Yield the variables that an expression reads. A variable that is read twice occurs twice.

    Args:
        value: the expression.
    """
    if isinstance(value, relax.Var):
        yield value
    elif isinstance(value, Call):
        for arg in value.args:
            yield from variables(arg)
    elif isinstance(value, relax.Tuple):
        for item in value.fields:
            yield from variables(item)
    elif isinstance(value, relax.TupleGetItem):
        yield from variables(value.tuple_value)
    elif isinstance(value, (relax.If, relax.SeqExpr, relax.Function)):
        yield from relax.analysis.free_vars(value)
