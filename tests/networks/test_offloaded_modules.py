"""Tests Relax modules from TVM's importer whose layers partly run on the simulated VTA."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from integer_nets import BLOCKS
from onnx import numpy_helper
from quantise_nets import residual_net
from quantised_graphs import Graph
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from benchmarks.quantisation.integer_graphs import in_memory, run
from tilewright.core.errors import UnknownName
from tilewright.core.formats import SCHEDULES
from tilewright.flows.tvm_partition import offloaded, partition_for_vta
from tilewright.networks import tvm_runtime, zoo
from tilewright.networks.artifact import canonical_workloads
from tilewright.networks.errors import (
    DynamicShapeError,
    ImportFailedError,
    NothingToOffload,
    QuantisationError,
)
from tilewright.networks.integer.extraction import integer_graph
from tilewright.networks.quantisation import model_with_weights, quantise
from tilewright.networks.tvm_runtime import RUN, OffloadError
from tilewright.networks.tvm_user_modules import offloaded_calls
from tilewright.targets import make_target
from tilewright.targets.artifact_types import Pick
from tilewright.targets.capabilities import Baseline, capability
from tilewright.targets.workload import Workload
from tilewright.tuning.schedule_lookup import PickError

ROOT = Path(__file__).parents[2]
Array = np.ndarray[Any, Any]


@cache
def int8(name: str) -> onnx.ModelProto:
    model = residual_net() if name == "residual" else model_with_weights(name)
    return quantise(model).model


def machine(module: Any) -> Callable[..., Any]:
    vm = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())

    def main(*arrays: Array) -> list[Array]:
        result = vm["main"](*map(tvm.runtime.tensor, arrays))
        return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]

    return main


def inputs_of(module: Any, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal([int(s) for s in param.ty.shape], dtype=np.float32)
        for param in module["main"].params
    ]


def integers(model: onnx.ModelProto, arrays: list[Array]) -> list[Array]:
    """Return the outputs of the integer reference, using our own importer."""
    graph = integer_graph(model, BLOCKS)
    named = dict(zip((value.name for value in graph.inputs), arrays, strict=True))
    values = run(graph, named, in_memory(graph))
    return [values[value.name] for value in graph.outputs]


@pytest.mark.parametrize(
    ("name", "layers", "step"), [("digits_cnn", 4, 0.25), ("residual", 9, 0.25)]
)
@pytest.mark.slow(seconds=2)
def test_numbers_are_tvms_up_to_ties(name: str, layers: int, step: float) -> None:
    model = int8(name)
    module = from_onnx(model)
    new = partition_for_vta(module)
    assert len(offloaded(new).layers) == layers
    stock, ours = machine(module), machine(new)
    differ = 0
    for seed in range(4):
        arrays = inputs_of(module, seed)
        (expected,), (result,) = stock(*arrays), ours(*arrays)
        assert result.dtype == expected.dtype
        assert np.abs(result - expected).max() <= step  # one step of the last layer
        differ += np.count_nonzero(result != expected)
        np.testing.assert_array_equal(result, integers(model, arrays)[0])
    assert differ <= 0.2 * 4 * expected.size


def test_a_module_is_left_as_it_was_and_keeps_its_signature() -> None:
    module = from_onnx(int8("digits_cnn"))
    before = module.script()
    new = partition_for_vta(module)
    assert module.script() == before
    assert [p.name for p in new["main"].params] == [p.name for p in module["main"].params]
    assert new["main"].attrs["num_input"] == 1
    assert new["main"].ret_ty == module["main"].ret_ty
    assert {var.name_hint for var in new.get_global_vars()} == {"main"}


def test_layers_are_listed_with_their_cycles() -> None:
    new = partition_for_vta(from_onnx(int8("digits_cnn")))
    result = offloaded(new)
    assert [layer.operator for layer in result.layers] == [
        "nn.conv2d", "nn.conv2d", "nn.conv2d", "matmul",
    ]  # fmt: skip
    assert result.layers[0].names == ("lv3", "lv6", "lv7", "lv8")
    assert all(0 < layer.roofline <= layer.alone for layer in result.layers)
    assert result.cycles == sum(layer.cycles for layer in result.layers) > 0
    assert result.milliseconds == pytest.approx(result.cycles / 1e5)  # 100 MHz


def attention(g: Graph) -> onnx.ModelProto:
    """Return a network with a layer norm, scores and a softmax, much of which stays in TVM.

    It has two outputs.
    """
    x = g.input("x", (1, 10, 32))
    norm = [g.constant("scale", np.ones(32, np.float32)), g.constant("b", np.ones(32, np.float32))]
    y = g.quantise(g.op("LayerNormalization", "norm", [x, *norm]), -5)
    q, k = (
        g.quantise(g.op("MatMul", role, [y, g.weight(role, (32, 32), -9)]), -5) for role in "qk"
    )
    turned = g.quantise(g.op("Transpose", "turn", [k], perm=[0, 2, 1]), -5)
    scores = g.quantise(g.op("MatMul", "scores", [q, turned]), -3)
    return g.model((g.op("Softmax", "softmax", [scores]), (1, 10, 10)), (q, (1, 10, 32)))


@pytest.mark.slow(seconds=1)
def test_what_stays_with_tvm_is_called_between_and_all_results_come() -> None:
    model = attention(Graph())
    module = from_onnx(model)
    new = partition_for_vta(module)
    assert [layer.operator for layer in offloaded(new).layers] == ["matmul"] * 3
    assert any(var.name_hint.startswith("tvm_cpu") for var in new.get_global_vars())
    arrays = inputs_of(module, 0)
    expected, result = machine(module)(*arrays), machine(new)(*arrays)
    assert [a.shape for a in result] == [(1, 10, 10), (1, 10, 32)]
    np.testing.assert_allclose(result[0], expected[0], atol=0.05)
    assert np.abs(result[1] - expected[1]).max() <= 2**-5
    for ours, reference in zip(result, integers(model, arrays), strict=True):
        np.testing.assert_allclose(ours, reference, atol=1e-6)


def test_operators_with_scales_of_no_power_of_two_take_two_passes() -> None:
    g = Graph()
    x = g.quantise(g.input("x", (1, 16, 8, 8)), -5)
    y = g.quantise(g.conv(x, "good", (16, 16, 3, 3), (-5, -7)), -2)
    z = g.quantise(g.conv(y, "odd", (16, 16, 3, 3), (-2, -7)), 0)
    model = g.model((z, (1, 16, 4, 4)))
    _scale(model, "odd", 0.007)
    module = from_onnx(model)
    new = partition_for_vta(module)
    assert len(offloaded(new).layers) == 3
    assert not offloaded(new).left
    arrays = inputs_of(module, 0)
    (expected,), (result,) = machine(module)(*arrays), machine(new)(*arrays)
    assert np.abs(result - expected).max() <= 1


def _scale(model: onnx.ModelProto, name: str, scale: float) -> None:
    """Change the scale of an operator's weights."""
    conv = next(node for node in model.graph.node if node.name == name)
    read = next(node for node in model.graph.node if conv.input[1] in node.output)
    tensor = next(t for t in model.graph.initializer if t.name == read.input[1])
    tensor.CopyFrom(numpy_helper.from_array(np.float32(scale), tensor.name))


def test_a_module_that_no_importer_wrote_is_offloaded() -> None:
    """A hand-written Relax module is accepted too.

    It has no dataflow block and no `num_input`, and returns a tuple. Only the second result reads
    the second input.
    """
    rng = np.random.default_rng(0)
    weight = relax.const(rng.integers(-99, 99, (16, 16, 1, 1)).astype(np.int8), "int8")
    x, other = (relax.Var(name, relax.TensorType((1, 16, 4, 4), "float32")) for name in "xy")
    zero = relax.const(np.int8(0), "int8")

    def scale(exponent: int) -> tuple[Any, Any]:
        return relax.const(np.float32(2.0**exponent), "float32"), zero

    builder = relax.BlockBuilder()
    with builder.function("main", [x, other]):
        q = builder.emit(relax.op.quantize(x, *scale(-5), axis=1, out_dtype="int8"))
        data = builder.emit(relax.op.dequantize(q, *scale(-5), axis=1, out_dtype="float32"))
        kernel = builder.emit(relax.op.dequantize(weight, *scale(-8), axis=0, out_dtype="float32"))
        sums = builder.emit(relax.op.nn.conv2d(data, kernel))
        out = builder.emit(relax.op.quantize(sums, *scale(-4), axis=1, out_dtype="int8"))
        soft = builder.emit(relax.op.nn.softmax(builder.emit(relax.op.add(other, data))))
        builder.emit_func_output(relax.Tuple([out, soft]))
    module = builder.get()
    new = partition_for_vta(module)
    assert [layer.operator for layer in offloaded(new).layers] == ["nn.conv2d"]
    arrays = inputs_of(module, 0)
    expected, result = machine(module)(*arrays), machine(new)(*arrays)
    assert result[0].dtype == np.int8
    assert np.abs(result[0].astype(int) - expected[0]).max() <= 1
    np.testing.assert_allclose(result[1], expected[1], rtol=1e-6)


LOADED = """
import sys
import numpy, tvm
from tvm import relax
from tilewright.networks.tvm_runtime import register
register()
library = tvm.runtime.load_module(sys.argv[1])
x = numpy.load(sys.argv[2], allow_pickle=False)
found = relax.VirtualMachine(library, tvm.cpu())["main"](tvm.runtime.tensor(x))
numpy.save(sys.argv[3], found.numpy())
"""


@pytest.mark.slow(seconds=4)
def test_an_exported_module_runs_in_another_process(tmp_path: Path) -> None:
    new = partition_for_vta(from_onnx(int8("digits_cnn")))
    tvm.compile(new, "llvm").export_library(str(tmp_path / "net.so"))
    (x,) = inputs_of(new, 0)
    np.save(tmp_path / "x.npy", x)
    command = [sys.executable, "-c", LOADED, *(str(tmp_path / n) for n in ("net.so", "x.npy",
               "y.npy"))]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = np.load(tmp_path / "y.npy", allow_pickle=False)
    np.testing.assert_array_equal(result, machine(new)(x)[0])


def test_a_changed_byte_of_a_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm_runtime, "_programs", OrderedDict())
    ((digest, content),) = offloaded_calls(partition_for_vta(from_onnx(int8("digits_cnn"))), RUN)
    changed = np.frombuffer(content, np.uint8).copy()
    changed[len(changed) // 2] ^= 1
    with pytest.raises(ValueError, match="was changed after the partition"):
        tvm_runtime.run(digest, tvm.runtime.tensor(changed))
    with pytest.raises(ValueError, match="0 tensors were passed to a program with 1 inputs"):
        tvm_runtime.run(digest, tvm.runtime.tensor(np.frombuffer(content, np.uint8)))


def schedules(picks: dict[Workload, Pick]) -> dict[str, Any]:
    """Return schedules in the form that `tilewright tune` writes."""
    rows = [
        {
            "workload": str(workload),
            "epilogue": ", ".join(map(str, workload.epilogue)),
            "space": pick.space,
            "config": list(pick.config),
        }
        for workload, pick in picks.items()
    ]
    target = {"name": "vta-pynq", "kind": "vta"}
    return {"version": SCHEDULES.written, "network": "net", "target": target, "schedules": rows}


def test_a_tuned_folder_gives_the_schedules(tmp_path: Path) -> None:
    model = int8("digits_cnn")
    vta = make_target("vta-pynq")
    baseline = capability(vta, Baseline)
    assert baseline is not None
    picks = {}
    for workload in canonical_workloads(integer_graph(model, BLOCKS)):
        result = baseline.baseline(workload)
        picks[workload] = Pick(result.space.name, result.config)
    (tmp_path / "schedules.json").write_text(json.dumps(schedules(picks)))
    new = partition_for_vta(from_onnx(model), schedules=tmp_path)
    assert [layer.alone for layer in offloaded(new).layers] != [
        layer.alone for layer in offloaded(partition_for_vta(from_onnx(model))).layers
    ]
    for content in (content for _, content in offloaded_calls(new, RUN)):
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            rows = json.loads(packed.read("program.json"))["layers"]
    assert [(r["space"], tuple(r["config"])) for r in rows] == [
        (pick.space, pick.config) for pick in picks.values()
    ]
    (x,) = inputs_of(new, 0)
    np.testing.assert_array_equal(machine(new)(x)[0], integers(model, [x])[0])
    with pytest.raises(PickError, match="does not exist"):
        partition_for_vta(from_onnx(model), schedules=tmp_path / "none")


def test_mistakes_are_named() -> None:
    model = int8("digits_cnn")
    module = from_onnx(model)
    with pytest.raises(UnknownName, match="did you mean vta-pynq"):
        partition_for_vta(module, target="vta-pink")
    table = ROOT / "tests/data/tvm-vta/C10.csv.gz"
    with pytest.raises(OffloadError, match="choose a VTA"):
        partition_for_vta(module, target=f"replay:{table}")
    with pytest.raises(UnknownName, match="variable of main"):
        partition_for_vta(module, keep_float=["conv1"])
    with pytest.raises(QuantisationError, match="first quantise the ONNX model"):
        partition_for_vta(from_onnx(zoo.build("digits_cnn", 0)))
    with pytest.raises(ImportFailedError, match="BindParams"):
        partition_for_vta(from_onnx(model, keep_params_in_input=True))
    with pytest.raises(ImportFailedError, match="no Relax function 'main'"):
        partition_for_vta(tvm.IRModule())
    with pytest.raises(NothingToOffload, match="partition_for_vta first"):
        offloaded(module)
    layers = offloaded(partition_for_vta(module)).layers
    everything = [name for layer in layers for name in layer.names]
    with pytest.raises(NothingToOffload, match="kept in float"):
        partition_for_vta(module, keep_float=everything)


def test_inputs_of_unknown_shape_are_refused() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(int8("digits_cnn"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    with pytest.raises(DynamicShapeError, match="shape_dict"):
        partition_for_vta(from_onnx(model))


def test_bound_parameters_are_weights() -> None:
    module = from_onnx(int8("digits_cnn"), keep_params_in_input=True)
    module, params = relax.frontend.detach_params(module)
    names = [str(p.name) for p in module["main"].params[1:]]
    bound = relax.transform.BindParams("main", dict(zip(names, params["main"], strict=True)))(
        module
    )
    new = partition_for_vta(bound)
    assert len(offloaded(new).layers) == 4
    (x,) = inputs_of(new, 1)
    np.testing.assert_array_equal(machine(new)(x)[0], integers(int8("digits_cnn"), [x])[0])


def test_the_lines_of_the_documentation_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "guides" / "tvm.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    result: dict[str, Any] = {}
    for block in blocks:
        exec(block, result)
    assert result["y"].shape == (1, 10)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) >= 5
    assert printed[0].startswith("lv3 nn.conv2d")


def test_importing_loads_no_tvm() -> None:
    code = (
        "import sys, tilewright.networks.tvm_runtime, tilewright.flows.tvm_partition\n"
        "sys.exit('tvm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
