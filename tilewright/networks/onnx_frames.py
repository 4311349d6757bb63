"""Holds the frames of volumes while a graph is rewritten, and the operators written so far.

Volumes (n, c, d, h, w) become frames (n * d, c, h, w), and frames volumes. A tensor is moved once,
when an operator first reads it that way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tilewright.networks.graph import NormalGraph, Shape
from tilewright.networks.onnx_file import is_stub, stub

VOLUME = 5
"""The rank of a tensor of volumes."""
DEPTH_FIRST = (0, 2, 1, 3, 4)
"""Swaps channels and depth."""
Indices = NDArray[np.int64]
Numbers = NDArray[Any]


class Frames:
    """`framed` names the frames of a tensor, by the tensor's name."""

    def __init__(self, normal: NormalGraph) -> None:
        self.normal = normal
        self.shapes, self.types = normal.shapes(), normal.types()
        self.constants = normal.tensors()
        self.framed: dict[str, str] = {}
        self.nodes: list[onnx.NodeProto] = []
        self._whole = {info.name for info in normal.graph.input} | set(self.constants)
        self._names = {operator.name for operator in normal.operators}

    def is_volume(self, name: str) -> bool:
        """Whether a tensor is of volumes of a known shape."""
        shape = self.shapes.get(name, ())
        return len(shape) == VOLUME and min(shape) > 0

    def of(self, name: str) -> str:
        """The frames (n * d, c, h, w) of a tensor of volumes (n, c, d, h, w)."""
        if name not in self.framed:
            n, c, d, h, w = self.shapes[name]
            moved = self.add("Transpose", [name], f"{name}/depth_first", perm=DEPTH_FIRST)
            self.framed[name] = self.reshape(moved, f"{name}/frames", (n * d, c, h, w))
        return self.framed[name]

    def make_whole(self, name: str) -> None:
        """Have a tensor as volumes."""
        if name in self.framed and name not in self._whole:
            n, c, d, h, w = self.shapes[name]
            apart = self.reshape(self.framed[name], f"{name}/depth", (n, d, c, h, w))
            self.add("Transpose", [apart], name, perm=DEPTH_FIRST)
            self._whole.add(name)

    def append_whole(self, node: onnx.NodeProto) -> None:
        """An operator of the original as it is."""
        self.nodes.append(node)
        self._whole.update(node.output)

    def append(self, node: onnx.NodeProto) -> None:
        """An operator of the original whose result has become frames."""
        name = node.output[0]
        node.output[0] = self.framed[name] = f"{name}/frames"
        self.nodes.append(node)

    def add(self, kind: str, inputs: Sequence[str], result: str, **attributes: object) -> str:
        """An operator that the original had not; its result."""
        name = f"{result}/{kind.lower()}"
        while name in self._names:
            name += "_"
        self._names.add(name)
        node = helper.make_node(kind, inputs, [result], name=name, **attributes)
        self.nodes.append(node)
        self.normal.add_operator(node)
        return result

    def reshape(self, source: str, result: str, shape: Shape) -> str:
        """The same numbers with other axes."""
        wanted = self._constant(f"{result}/shape", np.array(shape, np.int64))
        return self.add("Reshape", [source, wanted], result)

    def gather(self, source: str, result: str, volumes: str, places: Indices) -> str:
        """Of the frames `source` of volumes (n, c, d, h, w), those at these places (m,) of each,
        zeros where there are none. Shapes: (n * d, c, ...) as (n * m, c, ...)."""
        images, depth = self.shapes[volumes][0:3:2]
        inside = (places >= 0) & (places < depth)
        chosen = (np.arange(images)[:, None] * depth + np.where(inside, places, 0)).ravel()
        made = source
        if not np.array_equal(chosen, np.arange(images * depth)):
            where = self._constant(f"{result}/places", chosen)
            made = self.add("Gather", [source, where], f"{result}/gathered")
        if inside.all():
            return made
        mask = self._constant(f"{result}/inside", np.tile(inside, images).reshape(-1, 1, 1, 1))
        zero = self._constant(f"{result}/zero", np.zeros((), np.float32))
        return self.add("Where", [mask, made, zero], f"{result}/padded")

    def derived(self, name: str, tail: str, change: Callable[[Numbers], Numbers]) -> str:
        """A constant made of another one of any shape, also where that has no data."""
        result, tensor = f"{name}/{tail}", self.constants[name]
        if result in self.constants:
            return result
        if is_stub(tensor):
            kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            shape = change(np.broadcast_to(np.zeros((), kind), tuple(tensor.dims))).shape
            made = stub(result, shape, tensor.data_type)
        else:
            numbers = np.ascontiguousarray(change(numpy_helper.to_array(tensor)))
            made = numpy_helper.from_array(numbers, result)
        self.normal.add_tensor(made)
        self.constants[result] = made
        return result

    def _constant(self, name: str, values: Numbers) -> str:
        self.normal.add_tensor(numpy_helper.from_array(values, name))
        return name
