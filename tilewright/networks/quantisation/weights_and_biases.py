"""Quantises weights and biases, and inserts QuantizeLinear and DequantizeLinear into a float graph.

Weights become int8 and biases int32, each followed by a DequantizeLinear. The scale of a bias is
that of the accumulators: the scale of the data times the scale of the weights. Every int8
activation gets one pair of QuantizeLinear and DequantizeLinear after the operator that computes it,
and its readers use the dequantised tensor. If a float operator reads the result of another float
operator, it reads the original float tensor. Scales are powers of two, and zero points are 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tilewright.networks.onnx.graph import NormalGraph
from tilewright.networks.onnx.size_limits import infer_types
from tilewright.networks.quantisation.exponents import (
    Exponents,
    channel_axis,
    quantise_array,
    shape_along,
)
from tilewright.networks.quantisation.plan import Group, QuantisationPlan


def insert_qdq(
    normal: NormalGraph, plan: QuantisationPlan, exponents: Exponents
) -> onnx.ModelProto:
    """Convert a folded float model to QDQ form. Inputs, outputs and operators keep their names.

    Args:
        normal: float model in normal form, with BatchNorms folded.
        plan: the operators that become int8.
        exponents: the exponents of the activations' and weights' power-of-two scales.

    Returns:
        The model in QDQ form.
    """
    writer = _QdqWriter(normal, exponents)
    for group in plan.groups:
        if group.weight is not None:
            writer.weigh(group.nodes[0], group.weight)
        for node, place in group.biases:
            writer.bias(node, place, group)
    return writer.model(plan)


class _QdqWriter:
    """Writes the QDQ form (QuantizeLinear and DequantizeLinear pairs) of a float model.

    Args:
        normal: the folded float model. It is copied.
        exponents: exponents of the power-of-two scales.
    """

    def __init__(self, normal: NormalGraph, exponents: Exponents) -> None:
        self._copy = onnx.ModelProto()
        self._copy.CopyFrom(normal.model)
        self._exponents = exponents
        self._nodes = {node.name: node for node in self._copy.graph.node}
        self._constants = {t.name: t for t in self._copy.graph.initializer}
        self._tensors: dict[str, onnx.TensorProto] = {}
        self._before: list[onnx.NodeProto] = []
        self._used = set(self._nodes) | set(self._constants) | set(normal.types())
        self._used.update(name for node in self._copy.graph.node for name in node.output)
        self._integers: dict[tuple[str, tuple[int, ...], str], str] = {}

    def weigh(self, node: str, weight: str) -> None:
        """Quantise the weights of a layer to int8; the layer then reads the dequantised weights.

        Args:
            node: name of the layer's first operator.
            weight: name of the weights.
        """
        values = numpy_helper.to_array(self._constants[weight])
        exponents, axis = self._exponents.of_weights(node), channel_axis(self._nodes[node])
        integers = quantise_array(values, shape_along(exponents, axis, values.ndim))
        self._nodes[node].input[1] = self._store_integers(weight, integers, exponents, axis)

    def bias(self, node: str, place: int, group: Group) -> None:
        """Quantise a bias to int32, at the scale of the accumulators.

        Args:
            node: name of the operator that reads the bias.
            place: index of the bias among the operator's inputs.
            group: the int8 layer that the operator belongs to.
        """
        name = self._nodes[node].input[place]
        data = self._exponents.activations[group.operands[0]]
        exponents = data + self._exponents.of_weights(group.nodes[0])
        values = np.asarray(numpy_helper.to_array(self._constants[name]), np.float64)
        # A bias has at most one axis longer than 1.
        axis = int(np.argmax(values.shape)) if values.ndim else 0
        steps = np.rint(np.ldexp(values, -shape_along(exponents, axis, values.ndim))).astype(
            np.int32
        )
        self._nodes[node].input[place] = self._store_integers(name, steps, exponents, axis)

    def model(self, plan: QuantisationPlan) -> onnx.ModelProto:
        """Return the finished QDQ model."""
        graph = self._copy.graph
        outputs = {output.name for output in graph.output}
        computed = {name for node in graph.node for name in node.output}
        pairs: dict[str, list[onnx.NodeProto]] = {}
        readers: dict[str, str] = {}
        for name in sorted(plan.tensors):
            # An output of the network keeps its name after it is dequantised.
            result = name in outputs & computed
            float_name = self._free_name(f"{name}/float") if result else name
            int8_name = self._free_name(f"{name}/int8")
            readers[name] = name if result else self._free_name(f"{name}/dequantised")
            scaled = [self._scale(self._exponents.activations[name]), self._zero("int8")]
            pairs[name] = [
                self._node("QuantizeLinear", [float_name, *scaled], int8_name, name),
                self._node("DequantizeLinear", [int8_name, *scaled], readers[name], name),
            ]
        int8_only = {g.output for g in plan.groups} | {
            node.output[0] for node in graph.node if node.name in plan.moves
        }
        nodes = [*self._before, *(n for i in graph.input for n in pairs.get(i.name, []))]
        for node in graph.node:
            following = [pair for name in node.output for pair in pairs.get(name, [])]
            for i, name in enumerate(node.input):
                if name in pairs:
                    rounded = node.name in plan.nodes or name in int8_only
                    node.input[i] = readers[name] if rounded else pairs[name][0].input[0]
            for i, name in enumerate(node.output):
                node.output[i] = pairs[name][0].input[0] if name in pairs else name
            nodes += [node, *following]
        return self._finish_model(nodes)

    def _finish_model(self, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
        graph = self._copy.graph
        read = {name for node in nodes for name in node.input}
        read.update(output.name for output in graph.output)
        kept = [t for t in (*graph.initializer, *self._tensors.values()) if t.name in read]
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend(nodes)
        graph.initializer.extend(kept)
        return infer_types(self._copy)

    def _store_integers(
        self, name: str, steps: NDArray[np.int8] | NDArray[np.int32], exponents: NDArray[np.int64],
        axis: int,
    ) -> str:  # fmt: skip
        """Store a constant as integers, followed by a DequantizeLinear.

        Args:
            name: name of the constant.
            steps: the integers.
            exponents: exponents of the scales, of shape (1,), or (channels,) for one exponent per
                channel.
            axis: axis of the channels.

        Returns:
            The name of the dequantised tensor.
        """
        kind = steps.dtype.name
        key = (name, tuple(exponents.tolist()), kind)
        if key in self._integers:
            return self._integers[key]
        stored, back = self._free_name(f"{name}/{kind}"), self._free_name(f"{name}/dequantised")
        self._tensors[stored] = numpy_helper.from_array(np.ascontiguousarray(steps), stored)
        if exponents.size == 1:
            inputs = [stored, self._scale(int(exponents[0])), self._zero(kind)]
            node = self._node("DequantizeLinear", inputs, back, name)
        else:
            scale = self._free_name(f"{name}/{kind}/scales")
            self._tensors[scale] = numpy_helper.from_array(
                np.ldexp(np.float32(1), exponents), scale
            )
            zero = self._share_constant(
                f"zero/{kind}/{exponents.size}", np.zeros(exponents.size, kind)
            )
            node = self._node("DequantizeLinear", [stored, scale, zero], back, name)
            node.attribute.append(helper.make_attribute("axis", axis))
        self._before.append(node)
        self._integers[key] = back
        return back

    def _scale(self, exponent: int) -> str:
        return self._share_constant(f"scale/2^{exponent}", np.float32(2.0**exponent))

    def _zero(self, kind: str) -> str:
        return self._share_constant(f"zero/{kind}", np.zeros((), kind))

    def _share_constant(self, name: str, value: np.ndarray | np.generic) -> str:
        """Store a constant that several operators read, unless it exists, and return its name.

        Args:
            name: name of the constant.
            value: its value.
        """
        if name not in self._tensors:
            assert name not in self._used, name
            self._tensors[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def _node(self, op: str, inputs: list[str], output: str, name: str) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [output], name=self._free_name(f"{name}/{op}"))

    def _free_name(self, name: str) -> str:
        """Return a name that is not used yet."""
        free = next(candidate for candidate in _number_names(name) if candidate not in self._used)
        self._used.add(free)
        return free


def _number_names(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}.{number}"
        number += 1
