"""Small float networks with the structures that quantisation has to handle."""

from __future__ import annotations

import math

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tilewright.networks.zoo.builder import Builder


def residual_net() -> onnx.ModelProto:
    """Return a stem, residual blocks with and without a projection, a ReLU6, a concat and pools."""
    net = Builder("residual", (1, 8, 12, 12), 0, True)
    x = net.relu(net.batch_norm(net.conv(net.input, "stem", 16, 3, pad=1), "stem.bn"), "stem.relu")
    x = net.max_pool(x, "maxpool", kernel=2, stride=2)
    y = net.relu(net.batch_norm(net.conv(x, "a1", 16, 3, pad=1), "a1.bn"), "a1.relu")
    y = net.batch_norm(net.conv(y, "a2", 16, 3, pad=1), "a2.bn")
    side = net.batch_norm(net.conv(x, "side", 16, 1), "side.bn")
    x = net.relu(net.add(y, side, "a.add"), "a.relu")
    y = net.relu6(net.batch_norm(net.conv(x, "b1", 16, 3, pad=1), "b1.bn"), "b1.relu6")
    y = net.batch_norm(net.conv(y, "b2", 16, 3, pad=1), "b2.bn")
    x = net.add(x, y, "b.add")
    x = net.concat([x, net.average_pool(x, "average", 3, 1, pad=1)], "concat")
    x = net.flatten(net.global_average_pool(x, "global"), "flatten")
    return net.model(net.dense(x, "fc", 10))


def attention_net(heads: int = 2, tokens: int = 6, size: int = 16) -> onnx.ModelProto:
    """Return one encoder block: attention and a feed-forward layer, each after a layer norm."""
    random = np.random.default_rng(0)
    tensors: dict[str, NDArray[np.generic]] = {
        "split": np.array([1, tokens, heads, size // heads], np.int64),
        "joined": np.array([1, tokens, size], np.int64),
        "root": np.float32(math.sqrt(size // heads)),
        "gamma": np.ones(size, np.float32),
        "beta": np.zeros(size, np.float32),
        "half": np.float32(0.5), "one": np.float32(1), "two": np.float32(math.sqrt(2)),
    }  # fmt: skip
    nodes: list[onnx.NodeProto] = []

    def node(op: str, inputs: list[str], name: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [f"{name}.out"], name=name, **attributes))
        return f"{name}.out"

    def dense(x: str, name: str, rows: int, columns: int) -> str:
        weight = random.standard_normal((rows, columns)) / math.sqrt(rows)
        tensors[f"{name}.w"] = weight.astype(np.float32)
        tensors[f"{name}.b"] = (random.standard_normal(columns) / 10).astype(np.float32)
        return node("Add", [node("MatMul", [x, f"{name}.w"], name), f"{name}.b"], f"{name}.bias")

    def split(x: str, name: str, order: list[int]) -> str:
        return node("Transpose", [node("Reshape", [x, "split"], f"{name}.split")], name, perm=order)

    x = node("LayerNormalization", ["x", "gamma", "beta"], "norm1")
    q = split(dense(x, "query", size, size), "queries", [0, 2, 1, 3])
    k = split(dense(x, "key", size, size), "keys", [0, 2, 3, 1])
    v = split(dense(x, "value", size, size), "values", [0, 2, 1, 3])
    scores = node("Div", [node("MatMul", [q, k], "scores"), "root"], "scaled")
    mixed = node("MatMul", [node("Softmax", [scores], "softmax", axis=-1), v], "mixed")
    mixed = node("Transpose", [mixed], "back", perm=[0, 2, 1, 3])
    out = dense(node("Reshape", [mixed, "joined"], "join"), "out", size, size)
    x = node("Add", [out, "x"], "add1")
    y = dense(node("LayerNormalization", [x, "gamma", "beta"], "norm2"), "up", size, 4 * size)
    gate = node("Add", [node("Erf", [node("Div", [y, "two"], "by_root")], "erf"), "one"], "plus")
    y = node("Mul", [node("Mul", [y, gate], "gated"), "half"], "gelu")
    x = node("Add", [x, dense(y, "down", 4 * size, size)], "add2")
    shape = [1, tokens, size]
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(values), name) for name, values in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
