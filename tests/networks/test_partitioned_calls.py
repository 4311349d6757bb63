"""Tests how the importer partitions operators into calls: pools, sums, relus and attention."""

from __future__ import annotations

import numpy as np
from quantised_graphs import Graph

from tilewright.networks.fused_calls import FusedCall
from tilewright.networks.model_source import OnnxSource
from tilewright.networks.network import Network


def _calls(graph: Graph, *outputs: tuple[str, tuple[int, ...]]) -> dict[str, FusedCall]:
    model = graph.model(*outputs)
    result = Network(OnnxSource("test", model, lambda: model, {})).examined.found
    return {call.node: call for call in result.calls}


def _kinds(call: FusedCall) -> list[str]:
    return [step.kind for step in call.steps]


def test_a_residual_network_is_partitioned_in_integers() -> None:
    g = Graph()
    x = g.quantise(g.input("x", (1, 8, 8, 8)), -5)
    pool = g.quantise(g.op("MaxPool", "pool", [x], kernel_shape=[2, 2], strides=[2, 2]), -5)
    conv = g.conv(pool, "conv", (8, 8, 3, 3), (-5, -7), pads=[1] * 4)
    total = g.op("Relu", "relu", [g.op("Add", "sum", [conv, pool])])
    y = g.quantise(total, -4)
    alone = g.quantise(g.op("Add", "alone", [y, pool]), -3)
    mean = g.quantise(g.op("GlobalAveragePool", "mean", [alone]), -5)
    calls = _calls(g, (mean, (1, 8, 1, 1)))
    assert {name: call.operator for name, call in calls.items()} == {
        "pool": "max_pool", "conv": "conv2d", "alone": "add", "mean": "average_pool",
    }  # fmt: skip
    assert _kinds(calls["conv"]) == ["bias", "add", "relu", "quantise"]
    residual = calls["conv"].steps[1].quantisation
    assert residual is not None
    assert residual.scale == (2.0**-5,)
    assert calls["conv"].inputs == (calls["pool"].output, calls["pool"].output)
    assert calls["alone"].inputs == (calls["conv"].output, calls["pool"].output)
    assert _kinds(calls["alone"]) == ["add", "quantise"]
    assert (calls["pool"].kernel, calls["pool"].strides) == ((2, 2), (2, 2))
    assert calls["mean"].kernel == (4, 4)


def test_quantisation_between_a_convolution_and_a_sum_ends_the_convolution() -> None:
    g = Graph()
    x = g.quantise(g.input("x", (1, 8, 8, 8)), -5)
    conv = g.quantise(g.conv(x, "conv", (8, 8, 3, 3), (-5, -7), pads=[1] * 4), -3)
    y = g.quantise(g.op("Relu", "relu", [g.op("Add", "sum", [conv, x])]), -2)
    calls = _calls(g, (y, (1, 8, 8, 8)))
    assert _kinds(calls["conv"]) == ["bias", "quantise"]
    assert _kinds(calls["sum"]) == ["add", "relu", "quantise"]


def test_a_relu_that_keeps_the_scale_stays_fused() -> None:
    g = Graph()
    x = g.quantise(g.input("x", (1, 8, 8, 8)), -5)
    conv = g.quantise(g.conv(x, "conv", (8, 8, 3, 3), (-5, -7), pads=[1] * 4), -3)
    y = g.quantise(g.op("Relu", "relu", [conv]), -3)
    calls = _calls(g, (y, (1, 8, 8, 8)))
    assert _kinds(calls["conv"]) == ["bias", "quantise", "dequantise", "relu", "quantise"]


def test_elementwise_operators_and_attention_are_partitioned() -> None:
    g = Graph()
    x = g.quantise(g.input("x", (1, 2, 6, 8)), -5)
    bounds = [g.constant("low", np.float32(0)), g.constant("high", np.float32(6))]
    clip = g.quantise(g.op("Clip", "clip", [x, *bounds]), -4)
    again = g.quantise(clip, -2)
    turned = g.op("Transpose", "turn", [clip], perm=[0, 1, 3, 2])
    product = g.quantise(g.op("MatMul", "product", [again, turned]), 0)
    calls = _calls(g, (product, (1, 2, 6, 6)))
    kinds = [(call.operator, _kinds(call)) for call in calls.values()]
    assert kinds == [
        ("elementwise", ["clip", "quantise"]),
        ("elementwise", ["quantise"]),
        ("matmul", ["quantise"]),
    ]
    assert calls["clip"].steps[0].upper == 6.0
    product_call = calls["product"]
    assert product_call.weight_shape == (1, 2, 8, 6)
    assert product_call.weight_quantisation is not None
    assert product_call.weight_quantisation.scale == (2.0**-4,)


def test_a_float_network_has_them_too() -> None:
    g = Graph()
    x = g.input("x", (1, 8, 9, 9))
    pool = g.op("MaxPool", "pool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    mean = g.op("AveragePool", "mean", [pool], kernel_shape=[2, 2], count_include_pad=0)
    calls = _calls(g, (g.op("Relu", "relu", [mean]), (1, 8, 4, 4)))
    assert {name: call.operator for name, call in calls.items()} == {
        "pool": "max_pool", "mean": "average_pool",
    }  # fmt: skip
    assert calls["pool"].padding == (1, 1, 1, 1)
    assert calls["pool"].data_quantisation is None
    assert not calls["mean"].count_include_pad
    assert _kinds(calls["mean"]) == ["relu"]
