"""Writes the operators and constants that one recurrent operator becomes, under its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tilewright.networks.graph import NormalGraph, Shape
from tilewright.networks.onnx_file import is_stub, stub


class RecurrentWriter:
    """`nodes` are those written so far; constants go into the graph at once."""

    def __init__(self, normal: NormalGraph, node: onnx.NodeProto) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._normal = normal
        self._node = node
        self._columns: dict[int, str] = {}
        self._taken = {operator.name for operator in normal.operators}

    def emit(self, kind: str, inputs: Sequence[str], name: str, **attributes: object) -> str:
        """Append an operator; its result."""
        name = self._named(name)
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def split(self, source: str, sizes: Sequence[int], axis: int, name: str) -> list[str]:
        """Parts of these sizes along an axis; their names."""
        if len(sizes) == 1:
            return [source]
        name = self._named(name)
        results = [f"{name}.{place}" for place in range(len(sizes))]
        lengths = self.integers(f"{name}/sizes", sizes)
        node = helper.make_node("Split", [source, lengths], results, name=name, axis=axis)
        self.nodes.append(node)
        return results

    def gates(self, source: str, count: int, size: int, name: str) -> list[str]:
        """As many parts of so many columns each; their names. Each is read alone, so that what
        follows it becomes one operator with it, which the results of a Split do not."""
        if count == 1:
            return [source]
        return [
            self._columns_of(source, place * size, (place + 1) * size, f"{name}.{place}")
            for place in range(count)
        ]

    def _columns_of(self, source: str, begin: int, end: int, name: str) -> str:
        given = [self._column(place) for place in (begin, end, 1)]
        return self.emit("Slice", [source, *given], name)

    def _column(self, place: int) -> str:
        """A constant int64 vector of that number, written once; its name."""
        if place not in self._columns:
            self._columns[place] = self.integers(f"column/{place}", [place])
        return self._columns[place]

    def columns(self, whole: str, sizes: Mapping[str, int]) -> list[str]:
        """Constants, written once, that are the columns of one of (rows, columns), one behind
        another: by the end of their names so many columns."""
        names = [f"{whole}/{end}" for end in sizes]
        if names[0] in {tensor.name for tensor in self._normal.graph.initializer}:
            return names
        tensor = self._normal.tensors()[whole]
        values, begin = None if is_stub(tensor) else numpy_helper.to_array(tensor), 0
        for name, size in zip(names, sizes.values(), strict=True):
            part = None if values is None else values[:, begin : begin + size]
            self._add(name, (tensor.dims[0], size), part)
            begin += size
        return names

    def integers(self, name: str, values: Sequence[int]) -> str:
        """A constant int64 vector; its name."""
        return self.constant(f"{name}", (len(values),), np.array(values, np.int64))

    def constant(self, name: str, shape: Shape, values: NDArray[np.generic] | None) -> str:
        """A constant of that shape, named after the operator; its name."""
        name = f"{self._node.name}/{name.removeprefix(f'{self._node.name}/')}#"
        self._add(name, shape, values)
        return name

    def _named(self, name: str) -> str:
        """A name that no operator has."""
        name = f"{self._node.name}/{name.removeprefix(f'{self._node.name}/')}"
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def _add(self, name: str, shape: Shape, values: NDArray[np.generic] | None) -> None:
        """A constant of that name; None stands for float32 without data."""
        if values is None:
            self._normal.add_tensor(stub(name, shape, onnx.TensorProto.FLOAT))
        else:
            array = np.ascontiguousarray(values)
            self._normal.add_tensor(numpy_helper.from_array(array, name))
