"""Builds a float ONNX graph whose tensors have known shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """A tensor by name; its shape in elements, batch first."""

    name: str
    shape: Shape


class FloatGraph:
    """Nodes and constants so far. `rng` draws whatever is drawn; `macs` are those of one
    inference."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = int(self.rng.choice([11, 13, 15, 17, 19, 21]))
        self.macs = 0
        self.inputs: list[Tensor] = []
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def input(self, shape: Shape) -> Tensor:
        """A float input of the network."""
        found = Tensor(f"x{len(self.inputs)}", shape)
        self.inputs.append(found)
        return found

    def constant(self, value: Any) -> str:
        """An initializer; its name."""
        name = f"k{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, shape: Shape, reads: int) -> str:
        """Normal weights of a product that sums `reads` of them: its results are as large as its
        data."""
        return self.constant(self.normal(shape) / np.float32(math.sqrt(reads)))

    def normal(self, shape: Shape) -> NDArray[np.float32]:
        """Standard normal, of that shape."""
        return self.rng.standard_normal(shape, dtype=np.float32)

    def op(self, kind: str, reads: Sequence[Tensor | str], shape: Shape, **given: Any) -> Tensor:
        """A node of one result, of that shape."""
        name = f"{kind.lower()}{len(self._nodes)}"
        inputs = [each if isinstance(each, str) else each.name for each in reads]
        self._nodes.append(helper.make_node(kind, inputs, [f"{name}_y"], name=name, **given))
        return Tensor(f"{name}_y", shape)

    def pick(self, values: Sequence[Any]) -> Any:
        """One of them, each as likely."""
        return values[int(self.rng.integers(len(values)))]

    def chance(self, share: float) -> bool:
        """True so often."""
        return bool(self.rng.random() < share)

    def model(self, outputs: Sequence[Tensor]) -> onnx.ModelProto:
        """The finished model, checked."""
        graph = helper.make_graph(
            self._nodes, "drawn", [_info(each) for each in self.inputs],
            [_info(each) for each in outputs], self._constants,
        )  # fmt: skip
        opset = helper.make_opsetid("", self.opset)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
        onnx.checker.check_model(model, full_check=True)
        return model


def _info(tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.shape)
