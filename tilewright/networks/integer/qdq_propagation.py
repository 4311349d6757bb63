"""Determine which tensors of a quantised network are int8, in one pass over its operators.

Each variable of the network either stands for an int8 value, with a scale and a shape, or is
computed by the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from tilewright.core.tvm_types import RelaxExpr, RelaxVar
from tilewright.networks.errors import QuantisationError
from tilewright.networks.integer.tensor_views import Slices, channels_of
from tilewright.networks.relax import cpu_subgraphs
from tilewright.networks.relax.bindings import Binding, FlatGraph, shape_of, variables
from tilewright.networks.relax.cpu_subgraphs import CpuNode, HeldTensor
from tilewright.networks.relax.op_patterns import (
    DEQUANTISE,
    MOVES,
    QUANTISE,
    RESHAPES,
    Match,
    quantisation,
)
from tilewright.networks.requantisation import scale_of
from tilewright.targets.capabilities import Blocks
from tilewright.targets.layer import Scale, Value, channel_axis

Shape = tuple[int, ...]
CONCAT, SLICE = "relax.concat", "relax.strided_slice"


@dataclass(frozen=True)
class View:
    """Reference to an int8 tensor, with the shape and the scale in which it is read.

    The shape may differ from that of the stored tensor; the order of the elements is the same. A
    uint8 tensor of the model is represented as int8, by subtracting 128 from its elements.

    Attributes:
        value: name of the int8 tensor.
        shape: shape in which the tensor is read.
        scale: scale with which the tensor is read; None if it is unknown.
    """

    value: str
    shape: Shape
    scale: Scale | None = None

    @property
    def known_scale(self) -> Scale:
        """The scale, which must not be None."""
        assert self.scale is not None
        return self.scale


class QdqTensors:
    """Record of the int8 tensor or CPU result that each variable of a network stands for.

    Args:
        flat: flat view of the module.
        blocks: block sizes of the accelerator. If None, concatenations and slices are always
            copied.

    Attributes:
        flat: flat view of the module.
        values: int8 tensors, CPU results and network inputs, by name.
        quantised: int8 tensors that the host computes by quantising an input, as a mapping from the
            name of the tensor to the name of the input.
        nodes: the bindings that the CPU computes.
        host: names of the values that no layer writes.
        errors: the error for each variable whose scale is not supported.
        holders: the variable that represents a value in CPU islands, by value name.
        slices: concatenations and slices that need no copy; None if `blocks` is None.
    """

    def __init__(self, flat: FlatGraph, blocks: Blocks | None = None) -> None:
        self.flat = flat
        self.values: dict[str, Value] = {}
        self.quantised: dict[str, str] = {}
        self.nodes: list[CpuNode] = []
        self.host: set[str] = set()
        self.errors: dict[RelaxVar, QuantisationError] = {}
        self.holders: dict[str, RelaxVar] = {}
        self.slices = None if blocks is None else Slices(self.values, self.host, blocks)
        self._views: dict[RelaxVar, View] = {}
        self._owners: dict[RelaxVar, str] = {}
        self._taken: set[str] = set()
        self._last = {binding.node: binding.var for binding in flat.bindings}
        for param in flat.module["main"].params:
            if param in flat.data:
                self._parameter(param)

    def _parameter(self, param: RelaxVar) -> None:
        name, shape, dtype = self.unique(str(param.name)), shape_of(param), str(param.ty.dtype)
        self.values[name] = Value(name, shape or (), dtype)
        self.holders[name] = param
        self.host.add(name)
        self._owners[param] = name
        if dtype == "int8":
            self._views[param] = View(name, shape or ())
        elif dtype == "uint8":
            own = self.add(f"{name}.int8", shape or (), None)
            self.host.add(own.name)
            self.quantised[own.name] = name
            self._views[param] = View(own.name, own.shape)

    def unique(self, name: str) -> str:
        """Return a tensor name that is not taken yet, and mark it as taken.

        Args:
            name: preferred name. If it is taken, a number is appended.
        """
        free, count = name, 1
        while free in self._taken or not free:
            count += 1
            free = f"{name}#{count}"
        self._taken.add(free)
        return free

    def view(self, var: RelaxVar) -> View | None:
        """Return the int8 tensor that a variable stands for, or None if there is none.

        Args:
            var: the variable. An integer variable equals the int8 tensor; a float variable is
                dequantised from it.
        """
        return self._views.get(var)

    def real(self, var: RelaxVar) -> View | None:
        """Return the int8 tensor from which a float variable is dequantised, or None.

        Args:
            var: the variable.

        Raises:
            QuantisationError: the scale is only known at run time or is not supported.
        """
        if var in self.errors:
            raise self.errors[var]
        result = self._views.get(var)
        return result if result is not None and result.scale is not None else None

    def add(self, name: str, shape: Shape, scale: Scale | None) -> Value:
        """Register an int8 tensor that a layer or the host writes, and return its description.

        Args:
            name: name of the tensor. If it is taken, a number is appended.
            shape: shape of the tensor.
            scale: scale of the tensor; None if it is unknown.
        """
        value = Value(self.unique(name), shape, "int8", scale)
        self.values[value.name] = value
        self.holders[value.name] = cpu_subgraphs.int8_variable(value.name, shape)
        self._owners[self.holders[value.name]] = value.name
        return value

    def bind(self, var: RelaxVar, view: View) -> None:
        """Record that a variable stands for an int8 tensor.

        Args:
            var: the variable.
            view: the tensor, with the shape and scale in which the variable reads it.
        """
        self._views[var] = view

    def owner_name(self, var: RelaxVar) -> str | None:
        """Return the name of the tensor that contains a variable's data.

        Args:
            var: a variable that is stored itself or stands for an int8 tensor.

        Returns:
            The name, or None for a constant.
        """
        view = self._views.get(var)
        return self._owners.get(var) or (None if view is None else view.value)

    def held_tensors(self) -> dict[RelaxVar, HeldTensor]:
        """Return the int8 tensor that CPU islands read for each variable that is not stored.

        These are the variables that stand for an int8 tensor, for example as its dequantised form.

        Returns:
            The tensor, its shape, scale and element type, by variable.
        """
        result = {}
        for var, view in self._views.items():
            holder = self.holders[view.value]
            if var not in self._owners:
                dtype = str(var.ty.dtype)
                result[var] = HeldTensor(
                    holder, view.shape, None if "int" in dtype else view.scale, dtype
                )
        return result

    def compute_on_cpu(self, var: RelaxVar, value: RelaxExpr, node: str, name: str = "") -> str:
        """Register a variable as the result of a CPU computation.

        Args:
            var: the variable.
            value: expression of the variable.
            node: name of the source operator.
            name: name of the tensor. By default, it is derived from the operator's name.

        Returns:
            The name of the tensor.
        """
        whole = self._last.get(node, var).same_as(var)
        name = self.unique(name or (node if whole else f"{node}:{var.name}"))
        self.nodes.append(CpuNode(var, value, node, name))
        self._owners[var] = name
        self.holders[name] = var
        self.host.add(name)
        shape = shape_of(var) if hasattr(var.ty, "dtype") else None
        self.values[name] = Value(name, shape or (), str(getattr(var.ty, "dtype", "")))
        return name

    def integers(
        self, value: RelaxExpr, shape: Shape, scale: Scale | None, name: str, node: str = ""
    ) -> View:
        """Register an int8 tensor as the result of a CPU computation, and return a view of it.

        Args:
            value: expression of the tensor.
            shape: shape of the tensor.
            scale: scale of the tensor; None if it is unknown.
            name: name of the tensor.
            node: name of the source operator; "" for a tensor that only a layer needs.
        """
        var = cpu_subgraphs.int8_variable(name, shape)
        name = self.compute_on_cpu(var, value, node, name)
        self.values[name] = replace(self.values[name], scale=scale)
        self._views[var] = View(name, shape, scale)
        return self._views[var]

    def derive_view(
        self, view: View, move: Callable[[RelaxExpr], RelaxExpr], shape: Shape, name: str
    ) -> View:
        """Let the CPU compute a new int8 tensor from another tensor, and return a view of it.

        Args:
            view: the other tensor.
            move: function that returns the expression of the new tensor, given the variable of the
                other tensor.
            shape: shape of the new tensor.
            name: name of the new tensor.
        """
        holder = self.holders[self.in_shape(view, view.shape, name).value]
        return self.integers(move(holder), shape, view.scale, name)

    def in_shape(self, view: View, shape: Shape, name: str = "") -> View:
        """Return an int8 tensor that is stored in the given shape, with its elements in order.

        The CPU reshapes the tensor if necessary.

        Args:
            view: the tensor, with the shape and scale in which it is read.
            shape: shape in which the tensor must be stored.
            name: name of the reshaped tensor.
        """
        if self.values[view.value].shape == shape:
            return replace(view, shape=shape)
        if view.value in self.quantised:
            return self._input_in_shape(view, shape)
        expression = cpu_subgraphs.reshape_tensor(self.holders[view.value], shape)
        return self.integers(expression, shape, view.scale, name or f"{view.value}.reshaped")

    def _input_in_shape(self, view: View, shape: Shape) -> View:
        """Return a reshaped version of an int8 tensor that the host quantises from a network input.

        The host stores the quantised input in the new shape, so that nothing is copied later.

        Args:
            view: the quantised input.
            shape: the new shape.
        """
        name, scale = f"{view.value}.reshaped", self.values[view.value].scale
        known = self.values.get(name)
        if known is None or known.shape != shape or name not in self.quantised:
            assert scale is not None
            name = self.add(name, shape, scale).name
            self.host.add(name)
            self.quantised[name] = self.quantised[view.value]
        return View(name, shape, view.scale)

    def add_plain(self, binding: Binding) -> None:
        """Record the result of an operator that no layer computes.

        It is recorded as a view of an int8 tensor if the operator only reads or moves one.
        Otherwise, the CPU computes the operator.

        Args:
            binding: the operator.
        """
        op, var = binding.op, binding.var
        if not binding.args and binding.op.endswith("Var"):
            self._alias(var, binding.value)
        elif op in (QUANTISE, DEQUANTISE):
            self._quantisation(binding)
        elif op in RESHAPES and (view := self._views.get(binding.args[0])) and binding.shape:
            self._views[var] = replace(view, shape=binding.shape)
        elif (beside := self._view_of_concatenation(binding)) is not None:
            self._views[var] = beside
        elif op in MOVES and (parts := self._parts(binding)) is not None:
            replaced, scale = parts
            value, node = cpu_subgraphs.redirect_move(binding.value, replaced), binding.node
            view = self.integers(value, binding.shape or (), scale, node, node)
            self._views[var] = view
        else:
            self.compute_on_cpu(var, binding.value, binding.node)

    def _alias(self, var: RelaxVar, source: RelaxVar) -> None:
        if source in self._views:
            self._views[var] = self._views[source]
        elif source in self._owners:
            self._owners[var] = self._owners[source]

    def _quantisation(self, binding: Binding) -> None:
        var, source = binding.var, binding.args[0]
        q = quantisation(binding)
        try:
            scale = scale_of(binding.node, q) if q is not None else None
        except QuantisationError as error:
            self.errors[var] = error
            scale = None
        view = self._views.get(source)
        if scale is None:
            self.compute_on_cpu(var, binding.value, binding.node)
        elif view is not None and (
            binding.op == DEQUANTISE or (view.scale == scale and source not in self.errors)
        ):
            self._views[var] = replace(view, scale=scale)
            if self.values[view.value].scale is None:
                value = self.values[view.value]
                self.values[value.name] = replace(value, scale=scale)
        elif binding.op == QUANTISE:
            self._process_quantised(binding, scale)
        else:
            self.compute_on_cpu(var, binding.value, binding.node)

    def _process_quantised(self, binding: Binding, scale: Scale) -> None:
        """Process the quantisation of a float tensor that no layer computes.

        The host quantises the tensor if it is an input of the network. Otherwise, the CPU computes
        the quantisation.

        Args:
            binding: the quantisation.
            scale: scale of the int8 tensor.
        """
        var, source = binding.var, binding.args[0]
        if source in self.flat.data and source not in self._views:
            value = self.add(binding.node, binding.shape or (), scale)
            self.host.add(value.name)
            self.quantised[value.name] = self._owners[source]
            self._views[var] = View(value.name, value.shape, scale)
            return
        if str(var.ty.dtype) == "uint8":
            expression = cpu_subgraphs.quantise_tensor(source, scale)
            node = binding.node
            self._views[var] = self.integers(expression, binding.shape or (), scale, node, node)
            return
        name = self.compute_on_cpu(var, binding.value, binding.node)
        self.values[name] = replace(self.values[name], scale=scale)
        self._views[var] = View(name, binding.shape or (), scale)

    def _view_of_concatenation(self, binding: Binding) -> View | None:
        """Return the result of a concatenation or slice that needs no copy.

        Args:
            binding: the operator.

        Returns:
            The result, as a part or a whole of other tensors in memory. None if the binding is
            another operator, or if its data have to be copied.
        """
        if self.slices is None or binding.op not in (CONCAT, SLICE) or not binding.shape:
            return None
        fields = getattr(binding.args[0], "fields", (binding.args[0],))
        views = [self._views.get(field) for field in fields]
        read = [view for view in views if view is not None]
        scales = {view.scale for view in read}
        as_they_are = all(self.values[view.value].shape == view.shape for view in read)
        if len(read) < len(views) or len(scales) != 1 or not as_they_are:
            return None
        scale = scales.pop()
        value = Value(binding.node, binding.shape, "int8", scale)
        if scale is None or value.name in self.values:
            return None
        if binding.op == CONCAT:
            axis = int(binding.value.attrs.axis) % len(value.shape)
            fits = axis == channel_axis(value.shape) and self.slices.add_concatenation(
                value, [view.value for view in read]
            )
        else:
            taken = channels_of(binding, read[0].shape)
            fits = taken is not None and self.slices.add_range(value, read[0].value, taken[0])
        if not fits:
            return None
        self.add(value.name, value.shape, scale)
        return View(value.name, value.shape, scale)

    def side_by_side(self, views: Sequence[View], name: str) -> Value | None:
        """Return a tensor that contains the channels of several tensors in order, without a copy.

        Args:
            views: the tensors, which must be images of equal shapes.
            name: name of the new tensor.

        Returns:
            The new tensor, which has no scale of its own. None if the data would have to be copied.
        """
        values = [self.values[view.value] for view in views]
        shapes = [value.shape for value in values]
        if self.slices is None or any(len(s) != 4 or s != shapes[0] for s in shapes):
            return None
        n, c, h, w = shapes[0]
        whole = Value(self.unique(name), (n, c * len(shapes), h, w))
        if not self.slices.add_concatenation(whole, [value.name for value in values]):
            return None
        self.values[whole.name] = whole
        self.holders[whole.name] = cpu_subgraphs.int8_variable(whole.name, whole.shape)
        self._owners[self.holders[whole.name]] = whole.name
        return whole

    def _parts(self, binding: Binding) -> tuple[dict[RelaxVar, RelaxExpr], Scale | None] | None:
        """Return int8 variables that can replace the operands of a data movement.

        Args:
            binding: an operator that only moves data, such as a concatenation.

        Returns:
            The int8 variable for each operand, and their common scale. None if an operand is not
            int8 or if the scales differ.
        """
        replaced: dict[RelaxVar, RelaxExpr] = {}
        scales = set()
        if any(self.flat.is_constant(part) for part in getattr(binding.args[0], "fields", ())):
            return None  # a float constant cannot be part of an int8 tensor
        for operand in variables(binding.value):
            view = self._views.get(operand)
            if view is None or operand in self.flat.constants:
                return None
            scales.add(view.scale)
            whole = self.in_shape(view, view.shape)
            replaced[operand] = self.holders[whole.value]
        if len(scales) != 1 or any(self.flat.is_constant(a) for a in replaced):
            return None
        return replaced, scales.pop()


def rows_and_channels(shape: Shape) -> tuple[int, int]:
    """Return the numbers of rows and channels of a tensor.

    The last dimension is the channels. All other dimensions together are the rows.
    """
    return math.prod(shape[:-1]), shape[-1]


def is_kept(match: Match, names: Collection[str]) -> bool:
    """Return whether a fused call contains an operator that the user wants to keep in float.

    Args:
        match: the matched operators of the call.
        names: names of the operators that stay in float.
    """
    return any(node in names for node in nodes_of(match))


def nodes_of(match: Match) -> tuple[str, ...]:
    """Return the names of the source operators of a match, in execution order."""
    return tuple(dict.fromkeys((match.anchor.node, *(link.binding.node for link in match.chain))))
