"""Compares how C, Python and numpy convert a network's inputs and outputs.

The tests cover the order of the tensors, their data types, and their scales and zero points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from tests.board.boards import linked, run, served, write_artifact
from tests.board.graphs import PYNQ, layer, some_pick
from tests.board.programs import one_layer, with_ports
from tilewright.targets.artifact_types import Built, LayerGraph
from tilewright.targets.layer import Layer, Scale, Value
from tilewright.targets.vta.board.artifact_builder import VtaProgram, build
from tilewright.targets.vta.board.program_image import is_bare
from tilewright.targets.vta.board.runtime import NETWORK

Array = NDArray[Any]
POINTWISE = "conv2d:c=16,h=4,w=4,o=16,k=1"
SHAPE = (1, 16, 4, 4)


def scale(step: float, zero_point: int = 0) -> Scale:
    """Return a scale whose step is rounded to float32."""
    return Scale(float(np.float32(step)), zero_point)


def quantised(x: Array, of: Scale) -> Array:
    """Quantise to int8 as ONNX's QuantizeLinear does."""
    counts = np.rint(x / np.float32(of.step)).astype(np.float64) + of.zero_point
    return np.clip(counts, -128, 127).astype(np.int8)


def real(q: Array, of: Scale) -> Array:
    """Dequantise as ONNX's DequantizeLinear does."""
    counts: Array = (q.astype(np.int32) - of.zero_point).astype(np.float32)
    return np.asarray(counts * np.float32(of.step))


def pointwise(each: Layer, data: Array) -> Array:
    """Compute the output of a 1×1 convolution with the epilogue `RELU`."""
    assert each.weight is not None
    assert each.bias is not None
    weight = each.weight[:, :, 0, 0].astype(np.int64)
    sums = np.einsum("oc,nchw->nohw", weight, data.astype(np.int64))
    sums += each.bias[None, :, None, None]
    return np.clip(sums >> 8, 0, 127).astype(np.int8)


def two_layers(**rest: object) -> LayerGraph:
    """Return a graph that reads its second input first and writes its second output first."""
    first, second = layer("first", "b", "v", POINTWISE), layer("second", "a", "u", POINTWISE)
    values = {name: Value(name, SHAPE, "int8", scale(0.1)) for name in "abuv"}
    graph = LayerGraph(
        (first, second), values, ("u", "v"), {}, {},
        inputs=(values["a"], values["b"]), results=(values["u"], values["v"]),
    )  # fmt: skip
    return replace(graph, **rest)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Both:
    """A built network that can run in C and in Python."""

    built: Built
    folder: Path
    runtime: Path

    @classmethod
    def of(cls, graph: LayerGraph, folder: Path, runtime: Path) -> Both:
        """Build a network and write it to a folder."""
        built = build(graph, [some_pick(layer.workload, 3) for layer in graph.layers], PYNQ)
        for name, data in built.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        return cls(built, folder, runtime)

    def python(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Run the network in Python. Inputs and outputs are given by name."""
        return dict(VtaProgram.open(self.built.files, self.built.layers, PYNQ).run(0, tensors))

    def c(self, *inputs: Array) -> bytes:
        """Run the network in C. Inputs are in the manifest's order, outputs are concatenated."""
        data = b"".join(input_.tobytes() for input_ in inputs)
        done = run(self.runtime, self.folder, data, PYNQ)
        assert (done.code, done.said) == (0, "")
        assert done.output is not None
        return done.output

    def described(self) -> list[str]:
        """Return the C library's description of each input and output."""
        program = linked("describe.c", self.runtime, self.folder / "describe")
        done = served([program, self.folder], PYNQ)
        assert (done.code, done.said) == (0, "")
        assert done.output is not None
        return done.output.decode().splitlines()


def drawn(seed: int, shape: tuple[int, ...] = SHAPE) -> Array:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


@pytest.mark.slow(seconds=4)
def test_inputs_and_outputs_of_one_shape_are_in_the_order_of_the_manifest(
    tmp_path: Path, sanitized: Path
) -> None:
    graph = two_layers()
    first, second = graph.layers
    a, b = drawn(1), drawn(2)
    u, v = pointwise(second, a), pointwise(first, b)
    assert (u != v).any()
    both = Both.of(graph, tmp_path, sanitized)
    assert both.c(a, b) == u.tobytes() + v.tobytes()
    got = both.python({"a": a, "b": b})
    np.testing.assert_array_equal(got["u"], u)
    np.testing.assert_array_equal(got["v"], v)


@pytest.mark.slow(seconds=4)
def test_the_order_is_the_graphs_even_against_that_of_reading(
    tmp_path: Path, sanitized: Path
) -> None:
    graph = two_layers()
    values = graph.values
    graph = replace(
        graph, inputs=(values["b"], values["a"]), results=(values["v"], values["u"]),
        outputs=("v", "u"),
    )  # fmt: skip
    first, second = graph.layers
    a, b = drawn(1), drawn(2)
    both = Both.of(graph, tmp_path, sanitized)
    assert both.c(b, a) == pointwise(first, b).tobytes() + pointwise(second, a).tobytes()


def test_inputs_that_nothing_reads_are_taken_and_ignored(tmp_path: Path, sanitized: Path) -> None:
    graph = two_layers()
    assert graph.inputs is not None
    extra = [
        Value("ids", (1, 7), "int64"), Value("mask", (), "bool"), Value("none", (3, 0), "float16"),
        Value("image", SHAPE, "float32"),
    ]  # fmt: skip
    a, b = graph.inputs
    graph = replace(graph, inputs=(extra[0], a, *extra[1:3], b, extra[3]))
    ids, mask, none = np.arange(7), np.array([True]), np.zeros((3, 0), np.float16)
    image = np.full(SHAPE, np.nan, np.float32)
    both = Both.of(graph, tmp_path, sanitized)
    first, second = graph.layers
    wanted = pointwise(second, drawn(1)).tobytes() + pointwise(first, drawn(2)).tobytes()
    assert both.c(ids, drawn(1), mask, none, drawn(2), image) == wanted
    assert both.described() == [
        "in ids 5 0 0 56 1 7", "in a 1 0.100000001 0 256 1 16 4 4", "in mask 6 0 0 1",
        "in none 7 0 0 0 3 0", "in b 1 0.100000001 0 256 1 16 4 4", "in image 2 0 0 1024 1 16 4 4",
        "out u 1 0.100000001 0 256 1 16 4 4", "out v 1 0.100000001 0 256 1 16 4 4",
    ]  # fmt: skip


@pytest.mark.slow(seconds=0.5)
def test_float_and_uint8_tensors_with_zero_points_cross_the_border(
    tmp_path: Path, sanitized: Path
) -> None:
    """The network has a float and a uint8 input, and a float and a uint8 output."""
    scales = {"a": scale(0.0371, 5), "b": scale(0.5, -100), "u": scale(0.0113, -128),
              "v": scale(3.3, 17)}  # fmt: skip
    host = {"a": Value("x", SHAPE, "float32"), "b": Value("pixels", SHAPE, "uint8"),
            "u": Value("shades", SHAPE, "uint8"), "v": Value("y", SHAPE, "float32")}  # fmt: skip
    graph = two_layers(
        values={name: Value(name, SHAPE, "int8", scale) for name, scale in scales.items()},
        loaded_as={"a": host["a"], "b": host["b"]}, stored_as={"u": host["u"], "v": host["v"]},
        inputs=(host["a"], host["b"]), results=(host["u"], host["v"]),
    )  # fmt: skip
    x = np.random.default_rng(4).normal(0, 2, SHAPE).astype(np.float32)
    pixels = np.random.default_rng(5).integers(0, 256, SHAPE).astype(np.uint8)
    first, second = graph.layers
    u = pointwise(second, quantised(x, scales["a"]))
    v = pointwise(first, (pixels.astype(np.int16) - 128).astype(np.int8))
    shades, y = (u.astype(np.int16) + 128).astype(np.uint8), real(v, scales["v"])
    assert len(np.unique(u)) > 10
    assert len(np.unique(y)) > 10
    both = Both.of(graph, tmp_path, sanitized)
    assert both.c(x, pixels) == shades.tobytes() + y.tobytes()
    got = both.python({"x": x, "pixels": pixels})
    assert (got["shades"].dtype.name, got["y"].dtype.name) == ("uint8", "float32")
    np.testing.assert_array_equal(got["shades"], shades)
    np.testing.assert_array_equal(got["y"], y)
    assert both.described() == [
        "in x 2 0.0370999984 5 1024 1 16 4 4", "in pixels 4 0.5 28 256 1 16 4 4",
        "out shades 4 0.0113000004 0 256 1 16 4 4", "out y 2 3.29999995 17 1024 1 16 4 4",
    ]  # fmt: skip


def test_a_float_input_that_is_quantised_twice(tmp_path: Path, sanitized: Path) -> None:
    """Two layers read the same float input with different scales.

    The first layer's result is an output of the network and is also read by the second layer.
    """
    x = Value("x", SHAPE, "float32")
    values = {name: Value(name, SHAPE, "int8", item) for name, item in
              {"fine": scale(0.01, -3), "coarse": scale(0.3), "u": scale(1.0), "v": scale(0.7)}
              .items()}  # fmt: skip
    steps = (
        layer("one", "fine", "u", POINTWISE),
        layer("two", "u", "v", POINTWISE, "bias, residual 3, >> 8, min 127, max 0",
              residual="coarse"),
    )  # fmt: skip
    graph = LayerGraph(
        steps, values, ("u", "v"), {"fine": x, "coarse": x},
        {"u": Value("early", SHAPE, "float32", scale(0.25, 4)), "v": Value("y", SHAPE, "float32")},
        inputs=(x,), results=(Value("early", SHAPE, "float32"), Value("y", SHAPE, "float32")),
    )  # fmt: skip
    image = np.random.default_rng(6).normal(0, 1, SHAPE).astype(np.float32)
    u = pointwise(steps[0], quantised(image, scale(0.01, -3)))
    coarse = quantised(image, scale(0.3)).astype(np.int64)
    weight = steps[1].weight[:, :, 0, 0].astype(np.int64)  # type: ignore[index]
    sums = np.einsum("oc,nchw->nohw", weight, u.astype(np.int64)) + (coarse << 3)
    sums += steps[1].bias[None, :, None, None]  # type: ignore[index]
    v = np.clip(sums >> 8, 0, 127).astype(np.int8)
    # An output may have another scale on the host than in the layers. The host's scale is used.
    early, y = real(u, scale(0.25, 4)), real(v, scale(0.7))
    both = Both.of(graph, tmp_path, sanitized)
    assert both.c(image) == early.tobytes() + y.tobytes()
    got = both.python({"x": image})
    np.testing.assert_array_equal(got["early"], early)
    np.testing.assert_array_equal(got["y"], y)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda g: {"results": (*g.results, Value("w", SHAPE))}, "must compute w, which no"),
        (lambda g: {"results": (g.inputs[0], *g.results)}, "must compute a, which no layer"),
        (lambda g: {"inputs": g.inputs[1:]}, "must compute a, which no input provides"),
        (lambda g: {"inputs": (*g.inputs, Value("s", (1,), "object"))}, "s is object with shape"),
        (lambda g: {"inputs": (*g.inputs, Value("s", (1,) * 9))}, "which the runtime does not"),
    ],
)
def test_what_the_c_runtime_could_not_give_or_take_is_named(change: Any, why: str) -> None:
    graph = two_layers()
    graph = replace(graph, **change(graph))
    built = build(graph, [some_pick(layer.workload, 3) for layer in graph.layers], PYNQ)
    assert why in built.why_not_bare
    assert not is_bare(built.files[NETWORK])
    program = VtaProgram.open(built.files, built.layers, PYNQ)
    first, second = graph.layers
    got = program.run(0, {"a": drawn(1), "b": drawn(2)})
    np.testing.assert_array_equal(got["u"], pointwise(second, drawn(1)))
    np.testing.assert_array_equal(got["v"], pointwise(first, drawn(2)))


def onnx_quantised(x: Array, of: Scale) -> Array:
    """Quantise to int8 with onnxruntime."""
    step = onnx.numpy_helper.from_array(np.array(of.step, np.float32), "s")
    zero = onnx.numpy_helper.from_array(np.array(of.zero_point, np.int8), "z")
    node = onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node], "q", [info("x", onnx.TensorProto.FLOAT, x.shape)],
        [info("q", onnx.TensorProto.INT8, x.shape)], [step, zero],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
    model.ir_version = 8
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize(
    ("step", "zero_point"),
    [(0.0371, -3), (1 / 3, 127), (2.0**-20, 0), (1.17549435e-38, -128), (1.2e38, 5)],
)
def test_floats_become_what_onnxruntime_makes_of_them(
    step: float, zero_point: int, tmp_path: Path, sanitized: Path
) -> None:
    """The inputs include ties and their float32 neighbours, infinities, and large values."""
    made = one_layer("dense:n=1,c=2000,o=16", PYNQ)
    of, out = scale(step, zero_point), scale(0.37, 11)
    rng = np.random.default_rng(1)
    with np.errstate(over="ignore"):
        halves = (np.arange(-260, 260, 0.5) * of.step).astype(np.float32)
        x = np.concatenate([
            halves[:600], np.nextafter(halves[200:840], np.float32(np.inf)),
            np.nextafter(halves[200:840], np.float32(-np.inf)),
            np.array([np.inf, -np.inf, 0, -0.0]),
            (rng.normal(0, 100, 116) * of.step),
        ]).astype(np.float32)  # fmt: skip
        wanted = quantised(x, of)
    np.testing.assert_array_equal(wanted, onnx_quantised(x, of))
    floats = write_artifact(tmp_path / "float", with_ports(made, of, out))
    integers = write_artifact(tmp_path / "int8", made.program)
    done = run(sanitized, floats, x.tobytes(), PYNQ)
    same = run(sanitized, integers, wanted.tobytes(), PYNQ)
    assert (done.code, done.said, same.code) == (0, "", 0)
    assert done.output is not None
    assert same.output is not None
    assert done.output == real(np.frombuffer(same.output, np.int8), out).tobytes()


def test_uint8_is_int8_and_128_more(tmp_path: Path, sanitized: Path) -> None:
    made = one_layer("dense:n=1,c=256,o=40", PYNQ)
    program = with_ports(made, scale(0.1, 7), scale(0.2, -128), "uint8")
    pixels = (made.data.astype(np.int16) + 128).astype(np.uint8)
    done = run(sanitized, write_artifact(tmp_path / "art", program), pixels.tobytes(), PYNQ)
    assert (done.code, done.said) == (0, "")
    wanted = (made.expected.astype(np.int16) + 128).astype(np.uint8)
    assert done.output == wanted.tobytes()
