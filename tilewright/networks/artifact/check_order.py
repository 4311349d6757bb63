"""Checks what a manifest says of an inference: no step lacks a tensor or gets one of another size.

What passes here runs: whatever else a manifest says, `infer` finds each tensor that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.networks.artifact.run import Order
from tilewright.targets.layer import Value

Ports = Sequence[tuple[Sequence[Value], Sequence[Value]]]
"""Of each segment, what it takes and what it gives."""
_OF_INT8 = ("int8", "uint8")


def check_order(order: Order, ports: Ports) -> None:
    """Raises `ValueError` naming the first tensor that does not fit."""
    segments = [number for kind, number in order.steps if kind == "segment"]
    islands = [number for kind, number in order.steps if kind == "cpu"]
    if len(segments) + len(islands) != len(order.steps):
        raise ValueError("a step is neither a segment nor work of the CPU")
    if segments != list(range(len(ports))) or sorted(islands) != list(range(len(order.islands))):
        raise ValueError("its steps are not each of its segments and islands, once")
    _Tensors(order).check(ports)


class _Tensors:
    """The tensors that are there at a point of an inference, with their elements and types."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.known = {value.name: (_elements(value), value.dtype) for value in order.inputs}

    def check(self, ports: Ports) -> None:
        for kind, number in self.order.steps:
            if kind == "segment":
                self._segment(number, *ports[number])
            else:
                island = self.order.islands[number]
                for name in island.inputs:
                    self._need(name)
                for name in island.outputs:
                    value = self._value(name)
                    self.known[name] = _elements(value), value.dtype
        for value in self.order.outputs:
            self._result(value)

    def _segment(self, number: int, loads: Sequence[Value], stores: Sequence[Value]) -> None:
        if {port.name for port in loads} != set(self.order.loads[number]):
            raise ValueError(f"segment {number} takes other tensors than are said")
        for port in loads:
            if self._need(port.name)[0] != _elements(port):
                raise ValueError(f"segment {number} takes '{port.name:.60}' of another size")
        for port in stores:
            value = self.order.values.get(port.name)
            if value is not None and _elements(value) != _elements(port):
                raise ValueError(f"segment {number} gives '{port.name:.60}' of another size")
            self.known[port.name] = _elements(port), port.dtype

    def _need(self, name: str) -> tuple[int, str]:
        """A tensor that is there, or that the host quantises."""
        if name not in self.known:
            value = self._value(name)
            count, dtype = self.known.get(self.order.quantised.get(name, ""), (-1, ""))
            if count != _elements(value):
                raise ValueError(f"'{name:.60}' is needed and not there")
            if dtype not in _OF_INT8 and value.scale is None:
                raise ValueError(f"'{name:.60}' has no scale to quantise it by")
            self.known[name] = count, "int8"
        return self.known[name]

    def _result(self, value: Value) -> None:
        """An output, as it is there or as the host makes it of an int8 tensor."""
        found = self.known.get(value.name)
        if found is None or (found[1] == "int8" and value.dtype != "int8"):
            held = self.order.results.get(value.name, "")
            found = self._need(held)
            scale = value.scale or self._value(held).scale
            if found[1] == "int8" and value.dtype not in _OF_INT8 and scale is None:
                raise ValueError(f"output '{value.name:.60}' has no scale")
        if found[0] != _elements(value):
            raise ValueError(f"output '{value.name:.60}' has another size")

    def _value(self, name: str) -> Value:
        if name not in self.order.values:
            raise ValueError(f"there is no tensor '{name:.60}'")
        return self.order.values[name]


def _elements(value: Value) -> int:
    return prod(value.shape)
