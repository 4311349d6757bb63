"""Who reads the constants of a quantised graph, and which of their scales may differ."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from networks.quantise.channels import channel_axis
from networks.quantise.fold import attribute

PRODUCTS = ("Conv", "Gemm", "MatMul")


class Readers:
    """Finds them in a graph that may change. `made` says which operator writes a tensor,
    `constants` are those of the graph."""

    def __init__(
        self,
        graph: onnx.GraphProto,
        made: Mapping[str, onnx.NodeProto],
        constants: Mapping[str, onnx.TensorProto],
    ) -> None:
        self._graph, self._made, self._constants = graph, made, constants

    def output_axis(self, node: onnx.NodeProto) -> int | None:
        """The axis of a dequantised constant's scales, if it is that of the output channels of all
        products that read it and these add nothing but constants to their sums; else None."""
        rank = len(self._constants[node.input[0]].dims)
        axis = int(str(attribute(node, "axis", 1))) % max(rank, 1)
        readers = self._of(node.output[0])
        fits = all(
            reader.op_type in PRODUCTS
            and reader.input[1] == node.output[0]
            and channel_axis(reader) == axis
            and not self._adds_a_tensor(reader)
            for reader in readers
        )
        return axis if readers and fits else None

    def _of(self, name: str) -> list[onnx.NodeProto]:
        return [node for node in self._graph.node if name in node.input]

    def _adds_a_tensor(self, node: onnx.NodeProto) -> bool:
        """Whether one that is no constant is added to a result before it is quantised."""
        for reader in self._of(node.output[0]):
            if reader.op_type == "Add":
                others = [name for name in reader.input if name != node.output[0]]
                if not all(self._is_constant(name) for name in others):
                    return True
                if self._adds_a_tensor(reader):
                    return True
        return False

    def _is_constant(self, name: str) -> bool:
        """Whether a tensor is a constant, dequantised or as it is."""
        source = self._made.get(name)
        if source is not None and source.op_type == "DequantizeLinear":
            name = source.input[0]
        return name in self._constants
