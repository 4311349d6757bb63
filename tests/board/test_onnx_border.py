"""Checks that a board program keeps the inputs and outputs of its quantised ONNX model.

Their order and types must be those of the model, and their values those of onnxruntime.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.board.boards import run
from tilewright.flows.build import tuned_picks
from tilewright.networks import artifact
from tilewright.targets import make_target
from tilewright.targets.vta.spec import VtaSpec
from tilewright.tuning.build_artifact import integer_network, read_model
from tilewright.tuning.build_options import BuildOptions

TARGET = "vta-pynq"
SHAPE = [1, 16, 6, 6]
Array = NDArray[Any]


def model() -> onnx.ModelProto:
    """Return a model with unusual inputs and outputs.

    The inputs are `left` (float), `ids` (read by no node) and `right` (uint8, read first). The
    outputs are `far` (float), `near` (uint8) and `deep` (float); `near` is written first and read
    again. Scales are not powers of two, and zero points are not zero.
    """
    rng = np.random.default_rng(0)
    tensors: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def constant(name: str, value: Array) -> str:
        tensors.append(numpy_helper.from_array(value, name))
        return name

    def scaled(x: str, step: float, zero: np.generic) -> list[str]:
        return [x, constant(f"{x}/{len(nodes)}/s", np.array(step, np.float32)),
                constant(f"{x}/{len(nodes)}/z", np.array(zero))]  # fmt: skip

    def node(kind: str, inputs: list[str], output: str, **more: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], name=f"{kind}/{output}", **more))
        return output

    def conv(x: str, name: str) -> str:
        weight = constant(f"{name}/w", rng.integers(-60, 60, (16, 16, 3, 3)).astype(np.int8))
        bias = constant(f"{name}/b", rng.integers(-900, 900, 16).astype(np.int32))
        w = node("DequantizeLinear", scaled(weight, 0.013, np.int8(0)), f"{name}/wf")
        b = node("DequantizeLinear", scaled(bias, STEPS[x] * 0.013, np.int32(0)), f"{name}/bf")
        return node("Conv", [x, w, b], name, pads=[1, 1, 1, 1])

    right = node("DequantizeLinear", scaled("right", STEPS["rf"], np.uint8(117)), "rf")
    near = node("QuantizeLinear", scaled(conv(right, "first"), STEPS["nf"], np.uint8(90)), "near")
    nf = node("DequantizeLinear", scaled(near, STEPS["nf"], np.uint8(90)), "nf")
    lq = node("QuantizeLinear", scaled("left", STEPS["lf"], np.int8(-31)), "lq")
    lf = node("DequantizeLinear", scaled(lq, STEPS["lf"], np.int8(-31)), "lf")
    for name, x in {"deep": nf, "far": lf}.items():
        q = node("QuantizeLinear", scaled(conv(x, f"{name}/c"), 0.61, np.int8(12)), f"{name}/q")
        node("DequantizeLinear", scaled(q, 0.61, np.int8(12)), name)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "border",
        [info("left", TensorProto.FLOAT, SHAPE), info("ids", TensorProto.INT64, [1, 3]),
         info("right", TensorProto.UINT8, SHAPE)],
        [info("far", TensorProto.FLOAT, SHAPE), info("near", TensorProto.UINT8, SHAPE),
         info("deep", TensorProto.FLOAT, SHAPE)], tensors,
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    onnx.checker.check_model(made)
    return made


STEPS = {"rf": 0.0173, "nf": 0.211, "lf": 0.037}


@pytest.mark.slow(seconds=1)
def test_a_model_keeps_its_inputs_and_outputs(tmp_path: Path, plain: Path) -> None:
    source, out = tmp_path / "border.onnx", tmp_path / "art"
    onnx.save(model(), source)
    target = make_target(TARGET)
    options = BuildOptions(model=str(source), out=out, target=TARGET)
    graph = integer_network(options, target, read_model(options)).graph
    picks = tuned_picks(artifact.canonical_workloads(graph), target, trials=0)
    artifact.build(graph, picks, target, "vta", out, bare=True)
    rng = np.random.default_rng(2)
    inputs: dict[str, Array] = {
        "left": rng.normal(0, 2, SHAPE).astype(np.float32), "ids": np.arange(3)[None],
        "right": rng.integers(0, 256, SHAPE).astype(np.uint8),
    }  # fmt: skip
    manifest = json.loads((out / "manifest.json").read_text())
    assert [tensor["name"] for tensor in manifest["inputs"]] == list(inputs)
    assert [tensor["name"] for tensor in manifest["outputs"]] == ["far", "near", "deep"]
    python = artifact.load(out).infer(inputs)
    data = b"".join(inputs[tensor["name"]].tobytes() for tensor in manifest["inputs"])
    done = run(plain, out, data, VtaSpec.load(TARGET))
    assert (done.code, done.said) == (0, "")
    assert done.output == b"".join(python[name].tobytes() for name in ("far", "near", "deep"))
    session = onnxruntime.InferenceSession(str(source), providers=["CPUExecutionProvider"])
    far, near, deep = (np.asarray(item) for item in session.run(["far", "near", "deep"], inputs))
    assert len(np.unique(near)) > 50
    # Requantisation may be off by one step if a sum is next to a tie.
    assert np.abs(python["near"].astype(int) - near.astype(int)).max() <= 1
    assert np.abs(python["far"] - far).max() <= 0.611
    assert np.abs(python["deep"] - deep).mean() <= 0.1
