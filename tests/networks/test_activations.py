"""Checks that an activation after a layer is fused into the layer's kernel, in any ONNX form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_compiled_libraries import built

from tilewright import networks
from tilewright.networks.compiled.layers import activated_layers
from tilewright.networks.tolerances import OF_FLOAT32
from tilewright.targets import make_target

Node = tuple[str, tuple[str, ...], str]

# each from `y`, the result of a layer, to `z`; names of constants are their values
FORMS: dict[str, tuple[str, tuple[Node, ...]]] = {
    "swish": ("swish", (("Sigmoid", ("y",), "s"), ("Mul", ("s", "y"), "z"))),
    "gelu by division": (
        "gelu",
        (("Div", ("y", "1.4142135"), "d"), ("Erf", ("d",), "e"), ("Add", ("e", "1.0"), "a"),
         ("Mul", ("y", "a"), "m"), ("Mul", ("m", "0.5"), "z")),
    ),
    "gelu, halved first": (
        "gelu",
        (("Mul", ("y", "0.5"), "h"), ("Mul", ("y", "0.70710677"), "d"), ("Erf", ("d",), "e"),
         ("Add", ("1.0", "e"), "a"), ("Mul", ("a", "h"), "z")),
    ),
    "gelu by tanh": (
        "gelu_tanh",
        (("Mul", ("y", "y"), "q"), ("Mul", ("q", "y"), "c"), ("Mul", ("c", "0.044715"), "k"),
         ("Add", ("y", "k"), "i"), ("Mul", ("i", "0.7978845608"), "u"), ("Tanh", ("u",), "t"),
         ("Add", ("t", "1.0"), "a"), ("Mul", ("y", "0.5"), "h"), ("Mul", ("h", "a"), "z")),
    ),
    "hard swish": ("hard_swish", (("HardSwish", ("y",), "z"),)),
    "tanh": ("tanh", (("Tanh", ("y",), "z"),)),
}  # fmt: skip
OTHERS: dict[str, tuple[Node, ...]] = {
    "another factor": (
        ("Mul", ("y", "1.7"), "d"), ("Sigmoid", ("d",), "s"), ("Mul", ("s", "y"), "z"),
    ),
    "two readers": (("Sigmoid", ("y",), "s"), ("Mul", ("s", "y"), "m"), ("Add", ("m", "s"), "z")),
}  # fmt: skip


def model(nodes: tuple[Node, ...], folder: Path, also: tuple[str, ...] = ()) -> Path:
    """Write a model with a convolution and the given nodes. `also` names further outputs."""
    rng = np.random.default_rng(3)
    weight = (rng.standard_normal((20, 6, 3, 3)) / 4).astype(np.float32)
    bias = rng.standard_normal(20).astype(np.float32)
    constants = {
        name: np.float32(name)
        for _, reads, _ in nodes
        for name in reads
        if name.replace(".", "").isdecimal()
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "weight", "bias"], ["y"], pads=[1] * 4),
            *(helper.make_node(op, reads, [gives]) for op, reads, gives in nodes),
        ],
        "activated",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 6, 9, 11))],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 20, 9, 11))
            for name in ("z", *also)
        ],
        [
            numpy_helper.from_array(array, name)
            for name, array in {"weight": weight, "bias": bias, **constants}.items()
        ],
    )
    path = folder / "model.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, path)
    return path


def kinds(path: Path) -> list[str]:
    """Return the kinds of post-operations in the layer's kernel."""
    flat, space = networks.load(str(path)).whole.flat, make_target("cpu").space
    (layer,) = activated_layers(flat, space)
    return [step.kind for step in layer.workload.epilogue]


@pytest.mark.parametrize("form", FORMS)
def test_an_activation_is_recognised_by_what_it_computes(form: str, tmp_path: Path) -> None:
    kind, nodes = FORMS[form]
    assert kinds(model(nodes, tmp_path)) == ["bias", kind]


@pytest.mark.parametrize("form", OTHERS)
def test_other_functions_stay_outside(form: str, tmp_path: Path) -> None:
    result = kinds(model(OTHERS[form], tmp_path))
    assert not {"swish", "gelu"} & set(result)


def test_a_result_that_somebody_else_reads_is_kept(tmp_path: Path) -> None:
    _, nodes = FORMS["swish"]
    assert kinds(model(nodes, tmp_path, also=("y",))) == ["bias"]
    assert kinds(model(nodes, tmp_path, also=("s",)))[-1] != "swish"


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("form", [*FORMS, *OTHERS])
def test_libraries_compute_what_onnxruntime_does(form: str, tmp_path: Path) -> None:
    path = model(FORMS[form][1] if form in FORMS else OTHERS[form], tmp_path)
    artifact = built(str(path), tmp_path)
    x = np.random.default_rng(1).normal(0, 6, (1, 6, 9, 11)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (expected,) = session.run(["z"], {"x": x})
    close = OF_FLOAT32 * float(np.abs(expected).max())  # Winograd's algorithm rounds more
    np.testing.assert_allclose(artifact.infer({"x": x})["z"], expected, rtol=0, atol=close)


@pytest.mark.slow(seconds=1)
def test_an_activation_of_a_quantised_layer_is_right_wherever_it_is_computed(
    tmp_path: Path,
) -> None:
    weight = np.random.default_rng(0).integers(-100, 100, (16, 8, 3, 3)).astype(np.int8)
    constants = {
        "step": np.float32(0.02), "zero": np.uint8(128), "weight": weight,
        "weight.step": np.float32(0.01), "weight.zero": np.int8(0),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["weight", "weight.step", "weight.zero"], ["w"]),
        helper.make_node("Conv", ["d", "w"], ["y"], pads=[1] * 4),
        helper.make_node("Sigmoid", ["y"], ["s"]),
        helper.make_node("Mul", ["y", "s"], ["z"]),
    ]
    shapes = {"x": (1, 8, 12, 12), "z": (1, 16, 12, 12)}
    ends = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    }
    kept = [
        numpy_helper.from_array(np.asarray(constant), name) for name, constant in constants.items()
    ]
    graph = helper.make_graph(nodes, "quantised", [ends["x"]], [ends["z"]], kept)
    path = tmp_path / "model.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    artifact = built(str(path), tmp_path)
    x = np.random.default_rng(1).normal(0, 1, shapes["x"]).astype(np.float32)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (expected,) = session.run(["z"], {"x": x})
    np.testing.assert_allclose(artifact.infer({"x": x})["z"], expected, rtol=1e-4, atol=1e-3)
