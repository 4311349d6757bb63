"""Walks through a quantised network once and decides what runs in int8.

Decided are which float tensors are int8 tensors in some scale, which calls become layers, and what
is left to the CPU.
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
    """An int8 value in another shape, its numbers in their order; `scale` as it is read there, None
    where nothing says it. A uint8 tensor of the model is int8 less 128."""

    value: str
    shape: Shape
    scale: Scale | None = None

    @property
    def known(self) -> Scale:
        """The scale of a value that has one."""
        assert self.scale is not None
        return self.scale


class QdqTensors:
    """What every variable of the network is: a view of an int8 value, or something the CPU has.

    `values` are the int8 values and the network's inputs, `holders` the variables that stand for
    them in islands, `host` the values that no layer writes. `slices` are the values that lie inside
    others; where `blocks` are not given, all that are put together are moved.
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
        """A name for a tensor that no other has."""
        free, count = name, 1
        while free in self._taken or not free:
            count += 1
            free = f"{name}#{count}"
        self._taken.add(free)
        return free

    def view(self, var: RelaxVar) -> View | None:
        """The int8 value that a float is a multiple of, or that an integer is; None for others."""
        return self._views.get(var)

    def real(self, var: RelaxVar) -> View | None:
        """The int8 value that a float stands for. Raises `QuantisationError` where its scale is not
        known before the network runs."""
        if var in self.errors:
            raise self.errors[var]
        found = self._views.get(var)
        return found if found is not None and found.scale is not None else None

    def add(self, name: str, shape: Shape, scale: Scale | None) -> Value:
        """A new int8 value that a layer writes, or the host."""
        value = Value(self.unique(name), shape, "int8", scale)
        self.values[value.name] = value
        self.holders[value.name] = cpu_subgraphs.int8_variable(value.name, shape)
        self._owners[self.holders[value.name]] = value.name
        return value

    def bind(self, var: RelaxVar, view: View) -> None:
        """Say what a variable is."""
        self._views[var] = view

    def owner(self, var: RelaxVar) -> str | None:
        """The value that a variable is, be it an input of bytes that layers read as int8, or that
        it is made of; None for a constant."""
        view = self._views.get(var)
        return self._owners.get(var) or (None if view is None else view.value)

    def held(self) -> dict[RelaxVar, HeldTensor]:
        """How islands make the variables that are views."""
        found = {}
        for var, view in self._views.items():
            holder = self.holders[view.value]
            if var not in self._owners:
                dtype = str(var.ty.dtype)
                found[var] = HeldTensor(
                    holder, view.shape, None if "int" in dtype else view.scale, dtype
                )
        return found

    def computed(self, var: RelaxVar, value: RelaxExpr, node: str, name: str = "") -> str:
        """Leave `var = value` of a source operator to the CPU; the name of its tensor."""
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
        """Int8 numbers that the CPU moves about, for a source operator or as a layer needs them;
        `value` is the expression of them."""
        var = cpu_subgraphs.int8_variable(name, shape)
        name = self.computed(var, value, node, name)
        self.values[name] = replace(self.values[name], scale=scale)
        self._views[var] = View(name, shape, scale)
        return self._views[var]

    def derived(
        self, view: View, move: Callable[[RelaxExpr], RelaxExpr], shape: Shape, name: str
    ) -> View:
        """A value of that shape, which `move` makes of the expression of another."""
        holder = self.holders[self.in_shape(view, view.shape, name).value]
        return self.integers(move(holder), shape, view.scale, name)

    def in_shape(self, view: View, shape: Shape, name: str = "") -> View:
        """A value that has this shape itself, with the same numbers in their order."""
        if self.values[view.value].shape == shape:
            return replace(view, shape=shape)
        if view.value in self.quantised:
            return self._input_in_shape(view, shape)
        expression = cpu_subgraphs.reshaped(self.holders[view.value], shape)
        return self.integers(expression, shape, view.scale, name or f"{view.value}.reshaped")

    def _input_in_shape(self, view: View, shape: Shape) -> View:
        """A float input that the host quantises: it is packed in any shape of as many numbers."""
        name, scale = f"{view.value}.reshaped", self.values[view.value].scale
        known = self.values.get(name)
        if known is None or known.shape != shape or name not in self.quantised:
            assert scale is not None
            name = self.add(name, shape, scale).name
            self.host.add(name)
            self.quantised[name] = self.quantised[view.value]
        return View(name, shape, view.scale)

    def plain(self, binding: Binding) -> None:
        """A binding that is no layer: a view where it can be one, else work of the CPU."""
        op, var = binding.op, binding.var
        if not binding.args and binding.op.endswith("Var"):
            self._alias(var, binding.value)
        elif op in (QUANTISE, DEQUANTISE):
            self._quantisation(binding)
        elif op in RESHAPES and (view := self._views.get(binding.args[0])) and binding.shape:
            self._views[var] = replace(view, shape=binding.shape)
        elif (beside := self._beside(binding)) is not None:
            self._views[var] = beside
        elif op in MOVES and (parts := self._parts(binding)) is not None:
            replaced, scale = parts
            value, node = cpu_subgraphs.moved(binding.value, replaced), binding.node
            view = self.integers(value, binding.shape or (), scale, node, node)
            self._views[var] = view
        else:
            self.computed(var, binding.value, binding.node)

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
            self.computed(var, binding.value, binding.node)
        elif view is not None and (
            binding.op == DEQUANTISE or (view.scale == scale and source not in self.errors)
        ):
            self._views[var] = replace(view, scale=scale)
            if self.values[view.value].scale is None:
                value = self.values[view.value]
                self.values[value.name] = replace(value, scale=scale)
        elif binding.op == QUANTISE:
            self._written(binding, scale)
        else:
            self.computed(var, binding.value, binding.node)

    def _written(self, binding: Binding, scale: Scale) -> None:
        """Quantised by the host: a float input, or what the CPU computed."""
        var, source = binding.var, binding.args[0]
        if source in self.flat.data and source not in self._views:
            value = self.add(binding.node, binding.shape or (), scale)
            self.host.add(value.name)
            self.quantised[value.name] = self._owners[source]
            self._views[var] = View(value.name, value.shape, scale)
            return
        if str(var.ty.dtype) == "uint8":
            expression = cpu_subgraphs.quantised(source, scale)
            node = binding.node
            self._views[var] = self.integers(expression, binding.shape or (), scale, node, node)
            return
        name = self.computed(var, binding.value, binding.node)
        self.values[name] = replace(self.values[name], scale=scale)
        self._views[var] = View(name, binding.shape or (), scale)

    def _beside(self, binding: Binding) -> View | None:
        """What a concatenation or a slice is where it is a matter of addresses; else None."""
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
            fits = axis == channel_axis(value.shape) and self.slices.concatenated(
                value, [view.value for view in read]
            )
        else:
            taken = channels_of(binding, read[0].shape)
            fits = taken is not None and self.slices.taken(value, read[0].value, taken[0])
        if not fits:
            return None
        self.add(value.name, value.shape, scale)
        return View(value.name, value.shape, scale)

    def side_by_side(self, views: Sequence[View], name: str) -> Value | None:
        """A value whose channels are those of others, one behind another, where that is a matter of
        addresses; else None. It has no scale of its own."""
        values = [self.values[view.value] for view in views]
        shapes = [value.shape for value in values]
        if self.slices is None or any(len(s) != 4 or s != shapes[0] for s in shapes):
            return None
        n, c, h, w = shapes[0]
        whole = Value(self.unique(name), (n, c * len(shapes), h, w))
        if not self.slices.concatenated(whole, [value.name for value in values]):
            return None
        self.values[whole.name] = whole
        self.holders[whole.name] = cpu_subgraphs.int8_variable(whole.name, whole.shape)
        self._owners[self.holders[whole.name]] = whole.name
        return whole

    def _parts(self, binding: Binding) -> tuple[dict[RelaxVar, RelaxExpr], Scale | None] | None:
        """The int8 variables to move in place of a binding's operands, and their scale."""
        replaced: dict[RelaxVar, RelaxExpr] = {}
        scales = set()
        if any(self.flat.is_constant(part) for part in getattr(binding.args[0], "fields", ())):
            return None  # numbers of int8 and of floats do not go into one tensor
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
    """Of a tensor whose last dimension is the channels."""
    return math.prod(shape[:-1]), shape[-1]


def is_kept(match: Match, names: Collection[str]) -> bool:
    """Whether a call has an operator that is to stay in float."""
    return any(node in names for node in nodes_of(match))


def nodes_of(match: Match) -> tuple[str, ...]:
    """The source operators of a match, in order."""
    return tuple(dict.fromkeys((match.anchor.node, *(link.binding.node for link in match.chain))))
