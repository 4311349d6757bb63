"""Compares float networks that are compiled for this CPU with onnxruntime."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import normal, reference
from onnxruntime import quantization
from onnxruntime.quantization import CalibrationDataReader, QuantFormat
from quantised_graphs import Graph

from tests.draws import nightly_after
from tilewright import networks
from tilewright.core.files import Json
from tilewright.flows.build import build_artifact
from tilewright.networks import zoo
from tilewright.networks.artifact import ArtifactError, CompiledArtifact, load
from tilewright.networks.artifact.library import compile_files
from tilewright.networks.artifact.library_profile import CallTime, profile_of
from tilewright.networks.artifact.manifest import serialise_manifest, write_folder
from tilewright.networks.compiled.layers import kernel_layers
from tilewright.networks.errors import InputError
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.offloading.decisions import decide_offloading
from tilewright.networks.tolerances import OF_FLOAT32, OF_QUANTISED
from tilewright.networks.zoo.builder import Builder
from tilewright.networks.zoo.transformer import attention, feed_forward
from tilewright.search import LocalRunner
from tilewright.targets import make_target
from tilewright.targets.artifact_types import Pick
from tilewright.targets.capabilities import specification_of
from tilewright.targets.cpu.kernels.int8_dot_product import computes_int8
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.spec import this_machine
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.kernels import KernelCode, aligned_empty
from tilewright.targets.workload import Workload
from tilewright.tuning.build_options import BuildOptions

FILES = {"manifest.json", "network.so", "check.npz"}


def small_mobile(net: Builder) -> str:
    """Return the building blocks of MobileNet-v2, with channels that do not fill whole vectors.

    They are a strided stem, an inverted residual, a concatenation, pools, and a clip that no kernel
    supports.
    """
    x = net.relu6(
        net.conv(net.input, "stem", 24, kernel=3, stride=2, pad=1, bias=True), "stem.clip"
    )
    y = net.relu6(net.conv(x, "expand", 48, kernel=1, bias=True), "expand.clip")
    y = net.relu6(net.conv(y, "depthwise", 48, kernel=3, pad=1, groups=48, bias=True), "dw.clip")
    x = net.add(net.conv(y, "project", 24, kernel=1, bias=True), x, "residual")
    pooled = net.average_pool(x, "average", kernel=3, stride=1, pad=1)
    x = net.concat([net.max_pool(x, "maximum", kernel=3, stride=1, pad=1), pooled], "concat")
    x = net.relu(net.conv(x, "wide", 32, kernel=3, stride=2, pad=1, bias=True), "wide.relu")
    x = net.hard_swish(net.conv(x, "rows", 20, kernel=(1, 3), pad=(0, 1)), "swish")
    return net.dense(net.flatten(net.global_average_pool(x, "pool"), "flatten"), "fc", 7)


def small_transformer(net: Builder) -> str:
    """Return one transformer layer: embedding, attention, feed-forward layer and layer norms."""
    x = net.layer_norm(net.embedding(net.input, "words", 50, 32), "norm0", 1e-5)
    x = net.layer_norm(net.add(attention(net, x, "attention", 2), x, "add1"), "norm1", 1e-5)
    y = net.add(feed_forward(net, x, "ffn", 64), x, "add2")
    return net.dense(net.take(y, "first", index=0, axis=1), "classifier", 3)


def built(model: onnx.ModelProto | str, folder: Path) -> CompiledArtifact:
    """Build an artifact with the rule schedules of the kernels. Nothing is measured."""
    if not isinstance(model, str):
        path = folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        model = str(path)
    target, whole = make_target("cpu"), networks.load(model).whole
    assert isinstance(target, CpuTarget)
    layers = kernel_layers(whole.flat, target.space)
    picks = {layer.workload: by_rule(target, layer.workload) for layer in layers}
    total = sum(layer.workload.macs for layer in layers)
    made = compile_files(whole, layers, picks, target, "cpu", name="small", total_macs=total)
    write_folder(folder / "art", made.files, made.manifest)
    result = load(folder / "art", allow_code=True)
    assert isinstance(result, CompiledArtifact)
    return result


def by_rule(target: CpuTarget, workload: Workload) -> Pick:
    space = target.space(workload)
    values = kernel_for(workload, target.spec).baseline_values(workload, target.spec)
    return Pick(space.name, tuple(knob.values.index(values[knob.name]) for knob in space.knobs))


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the artifact of `digits_cnn`, which tests only read."""
    folder = tmp_path_factory.mktemp("digits")
    built("digits_cnn", folder)
    return folder / "art"


@pytest.fixture
def copy(digits: Path, tmp_path: Path) -> Path:
    """Return a copy of the artifact that a test may damage."""
    shutil.copytree(digits, tmp_path / "art")
    return tmp_path / "art"


def close(ours: NDArray[Any], theirs: NDArray[Any]) -> bool:
    return float(np.abs(ours - theirs).max()) <= OF_FLOAT32 * float(np.abs(theirs).max())


@pytest.mark.slow(seconds=0.5)
def test_the_digits_network_gives_what_onnxruntime_gives(digits: Path) -> None:
    artifact = load(digits, allow_code=True)
    assert isinstance(artifact, CompiledArtifact)
    assert {path.name for path in digits.iterdir()} == FILES
    image = normal(1, 1, 8, 8, seed=5)
    (ours,) = artifact.infer({"input": image}).values()
    assert close(ours, reference(zoo.build("digits_cnn"), image))


@pytest.mark.slow(seconds=0.5)
def test_every_kernel_and_the_whole_are_held_against_references(digits: Path) -> None:
    artifact = load(digits, allow_code=True)
    assert isinstance(artifact, CompiledArtifact)
    checks = list(artifact.verify())
    assert len(checks) == len(artifact.rows) >= 3
    assert not any(check.is_wrong for check in checks)
    assert 0 < artifact.output_error() < OF_FLOAT32


@pytest.mark.slow(seconds=0.5)
def test_a_profile_has_a_time_for_each_layer(digits: Path) -> None:
    artifact = load(digits, allow_code=True)
    assert isinstance(artifact, CompiledArtifact)
    _, profile = artifact.run({"input": normal(1, 1, 8, 8)}, layers=True)
    assert [layer.name for layer in profile.layers] == [row["name"] for row in artifact.rows]
    assert all(layer.seconds > 0 for layer in profile.layers)
    assert profile.seconds > 0


@pytest.mark.slow(seconds=1.5)
@pytest.mark.parametrize("size", [(17, 19), (32, 32)])
def test_a_small_mobile_network_gives_what_onnxruntime_gives(
    size: tuple[int, int], tmp_path: Path
) -> None:
    net = Builder("small", (1, 3, *size), seed=1, weights=True)
    model = net.model(small_mobile(net))
    artifact = built(model, tmp_path)
    names = {name for row in artifact.rows for name in row["names"]}  # type: ignore[union-attr]
    assert {"stem", "stem.clip", "project", "residual", "wide"} <= names
    image = normal(1, 3, *size, seed=3)
    (ours,) = artifact.infer({"input": image}).values()
    assert close(ours, reference(model, image))


@pytest.mark.slow(seconds=1)
def test_a_transformer_gives_what_onnxruntime_gives(tmp_path: Path) -> None:
    net = Builder("small", (1, 9), 2, True, "tokens", TensorProto.INT64)
    model = net.model(small_transformer(net))
    artifact = built(model, tmp_path)
    assert "batch_matmul" in {str(row["workload"]).partition(":")[0] for row in artifact.rows}
    tokens = np.random.default_rng(3).integers(0, 50, (1, 9))
    (ours,) = artifact.infer({"tokens": tokens}).values()
    assert close(ours, reference(model, tokens))


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("batch", [1, 3])
def test_products_of_attention_read_and_write_heads_where_they_lie(
    batch: int, tmp_path: Path
) -> None:
    net = Builder("small", (batch, 9), 2, True, "tokens", TensorProto.INT64)
    model = net.model(small_transformer(net))
    artifact = built(model, tmp_path)
    moved = [row["moved"] for row in artifact.rows if "moved" in row]
    places = [[item["parameter"] for item in row] for row in moved]  # type: ignore[index, union-attr]
    assert places == [[0], [1, 2]]  # queries, not keys; values and the result
    assert not any(check.is_wrong for check in artifact.verify())
    tokens = np.random.default_rng(3).integers(0, 50, (batch, 9))
    (ours,) = artifact.infer({"tokens": tokens}).values()
    assert close(ours, reference(model, tokens))
    _, profile = artifact.run({"tokens": tokens}, layers=True)
    others = [name for name, _ in profile.others]
    copies = [name for name in others if re.fullmatch(r"(fused)?(_?reshape\d*)+", name)]
    assert not copies
    assert any(re.fullmatch(r"fused_multiply\d*_softmax\d*", name) for name in others)


def test_a_batch_norm_that_no_layer_takes_in_stays_in_blocks_of_channels(tmp_path: Path) -> None:
    """As in DenseNet, the BatchNorm precedes a convolution."""
    net = Builder("small", (1, 3, 12, 12), seed=1, weights=True)
    x = net.conv(net.input, "first", 16, kernel=3, pad=1, bias=True)
    y = net.conv(x, "second", 16, kernel=1, bias=True)
    model = net.model(net.conv(net.concat([x, y], "concat"), "last", 16, kernel=3, pad=1))
    last = model.graph.node[-1]
    drawn = {f"norm.{n}": np.abs(normal(32, seed=n)) + 0.1 for n in range(4)}
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in drawn.items()
    )
    norm = helper.make_node(
        "BatchNormalization", [last.input[0], *drawn], ["normed"], name="norm", epsilon=1e-2
    )
    last.input[0] = "normed"
    model.graph.node.insert(len(model.graph.node) - 1, norm)
    artifact = built(model, tmp_path)
    image = normal(1, 3, 12, 12, seed=3)
    (ours,) = artifact.infer({"input": image}).values()
    assert close(ours, reference(model, image))
    _, profile = artifact.run({"input": image}, layers=True)
    assert not any("batch_norm" in name for name, _ in profile.others)


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("keepdims", nightly_after(1, [0, 1]))
@pytest.mark.parametrize("reduction", ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"])
def test_a_reduction_over_pixels_reads_blocks_of_channels(
    reduction: str, keepdims: int, tmp_path: Path
) -> None:
    given = ["c", "axes"] if reduction == "ReduceSum" else ["c"]
    axes = {} if reduction == "ReduceSum" else {"axes": [2, 3]}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node(reduction, given, ["r"], keepdims=keepdims, **axes),
        helper.make_node("Flatten", ["r"], ["y"]),
    ]  # fmt: skip
    tensors = {"w": normal(24, 8, 3, 3), "axes": np.array([2, 3])}
    model = _model(nodes, tensors, (2, 8, 9, 7))
    names, result = _run(built(model, tmp_path), x := normal(2, 8, 9, 7))
    np.testing.assert_allclose(result, reference(model, x), rtol=1e-4, atol=1e-4)
    assert sum("transpose" in name for name in names) == 1  # of the image given


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize(("mode", "place"), [
    ("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners"),
    ("cubic", "pytorch_half_pixel"),
])  # fmt: skip
def test_a_resize_between_layers_reads_blocks_of_channels(
    mode: str, place: str, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node(
            "Resize", ["c", "", "", "sizes"], ["r"], mode=mode,
            coordinate_transformation_mode=place, nearest_mode="floor",
        ),
        helper.make_node("Conv", ["r", "v"], ["y"]),
    ]  # fmt: skip
    tensors = {
        "w": normal(24, 8, 3, 3), "v": normal(16, 24, 3, 3), "sizes": np.array([1, 24, 18, 20]),
    }  # fmt: skip
    model = _model(nodes, tensors, (1, 8, 9, 7))
    names, result = _run(built(model, tmp_path), x := normal(1, 8, 9, 7))
    np.testing.assert_allclose(result, reference(model, x), rtol=1e-3, atol=1e-3)
    assert not any("resize" in name and "transpose" in name for name in names)


@pytest.mark.parametrize("size", [4, 100])  # a small input is copied, a large one read in place
def test_what_an_inference_gave_stays_as_it_was(size: int, tmp_path: Path) -> None:
    """One output is a reshaped input."""
    shape = [1, 3, size, size]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["made"]),
            helper.make_node("Reshape", ["x", "flat"], ["same"]),
        ],
        "passing",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("made", "same")],
        [numpy_helper.from_array(normal(8, 3, 3, 3), "w"),
         numpy_helper.from_array(np.array([1, -1]), "flat")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    artifact = built(onnx.shape_inference.infer_shapes(model), tmp_path)
    drawn = [aligned_empty(shape, np.dtype(np.float32)) for _ in range(3)]
    for seed, x in enumerate(drawn):
        x[...] = normal(*shape, seed=seed)
    made = [artifact.infer({"x": x}) for x in drawn]
    wanted = [(x.reshape(1, -1).copy(), reference(model, x)) for x in drawn]
    for x in drawn:
        x[...] = 0  # as a caller does who reads the next image into the same array
    for (same, result), outputs in zip(wanted, made, strict=True):
        assert close(outputs["same"], same)
        assert close(outputs["made"], result)


def test_a_layers_time_is_that_of_its_own_kernel() -> None:
    """TVM may call a short branch first that comes last in the model."""
    layers = [
        CallTime(name, (name,), "conv2d", 1, function)
        for name, function in (("a", "wide"), ("b", "long"), ("c", "wide"), ("d", "short"))
    ]
    calls = [("short", 4.0), ("wide", 1.0), ("add", 7.0), ("wide", 3.0), ("long", 2.0)]
    profile = profile_of(layers, np.array([9.0]), [calls])
    assert {layer.name: layer.seconds for layer in profile.layers} == {
        "a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0,
    }  # fmt: skip
    assert profile.others == (("add", 7.0),)


def _model(
    nodes: list[onnx.NodeProto], tensors: dict[str, NDArray[Any]], shape: tuple[int, ...]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "packed", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def _run(artifact: CompiledArtifact, x: NDArray[Any]) -> tuple[list[str], NDArray[Any]]:
    """Run the artifact. Return the names of the functions that TVM compiled, and the output."""
    result, spent = artifact.run({"x": x}, layers=True)
    return [name for name, _ in spent.others], result["y"]


@pytest.mark.slow(seconds=0.5)
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_changed_byte_is_refused(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(ArtifactError):
        load(copy, allow_code=True)


def spoiled(folder: Path, change: Callable[[dict[str, Json]], None]) -> Path:
    """Change the manifest in a folder and update its digest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["sha256"]
    change(manifest)
    (folder / "manifest.json").write_bytes(serialise_manifest(manifest))
    return folder


def without_library(manifest: dict[str, Any]) -> None:
    del manifest["files"]["network.so"]


def for_no_processor(manifest: dict[str, Any]) -> None:
    manifest["specification"]["keys"] = {"threads": 0}


def for_an_accelerator(manifest: dict[str, Any]) -> None:
    keys = specification_of(make_target("vta-pynq"))
    manifest["specification"] |= {"kind": "vta", "keys": keys}


def without_layers(manifest: dict[str, Any]) -> None:
    manifest["layers"] = 3


@pytest.mark.slow(seconds=0.5)
@pytest.mark.parametrize(
    "change", [without_library, for_no_processor, for_an_accelerator, without_layers]
)
def test_a_manifest_that_fits_nothing_is_refused(
    copy: Path, change: Callable[[dict[str, Json]], None]
) -> None:
    with pytest.raises(ArtifactError):
        load(spoiled(copy, change), allow_code=True)


def by_another_tvm(manifest: dict[str, Any]) -> None:
    manifest["tvm"] = "0.1"


@pytest.mark.slow(seconds=0.5)
def test_what_another_tvm_compiled_does_not_run(copy: Path) -> None:
    with pytest.raises(ArtifactError, match=r"TVM 0\.1"):
        load(spoiled(copy, by_another_tvm), allow_code=True).infer({"input": normal(1, 1, 8, 8)})


@pytest.mark.slow(seconds=0.5)
@pytest.mark.parametrize("inputs", [{}, {"input": normal(1, 1, 8, 9)}, {"x": normal(1, 1, 8, 8)}])
def test_arrays_that_do_not_fit_are_refused(
    digits: Path, inputs: dict[str, NDArray[np.float32]]
) -> None:
    with pytest.raises(InputError):
        load(digits, allow_code=True).run(inputs)


@pytest.mark.parametrize(
    "options",
    [{"keep_float": ("conv1",)}, {"bare": True}],
)
def test_what_is_about_integers_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="int8"):
        build_artifact(
            LocalRunner(),
            BuildOptions(model="digits_cnn", out=tmp_path / "art", target="cpu", **options),
        )


@pytest.mark.slow(seconds=3)
def test_a_target_that_computes_in_float_gets_float_workloads_without_padding() -> None:
    workloads = networks.load("digits_cnn").workloads_on(Accelerator.for_target(make_target("cpu")))
    texts = [(str(w), [str(step) for step in w.epilogue]) for w, _, _ in workloads]
    assert texts[0] == ("conv2d:n=1,c=1,h=8,w=8,o=16,k=3,s=1,p=1,dtype=float32", ["bias", "max 0"])
    assert texts[-1][0] == "dense:n=1,c=128,o=10,dtype=float32"
    assert all(w.dtype == "float32" for w, _, _ in workloads)


def quantised() -> onnx.ModelProto:
    """Return a QDQ network with a stem, a depthwise and a 1×1 convolution."""
    net = Graph()
    x = net.quantise(net.input("x", (1, 3, 16, 16)), -6)
    stem = net.conv(x, "stem", (16, 3, 3, 3), (-6, -7), strides=[2, 2], pads=[1, 1, 1, 1])
    stem = net.quantise(net.op("Relu", "relu", [stem]), -5)
    conv = net.conv(stem, "each", (16, 1, 3, 3), (-5, -7), group=16, pads=[1, 1, 1, 1])
    conv = net.quantise(conv, -5)
    point = net.quantise(net.conv(conv, "point", (32, 16, 1, 1), (-5, -7)), -4)
    return net.model((point, (1, 32, 8, 8)))


@pytest.mark.parametrize("precision", ["", "f32"])
def test_layers_of_a_quantised_network_multiply_its_integers_unless_asked_not_to(
    precision: str, tmp_path: Path
) -> None:
    path = tmp_path / "quantised.onnx"
    path.write_bytes(quantised().SerializeToString())
    network = networks.load(str(path))
    target = CpuTarget(replace(this_machine(), precision=precision))
    decisions = decide_offloading(network.examined, Accelerator.for_target(target))
    result = {d.fused.node: d.workload for d in decisions if d.workload is not None}
    assert set(result) == {"stem", "each", "point"}
    integers = computes_int8(target.spec) and not precision
    kinds = {workload.dtype for workload in result.values()}
    assert kinds == {"int8" if integers else "float32"}
    wanted = ["dequantise", "bias", "max", "quantise"] if integers else ["bias", "max"]
    assert [step.kind for step in result["stem"].epilogue] == wanted


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize("form", nightly_after(1, ["QDQ", "QOperator"], 10))
@pytest.mark.parametrize("per_channel", nightly_after(1, [True, False], 10))
def test_what_onnxruntime_quantised_gives_what_onnxruntime_gives(
    form: str, per_channel: bool, tmp_path: Path
) -> None:
    """The default is asymmetric uint8 activations with scales that are not powers of two."""
    net = Builder("small", (1, 3, 24, 24), seed=0, weights=True)
    onnx.save(net.model(small_mobile(net)), tmp_path / "float.onnx")
    quantise_static(tmp_path / "float.onnx", tmp_path / "int8.onnx", form, per_channel)
    options = BuildOptions(
        model=str(tmp_path / "int8.onnx"), out=tmp_path / "art", target="cpu", trials=0
    )
    made = build_artifact(LocalRunner(), options)
    assert made.manifest["tolerance"] == OF_QUANTISED
    artifact = load(tmp_path / "art", allow_code=True)
    session = onnxruntime.InferenceSession(tmp_path / "int8.onnx")
    apart = []
    for seed in range(20):
        image = normal(1, 3, 24, 24, seed=seed)
        (ours,) = artifact.infer({"input": image}).values()
        (theirs,) = session.run(None, {"input": image})
        apart.append(np.abs(ours - theirs).max() / np.abs(theirs).max())
    assert np.median(apart) < 0.02  # about two steps of 256
    assert max(apart) < 0.1


def quantise_static(source: Path, out: Path, form: str, per_channel: bool) -> None:
    class Samples(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(range(8))

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            seed = next(self.left, None)
            return None if seed is None else {"input": normal(1, 3, 24, 24, seed=100 + seed)}

    quantization.quantize_static(
        source, out, Samples(), quant_format=QuantFormat[form], per_channel=per_channel
    )


@pytest.mark.slow(seconds=8)
def test_a_library_that_is_too_far_off_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "quantised.onnx"
    path.write_bytes(quantised().SerializeToString())
    options = BuildOptions(model=str(path), out=tmp_path / "art", target="cpu", trials=0)
    options = options.model_copy(update={"tolerance": -1.0})  # its integers are exact
    with pytest.raises(ArtifactError, match=r"off by .* the tolerance is -1; raise --tolerance"):
        build_artifact(LocalRunner(), options)
    assert not (tmp_path / "art").exists()


@pytest.mark.slow(seconds=6)
def test_given_samples_say_how_accurate_a_library_is(tmp_path: Path) -> None:
    images = np.random.default_rng(5).random((6, 1, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", input=images)
    options = BuildOptions(
        model="digits_cnn",
        out=tmp_path / "art",
        target="cpu",
        trials=0,
        calibration=tmp_path / "samples.npz",
    )
    manifest = build_artifact(LocalRunner(), options).manifest
    accuracy = manifest["accuracy"]
    assert isinstance(accuracy, dict)
    assert accuracy["samples"] == 6
    artifact = load(tmp_path / "art", allow_code=True)
    assert isinstance(artifact, CompiledArtifact)
    theirs = np.stack([reference(zoo.build("digits_cnn"), image[None]) for image in images])
    name = artifact.outputs[0].name
    ours = np.stack([artifact.infer({"input": image[None]})[name] for image in images])
    off = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    assert accuracy["error"] == pytest.approx(off, rel=0.5, abs=1e-6)


@pytest.mark.nightly(seconds=10)
def test_samples_beyond_the_bound_refuse_a_library(tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", input=np.ones((2, 1, 8, 8), np.float32))
    options = BuildOptions(
        model="digits_cnn", out=tmp_path / "art", target="cpu", trials=0, tolerance=1e-12,
        calibration=tmp_path / "samples.npz",
    )  # fmt: skip
    with pytest.raises(ArtifactError, match="the bound is 1e-12"):
        build_artifact(LocalRunner(), options)


class KernelsWithoutEpilogue(CpuTarget):
    """A target whose kernels are wrong: they leave out the clips of a layer's epilogue."""

    def kernel(self, workload: Workload, config: Sequence[int]) -> KernelCode:
        bare = tuple(op for op in workload.epilogue if op.kind not in ("min", "max"))
        return super().kernel(workload.with_steps(bare), config)


@pytest.mark.slow(seconds=1)
def test_a_library_with_a_wrong_kernel_is_refused_whatever_the_bound() -> None:
    target, whole = KernelsWithoutEpilogue(this_machine()), networks.load("digits_cnn").whole
    layers = kernel_layers(whole.flat, target.space)
    picks = {layer.workload: by_rule(target, layer.workload) for layer in layers}
    assert any("max" in {op.kind for op in workload.epilogue} for workload in picks)
    with pytest.raises(ArtifactError, match=r"the kernel of layer .* is off by"):
        compile_files(
            whole, layers, picks, target, "cpu", name="small", total_macs=1, tolerance=1e9
        )
