"""Checks that BatchNorm is folded into the preceding weights without changing the outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_graphs import model, normal, reference

from tilewright import networks
from tilewright.networks.onnx.files import weights_as_inputs, without_weights
from tilewright.networks.onnx.graph import data_inputs
from tilewright.networks.onnx.normalise import fixed_graph, normalise
from tilewright.networks.quantisation.bn_folding import fold_batch_norms
from tilewright.networks.relax.importer import import_onnx

CHANNELS = 16


def _model(operator: str, bias: bool, *, both_read: bool = False) -> onnx.ModelProto:
    """Return a convolution or product with 16 outputs, followed by a BatchNorm."""
    shapes = {"Conv": (CHANNELS, 16, 3, 3), "Gemm": (CHANNELS, 16)}
    tensors = {
        "w": normal(*shapes[operator]), "b": normal(CHANNELS, seed=5),
        "gamma": normal(CHANNELS, seed=1), "beta": normal(CHANNELS, seed=2),
        "mean": normal(CHANNELS, seed=3), "var": np.abs(normal(CHANNELS, seed=4)) + 0.1,
    }  # fmt: skip
    attributes = {"pads": [1] * 4} if operator == "Conv" else {"transB": 1}
    inputs = ["x", "w", *(["b"] if bias else [])]
    nodes = [
        helper.make_node(operator, inputs, ["c"], name="head", **attributes),
        helper.make_node(
            "BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["n"], name="norm"
        ),
        helper.make_node("Add", ["n", "c" if both_read else "n"], ["y"], name="last"),
    ]
    return model(nodes, tensors, (1, 16, 6, 6) if operator == "Conv" else (1, 16), "y")


def _operators(source: onnx.ModelProto) -> list[str]:
    """Return the imported operators that depend on the input, without those on constants."""
    imported = normalise(source, {}).model
    inputs = [info.name for info in data_inputs(imported)]
    flat = import_onnx(weights_as_inputs(imported), inputs)
    return [b.op for b in flat.bindings if b.var not in flat.constants]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("operator", ["Conv", "Gemm"])
def test_it_folds_into_convolutions_and_products(operator: str, bias: bool, tmp_path: Path) -> None:
    source = _model(operator, bias)
    assert "relax.nn.batch_norm" not in _operators(source)
    assert "relax.nn.batch_norm" not in _operators(without_weights(source))
    (tmp_path / "model.onnx").write_bytes(source.SerializeToString())
    network = networks.load(tmp_path / "model.onnx")
    result = {o.name: o for o in network.report(16, 16).operators}
    assert result["norm"].reason == "in the epilogue of 'head'"
    workload = next(w for w, _, names in network.workloads(16, 16) if names == ("head",))
    assert str(workload.epilogue[0]) == "bias"
    x = normal(*(1, 16, 6, 6) if operator == "Conv" else (1, 16), seed=9)
    (ours,) = network.run({"x": x}).values()
    np.testing.assert_allclose(ours, reference(source, x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("operator", ["Conv", "Gemm"])
def test_what_multiplies_and_adds_numbers_a_channel_behind_it_is_folded_too(
    operator: str, tmp_path: Path
) -> None:
    """Models from Caffe apply γ and β in separate operators."""
    source = _model(operator, True)
    shape = (CHANNELS, 1, 1) if operator == "Conv" else (CHANNELS,)
    given = {"scale": normal(*shape, seed=6), "shift": normal(*shape, seed=7)}
    source.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in given.items()
    )
    del source.graph.node[-1]
    source.graph.node.extend(
        [
            helper.make_node("Mul", ["scale", "n"], ["s"], name="times"),
            helper.make_node("Add", ["s", "shift"], ["y"], name="plus"),
        ]
    )
    operators = _operators(source)
    assert "relax.multiply" not in operators
    assert operators.count("relax.add") == 2  # the head's own bias, and what all that comes to
    x = normal(*(1, 16, 6, 6) if operator == "Conv" else (1, 16), seed=9)
    (tmp_path / "model.onnx").write_bytes(source.SerializeToString())
    (ours,) = networks.load(tmp_path / "model.onnx").run({"x": x}).values()
    np.testing.assert_allclose(ours, reference(source, x), rtol=1e-5, atol=1e-4)


def test_it_stays_where_what_it_takes_has_another_reader() -> None:
    assert "relax.nn.batch_norm" in _operators(_model("Conv", bias=False, both_read=True))


def test_behind_a_product_of_a_sequence_it_stays_for_its_channels_are_steps() -> None:
    tensors = {name: np.abs(normal(CHANNELS, seed=place)) + 0.1
               for place, name in enumerate(("gamma", "beta", "mean", "var"))}  # fmt: skip
    tensors["w"] = normal(16, CHANNELS)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["c"], name="head"),
        helper.make_node(
            "BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["y"], name="norm"
        ),
    ]
    source = model(nodes, tensors, (1, CHANNELS, 16), "y")
    x = normal(1, CHANNELS, 16, seed=9)
    lean = fold_batch_norms(fixed_graph(source, {})).normal.model
    np.testing.assert_allclose(reference(lean, x), reference(source, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("operator", ["Conv", "Gemm"])
def test_a_folded_model_computes_what_the_float_one_does(operator: str) -> None:
    """Both models run in onnxruntime."""
    source = _model(operator, True)
    lean = fold_batch_norms(fixed_graph(source, {})).normal.model
    assert not [node for node in lean.graph.node if node.op_type == "BatchNormalization"]
    x = normal(*(1, 16, 6, 6) if operator == "Conv" else (1, 16), seed=9)
    np.testing.assert_allclose(reference(lean, x), reference(source, x), rtol=1e-4, atol=1e-4)
