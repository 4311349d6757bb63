"""Small quantised ONNX models for tests.

Their operators lie between DequantizeLinear and QuantizeLinear nodes with power-of-two scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
Exponent = int | NDArray[np.int64]
"""The exponent of a scale: one for a whole tensor, or an array with one per channel (channels,)."""


class Graph:
    """A quantised graph under construction.

    Methods take and return the names of float tensors, most of which are results of
    DequantizeLinear.
    """

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.random = np.random.default_rng(seed)

    def input(self, name: str, shape: Sequence[int]) -> str:
        """Add a float input."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
        return name

    def constant(self, name: str, value: Any) -> str:
        """Add an initializer."""
        self.tensors.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(self, kind: str, name: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node and return the name of its float result."""
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}:0"], name=name, **attributes))
        return f"{name}:0"

    def quantise(self, x: str, exponent: int) -> str:
        """Quantise to int8 with the scale 2^exponent, and dequantise."""
        name = f"{x.partition(':')[0]}.q{len(self.nodes)}"
        return self.dequantise(self.op("QuantizeLinear", name, self._scaled(x, exponent)), exponent)

    def dequantise(self, q: str, exponent: Exponent, axis: int = 0) -> str:
        """Dequantise an int8 tensor. The exponent may be an array with one entry per channel."""
        name = f"{q.partition(':')[0]}.dq{len(self.nodes)}"
        inputs = self._scaled(q, exponent)
        if np.ndim(exponent):
            return self.op("DequantizeLinear", name, inputs, axis=axis)
        return self.op("DequantizeLinear", name, inputs)

    def weight(
        self, name: str, shape: Sequence[int], exponent: Exponent, largest: int = 127, axis: int = 0
    ) -> str:
        """Add random int8 weights and dequantise them."""
        values = self.random.integers(-largest, largest + 1, list(shape)).astype(np.int8)
        return self.dequantise(self.constant(f"{name}.weight", values), exponent, axis)

    def bias(self, name: str, channels: int, exponent: Exponent, largest: int = 2000) -> str:
        """Add a random int32 bias and dequantise it."""
        values = self.random.integers(-largest, largest + 1, channels).astype(np.int32)
        scale = self.constant(f"{name}.bias.scale", np.ldexp(np.float32(1), exponent))
        zero = self.constant(f"{name}.bias.zero", np.zeros_like(exponent, np.int32))
        bias = self.constant(f"{name}.bias", values)
        extra = {"axis": 0} if np.ndim(exponent) else {}
        return self.op("DequantizeLinear", f"{name}.bias.dq", [bias, scale, zero], **extra)

    def conv(
        self, x: str, name: str, shape: Sequence[int], exponents: tuple[int, Exponent],
        **attributes: Any,
    ) -> str:  # fmt: skip
        """Add a convolution with bias. `exponents` are those of the data and of the weights."""
        data, weight = exponents
        inputs = [x, self.weight(name, shape, weight), self.bias(name, shape[0], data + weight)]
        return self.op("Conv", name, inputs, **attributes)

    def model(self, *outputs: tuple[str, Sequence[int]]) -> onnx.ModelProto:
        """Return the finished model."""
        infos = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
            for name, shape in outputs
        ]
        graph = helper.make_graph(self.nodes, "test", self.inputs, infos, self.tensors)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=8)

    def _scaled(self, x: str, exponent: Exponent) -> list[str]:
        position = len(self.nodes)
        scale = self.constant(f"scale{position}", np.ldexp(np.float32(1), exponent))
        return [x, scale, self.constant(f"zero{position}", np.zeros_like(exponent, np.int8))]


def normal(shape: Sequence[int], seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(list(shape), dtype=np.float32)
