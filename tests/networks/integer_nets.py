"""Integer graphs for tests, and onnxruntime's values for every tensor in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx_graphs import session

from tilewright.networks.integer.graph import IntegerGraph
from tilewright.networks.integer.reference import layer_reference
from tilewright.targets.capabilities import Blocks

BLOCKS = Blocks(1, 16, 16)


def random_inputs(graph: IntegerGraph, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Draw standard normal values for float inputs, and integers below 100 for the others."""
    rng = np.random.default_rng(seed)
    return {
        v.name: rng.standard_normal(v.shape, dtype=np.float32)
        if v.dtype == "float32"
        else rng.integers(0, 100, v.shape).astype(v.dtype)
        for v in graph.inputs
    }


def integers_of(
    model: onnx.ModelProto, graph: IntegerGraph, inputs: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return onnxruntime's integers for the graph's values, by name. 128 is subtracted from uint8.

    Only values that a QuantizeLinear node of the model writes are included.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    written = {n.name: n.output[0] for n in copy.graph.node if n.op_type == "QuantizeLinear"}
    names = [name for name in graph.values if name in written]
    del copy.graph.output[:]
    zeros = {n.output[0]: n.input[2] for n in copy.graph.node if n.name in written}
    kinds = {tensor.name: tensor.data_type for tensor in copy.graph.initializer}
    copy.graph.output.extend(
        onnx.helper.make_tensor_value_info(written[name], kinds[zeros[written[name]]], None)
        for name in names
    )
    result = zip(names, session(copy).run(None, dict(inputs)), strict=True)
    return {name: array if array.dtype == np.int8 else _less_128(array) for name, array in result}


def _less_128(array: NDArray[np.uint8]) -> NDArray[np.int8]:
    return (array.astype(np.int16) - 128).astype(np.int8)


def differences(
    graph: IntegerGraph,
    values: Mapping[str, NDArray[Any]],
    inputs: Mapping[str, NDArray[Any]] | None = None,
) -> dict[str, NDArray[np.int64]]:
    """Compare each layer of the reference with onnxruntime, given onnxruntime's integers as inputs.

    Layers that read or write values without a counterpart in onnxruntime are left out. The
    intermediate values of layers that run in two passes are computed by the reference.

    Returns:
        The reference's output minus onnxruntime's output, by layer.
    """
    result, values = {}, {**values, **(inputs or {})}
    for layer in graph.layers:
        if layer.output.endswith(".fine") and layer.data in values:
            made = layer_reference(layer, values, graph.blocks.in_channels)
            values[layer.output] = made.reshape(graph.values[layer.output].shape)
            continue
        read = [name for name in (layer.data, layer.residual, layer.weight_from) if name]
        if all(name in values for name in (*read, layer.output)):
            ours = layer_reference(layer, values, graph.blocks.in_channels)
            theirs = values[layer.output].astype(np.int64)
            result[layer.name] = ours.astype(np.int64).reshape(theirs.shape) - theirs
    return result
