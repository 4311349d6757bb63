"""Tests per-channel quantisation: each output channel has its own power-of-two scale."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper
from quantise_nets import residual_net
from quantised_graphs import Graph

from tilewright import networks
from tilewright.networks.epilogues import EpilogueMode, int8_epilogue, int8_notes
from tilewright.networks.integer.extraction import integer_graph
from tilewright.networks.model_source import OnnxSource
from tilewright.networks.quantisation import Quantised, QuantiseOptions, quantise
from tilewright.networks.quantisation.exponents import (
    covering_exponent,
    gain,
    largest_magnitude,
    least_error,
    least_errors,
    squared_error,
)
from tilewright.networks.requantisation import Requantisation, finish_epilogue
from tilewright.networks.zoo.builder import Builder
from tilewright.targets.capabilities import Blocks
from tilewright.targets.epilogue import CHANNEL_SPREAD
from tilewright.targets.integer_reference import reference
from tilewright.targets.workload import Workload

BLOCKS = Blocks(1, 16, 16)
MODES: tuple[EpilogueMode, EpilogueMode] = ("full", "per-channel")


def spread_net() -> onnx.ModelProto:
    """Return three convolutions, the second one depthwise, with channels of different size.

    In the first two, every sixteenth channel is 2^4 times as large as the others. The next layer's
    weights compensate for this.
    """
    net = Builder("spread", (1, 16, 12, 12), 0, True)
    x = net.relu(net.conv(net.input, "a", 32, 3, pad=1, bias=True), "a.relu")
    x = net.relu(net.conv(x, "b", 32, 3, pad=1, groups=32, bias=True), "b.relu")
    made = net.model(net.conv(x, "c", 32, 1))
    sizes = np.where(np.arange(32) % 16, 2.0**-4, 1.0).astype(np.float32)
    for tensor in made.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.name in ("a.weight", "a.bias"):
            values = values * sizes.reshape(-1, *[1] * (values.ndim - 1))
        elif tensor.name == "b.weight":
            values = values / sizes[:, None, None, None] / 16
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return made


def _decibels(made: Quantised) -> float:
    (output,) = made.report.outputs
    assert output.decibels is not None
    return output.decibels


def test_a_net_whose_channels_differ_in_size_gains() -> None:
    source = spread_net()
    alike, own = (
        quantise(source, None, QuantiseOptions(per_channel=flag)) for flag in (False, True)
    )
    print(f"SNR of the output: {_decibels(alike)} dB, by channel {_decibels(own)} dB")
    assert _decibels(own) > _decibels(alike) + 3
    for one, other in zip(alike.report.layers, own.report.layers, strict=True):
        assert other.decibels is not None
        assert one.decibels is not None
        assert other.decibels > one.decibels + 1
        assert one.weight_exponent == one.least_weight_exponent
    first = own.report.layers[0]
    assert first.weight_exponent is not None
    assert first.least_weight_exponent is not None
    assert first.weight_exponent - first.least_weight_exponent == 4


def test_its_layers_shift_and_compute_what_onnxruntime_does() -> None:
    made = quantise(spread_net(), None, QuantiseOptions(per_channel=True)).model
    onnx.checker.check_model(made, full_check=True)
    graph = integer_graph(made, BLOCKS)
    kinds = [[op.kind for op in layer.workload.epilogue] for layer in graph.layers]
    assert kinds[0] == kinds[1] == ["bias", "shr_channel", "min", "max"]
    assert not graph.islands


def test_a_layer_with_a_residual_keeps_one_scale() -> None:
    """The residual is shifted by the same amount in every channel."""
    source = residual_net()
    for tensor in source.graph.initializer:
        if tensor.name.endswith("weight"):
            values = numpy_helper.to_array(tensor).copy()
            values[::2] /= 16
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    made = quantise(source, None, QuantiseOptions(per_channel=True))
    matching = {
        layer.operators[0]: layer.weight_exponent != layer.least_weight_exponent
        for layer in made.report.layers
        if layer.weight_exponent is not None
    }
    with_residual = {
        layer.operators[0] for layer in made.report.layers if "a.add" in layer.operators
    }
    assert len(with_residual) == 1
    assert not matching[with_residual.pop()]
    assert sum(matching.values()) >= 3
    graph = integer_graph(made.model, BLOCKS)
    assert not any("scales differ" in why for why in graph.left.values())


def test_a_residual_on_sums_that_count_by_channel_is_left_to_the_cpu() -> None:
    """No single shift aligns the residual with the sums of all channels."""
    g = Graph()
    x = g.quantise(g.input("x", (1, 16, 4, 4)), -5)
    own = -6 - np.arange(16) % 4
    y = g.conv(x, "conv", (16, 16, 1, 1), (-5, own))
    y = g.quantise(g.op("Add", "add", [y, x]), -3)
    graph = integer_graph(g.model((y, (1, 16, 4, 4))), BLOCKS)
    assert not graph.layers
    assert "scales differ between channels" in graph.left["conv"]


@settings(max_examples=60)
@given(st.lists(st.integers(-14, 6), min_size=1, max_size=6), st.integers(0, 1000), st.booleans())
def test_a_channel_has_the_exponent_of_least_error_near_the_others(
    sizes: list[int], seed: int, silent: bool
) -> None:
    values = np.random.default_rng(seed).standard_normal((len(sizes) + silent, 30))
    values *= np.ldexp(1.0, [*sizes, 0][: len(values)])[:, None]
    if silent:
        values[-1] = 0
    own = least_errors(values)
    alone = np.array(
        [least_error(item, covering_exponent(largest_magnitude(item))) for item in values]
    )
    highest = alone[: len(sizes)].max()
    assert own.max() == highest
    for result, asked in zip(own[: len(sizes)], alone[: len(sizes)], strict=True):
        assert result == max(asked, highest - CHANNEL_SPREAD)
    one = least_error(values, covering_exponent(largest_magnitude(values)))
    before = sum(squared_error(item, one) for item in values)
    after = sum(squared_error(item, e) for item, e in zip(values, own.tolist(), strict=True))
    assert after <= before or gain(values, one, own) < 1


@settings(max_examples=100)
@given(
    data=st.lists(st.integers(-128, 127), min_size=1, max_size=4),
    channels=st.lists(
        st.tuples(st.integers(-127, 127), st.integers(0, 12), st.floats(-300, 300)),
        min_size=1, max_size=20,
    ),
    shift=st.integers(0, 15), relu=st.booleans(),
)  # fmt: skip
def test_a_layer_rounds_what_its_channels_count(
    data: list[int], channels: list[tuple[int, int, float]], shift: int, relu: bool
) -> None:
    """Results are rounded half up to the output's scale and saturate at the int8 range."""
    weight, finer, bias = (np.array(item) for item in zip(*channels, strict=True))
    shifts = shift + finer.astype(np.int64)
    low = 0 if relu else -128
    made = finish_epilogue(
        Requantisation(shifts, None, (low, 127)), [np.ldexp(bias, finer)], len(channels)
    )
    epilogue = made.epilogue
    assert made.bias is not None
    w = Workload("dense", len(data), 1, 1, 1, len(channels), post=())
    tensors = {
        "data": np.array(data, np.int8).reshape(-1, 1, 1, 1),
        "weight": weight.astype(np.int8).reshape(-1, 1, 1, 1),
        "bias": made.bias, "shr_channel": shifts,
    }  # fmt: skip
    result = reference(w.with_steps(epilogue), tensors)[:, :, 0, 0]
    steps: NDArray[np.float64] = np.ldexp(np.array(data)[:, None] * weight + 0.0, -finer)
    steps = steps + np.ldexp(np.rint(np.ldexp(bias, finer)), -finer)
    wanted = np.floor(np.ldexp(steps, -shift) + 0.5)
    np.testing.assert_array_equal(result, np.clip(wanted, low, 127))


def test_a_float_network_is_tuned_with_shifts_by_channel_if_asked_to() -> None:
    """Every product gets shifts per channel, unless something is added to its sums."""
    network = networks.load("resnet18")
    full, own = (
        {name: item.workload for item in results for name in item.names}
        for results in (network.workloads(16, 16, epilogue=mode) for mode in MODES)
    )
    assert full.keys() == own.keys()
    for name, workload in own.items():
        steps = ", ".join(map(str, workload.epilogue))
        product = workload.operator == "dense" or workload.groups == 1
        if product and "residual" not in steps:
            assert steps.startswith("bias, >> channel 8, min 127, max ")
        else:
            assert workload == full[name]
    assert sum(workload != full[name] for name, workload in own.items()) == 21 - 8


def test_a_quantised_network_is_tuned_as_its_scales_are() -> None:
    made = quantise(spread_net(), None, QuantiseOptions(per_channel=True))
    onnx_source = OnnxSource("own", made.model, lambda: made.model, {})
    calls = [call for call in onnx_source.examine().found.calls if call.operator == "conv2d"]
    steps = [[op.kind for op in int8_epilogue(call, "full")] for call in calls]
    assert steps == [["bias", "shr_channel", "min", "max"]] * 3
    assert [int8_notes(call) for call in calls] == [[]] * 3
