"""Tests the choice of power-of-two scales, and graphs that constrain it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper
from onnx_graphs import model, normal, with_typed_output
from quantise_nets import residual_net

from tilewright.networks import zoo
from tilewright.networks.errors import DynamicShapeError, QuantisationError
from tilewright.networks.model_runner import run_feeds
from tilewright.networks.quantisation import QuantiseOptions, quantise
from tilewright.networks.quantisation.exponents import (
    covering_exponent,
    least_error,
    quantise_array,
    squared_error,
)


@given(st.floats(1e-12, 1e12))
def test_the_covering_exponent_is_the_smallest_that_cuts_nothing_off(largest: float) -> None:
    exponent = covering_exponent(largest)
    assert math.ldexp(127, exponent) >= largest
    assert math.ldexp(127, exponent - 1) < largest


@given(st.integers(-20, 20), st.lists(st.integers(-128, 127), min_size=1, max_size=30))
def test_what_int8_can_represent_is_quantised_without_loss(e: int, steps: Sequence[int]) -> None:
    values = np.ldexp(np.array(steps, np.float64), e)
    assert quantise_array(values, e).tolist() == list(steps)
    assert squared_error(values, e) == 0


@settings(max_examples=30)
@given(st.integers(0, 1000), st.floats(0.01, 100))
def test_the_least_error_is_no_larger_than_that_of_its_neighbours(seed: int, scale: float) -> None:
    values = np.random.default_rng(seed).standard_normal(500) * scale
    highest = covering_exponent(float(np.abs(values).max()))
    chosen = least_error(values, highest)
    errors = [squared_error(values, highest - step) for step in range(3)]
    assert squared_error(values, chosen) == min(errors)


def test_quantising_rounds_half_to_even_and_cuts_off() -> None:
    values = np.array([0.5, 1.5, -0.5, -1.5, 200, -200])
    assert quantise_array(values, 0).tolist() == [0, 2, 0, -2, 127, -128]


def test_tensors_of_zeros_have_an_exponent() -> None:
    assert covering_exponent(0.0) == -7
    assert least_error(np.zeros(4), -7) == -7


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("place", ["weights", "bias"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -3e38, 1e30])
def test_constants_that_no_scale_covers_are_refused_by_layer(place: str, value: float) -> None:
    tensors = {"w": normal(16, 16, 3, 3), "b": normal(16)}
    tensors["w" if place == "weights" else "b"].flat[3] = value
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv")]
    with pytest.raises(QuantisationError, match=rf"layer 'conv' has .* in its {place} \(tensor"):
        quantise(with_typed_output(model(nodes, tensors, (1, 16, 6, 6), "y")))


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("factor", [1e10, 1e18])
def test_activations_that_no_scale_covers_are_refused_by_tensor(factor: float) -> None:
    names = ["x", "a", "b", "c", "y"]
    nodes = [
        helper.make_node("Conv", [x, "w"], [y], name=f"conv_{y}", pads=[1] * 4)
        for x, y in itertools.pairwise(names)
    ]
    source = model(nodes, {"w": factor * normal(16, 16, 3, 3)}, (1, 16, 6, 6), "y")
    with pytest.raises(QuantisationError, match=r"tensor '\w' reaches .* int8 scales cover"):
        quantise(with_typed_output(source))


def _made(nodes: list[onnx.NodeProto], tensors: dict[str, NDArray[Any]], output: str) -> Any:
    """Quantise a model with one float input (1, 16, 6, 6), check it and return the result."""
    source = with_typed_output(model(nodes, tensors, (1, 16, 6, 6), output))
    made = quantise(source)
    info = made.model.graph.input[0]
    feed = {info.name: normal(1, 16, 6, 6, seed=7)}
    wanted, results = (next(run_feeds(m, [output], [feed]))[output] for m in (source, made.model))
    assert np.corrcoef(wanted.ravel(), results.ravel())[0, 1] > 0.99
    return made


def test_a_residual_is_raised_to_the_sums_it_is_added_to() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["big"], name="big", pads=[1] * 4),
        helper.make_node("Relu", ["big"], ["positive"], name="relu"),
        helper.make_node("Conv", ["positive", "w"], ["sum"], name="conv", pads=[1] * 4),
        helper.make_node("Conv", ["x", "small"], ["tiny"], name="tiny"),
        helper.make_node("Add", ["sum", "tiny"], ["y"], name="add"),
    ]
    tensors = {"w": 900 * normal(16, 16, 3, 3), "small": 1e-6 * normal(16, 16, 1, 1, seed=1)}
    made = _made(nodes, tensors, "y")
    weights = {layer.operators[0]: layer.weight_exponent for layer in made.report.layers}
    assert made.exponents["tiny"] == made.exponents["positive"] + weights["conv"] > 0


def test_weights_are_raised_until_their_bias_fits() -> None:
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv")]
    bias = np.linspace(1e6, 9e9, 16, dtype=np.float32)
    made = _made(nodes, {"w": 1e-3 * normal(16, 16, 1, 1), "b": bias}, "y")
    (layer,) = made.report.layers
    sums = made.exponents["x"] + layer.weight_exponent
    assert 2**28 < 9e9 / 2.0**sums < 2**31


def test_operators_alone_are_int8_between_int8_tensors() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv"),
        helper.make_node("MaxPool", ["a"], ["p"], name="pool", kernel_shape=[2, 2]),
        helper.make_node("MaxPool", ["a"], ["q"], name="other", kernel_shape=[2, 2]),
        helper.make_node("Add", ["p", "q"], ["s"], name="add"),
        helper.make_node("Relu", ["s"], ["r"], name="relu"),
        helper.make_node("Sigmoid", ["r"], ["g"], name="sigmoid"),
        helper.make_node("Relu", ["g"], ["y"], name="late"),
    ]
    made = _made(nodes, {"w": normal(16, 16, 1, 1)}, "y")
    layers = {layer.operators: layer.operator for layer in made.report.layers}
    assert layers == {
        ("conv",): "Conv", ("pool",): "MaxPool", ("other",): "MaxPool", ("add", "relu"): "Add",
    }  # fmt: skip


def test_tensors_of_constants_are_added_and_joined_in_float() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["patches"], name="conv", strides=[2, 2]),
        helper.make_node("Reshape", ["patches", "rows"], ["r"], name="reshape"),
        helper.make_node("Transpose", ["r"], ["tokens"], name="transpose", perm=[0, 2, 1]),
        helper.make_node("Concat", ["first", "tokens"], ["all"], name="concat", axis=1),
        helper.make_node("Add", ["all", "places"], ["placed"], name="add"),
        helper.make_node("MatMul", ["placed", "m"], ["p"], name="product"),
        helper.make_node("Add", ["p", "places"], ["y"], name="again"),
    ]
    tensors: dict[str, NDArray[Any]] = {
        "w": normal(16, 16, 2, 2), "rows": np.array([1, 16, 9]), "m": normal(16, 16),
        "first": 40 * normal(1, 1, 16), "places": normal(1, 10, 16),
    }  # fmt: skip
    made = _made(nodes, tensors, "y")
    assert [layer.operators for layer in made.report.layers] == [("conv",), ("product",)]
    assert set(made.exponents) == {"x", "patches", "placed", "p"}


def test_factors_of_a_product_go_into_its_constants() -> None:
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w", "c"], ["y"], name="fc", alpha=0.5, beta=2.0),
    ]
    made = _made(nodes, {"w": normal(576, 10), "c": 10 * normal(10)}, "y")
    assert [layer.operators for layer in made.report.layers] == [("fc",)]
    assert made.report.layers[0].decibels > 20


def test_old_models_are_brought_to_a_newer_opset() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")]
    old = with_typed_output(model(nodes, {"w": normal(16, 16, 1, 1)}, (1, 16, 6, 6), "y", opset=9))
    made = quantise(old)
    assert made.report.layers[0].operators == ("conv",)
    assert made.model.opset_import[0].version == 17


def test_operators_keep_their_names_when_onnxruntime_writes_them_in_other_terms() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("HardSwish", ["c"], ["h"], name="swish"),
        helper.make_node("Conv", ["h", "w"], ["y"], name="last"),
    ]
    made = _made(nodes, {"w": normal(16, 16, 1, 1)}, "y")
    owners = {output: node.name for node in made.model.graph.node for output in node.output}
    assert owners["h"] == "swish"


def test_dynamic_inputs_need_a_size() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")]
    open_ended = with_typed_output(
        model(nodes, {"w": normal(16, 16, 1, 1)}, ("batch", 16, 6, 6), "y")
    )
    with pytest.raises(DynamicShapeError):
        quantise(open_ended)
    made = quantise(open_ended, input_shapes={"x": (2, 16, 6, 6)})
    assert made.report.layers[0].tensor == "y"


def test_what_cannot_be_quantised_is_refused() -> None:
    with pytest.raises(QuantisationError, match="no data"):
        quantise(zoo.build("digits_cnn", weights=False))
    nodes = [helper.make_node("Sigmoid", ["x"], ["y"], name="sigmoid")]
    with pytest.raises(QuantisationError, match="no layer of"):
        quantise(with_typed_output(model(nodes, {}, (1, 16, 6, 6), "y")))
    for wrong in ({"method": "guess"}, {"rule": "guess"}, {"percentile": 3.0}):
        with pytest.raises(QuantisationError):
            QuantiseOptions(**wrong)  # type: ignore[arg-type]


def test_the_report_is_plain_json() -> None:
    made = quantise(residual_net(), None, QuantiseOptions(keep_float=("fc",)))
    document = json.loads(json.dumps(made.report.to_json(), allow_nan=False))
    assert document["kept_float"] == {"fc": "kept in floating point, as requested"}
    assert document["layers"][0]["operators"] == ["stem", "stem.relu"]
    assert document["samples"] == 8
    assert -1 <= document["outputs"][0]["correlation"] <= 1
