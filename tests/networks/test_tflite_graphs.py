"""Tests TensorFlow Lite subgraphs, shapes that depend on values, and refused operators."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tflite
from numpy.typing import NDArray
from tflite_files import (
    File,
    branches,
    branches_behind_a_convolution,
    chosen_rows,
    general,
    loop,
)

import tilewright
from tilewright.flows.build import build_artifact
from tilewright.networks.errors import ModelFileError, UnsupportedOperatorError
from tilewright.networks.tflite.convert import REFUSED, RULES, read_tflite
from tilewright.networks.tflite.file import read_graph
from tilewright.search import LocalRunner
from tilewright.tuning.build_options import BuildOptions

COVERAGE = Path(__file__).parent.parent.parent / "docs/evidence/coverage.md"


def saved(path: Path, content: bytes) -> Path:
    path = path / "model.tflite"
    path.write_bytes(content)
    return path


def computed(path: Path, feeds: dict[str, Any]) -> list[NDArray[Any]]:
    model = read_tflite(path)
    onnx.checker.check_model(model, full_check=True)
    results: list[NDArray[Any]] = onnxruntime.InferenceSession(model.SerializeToString()).run(
        None, feeds
    )
    return results


def test_every_builtin_operator_has_a_rule_or_a_reason() -> None:
    words = {w for w, number in vars(tflite.BuiltinOperator).items() if isinstance(number, int)}
    assert words == set(RULES) | set(REFUSED)
    assert set(RULES).isdisjoint(REFUSED)


def test_refused_operators_are_documented_with_their_reasons() -> None:
    section = COVERAGE.read_text().partition("that are refused\n")[2].partition("\n## ")[0]
    documented = {
        word: row[2].strip()
        for row in (line.split("|") for line in section.splitlines() if line.startswith("| `"))
        for word in re.findall(r"`(\w+)`", row[1])
    }
    assert documented == dict(REFUSED)
    assert f"{len(RULES)} of the {len(RULES) + len(REFUSED)} builtin operators" in section
    assert f"{len(RULES) + len(REFUSED)} builtin operators" in section


@pytest.mark.parametrize("kind", sorted(set(REFUSED) - {"CUSTOM"}))
def test_a_refused_operator_is_named_with_its_reason(kind: str, tmp_path: Path) -> None:
    content = general(kind, [((2, 3), "FLOAT32")], [((2, 3), "FLOAT32")])
    with pytest.raises(UnsupportedOperatorError) as error:
        read_tflite(saved(tmp_path, content))
    assert f"'y0': {kind}: {REFUSED[kind]}" in str(error.value)


def test_each_branch_is_taken(tmp_path: Path) -> None:
    path = saved(tmp_path, branches())
    x = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
    (doubled,) = computed(path, {"p": np.array(True), "x": x})
    (moved,) = computed(path, {"p": np.array(False), "x": x})
    np.testing.assert_array_equal(doubled, 2 * x)
    np.testing.assert_array_equal(moved, np.maximum(x + np.float32([1.5, -2, 0.25]), 0))


def test_a_variable_that_no_turn_changes_is_not_carried(tmp_path: Path) -> None:
    model = read_tflite(saved(tmp_path, loop()))
    (node,) = [node for node in model.graph.node if node.op_type == "Loop"]
    # the trip count, the condition, and the two of four variables that change
    assert len(node.input) == 4
    body = onnx.helper.get_attribute_value(node.attribute[0])
    assert "limit" in {name for inner in body.node for name in inner.input}


def test_names_inside_graphs_are_used_once(tmp_path: Path) -> None:
    model = read_tflite(saved(tmp_path, loop(inner=True)))
    names: list[str] = [info.name for info in model.graph.input]
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        names += [tensor.name for tensor in graph.initializer]
        for node in graph.node:
            names += node.output
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    graphs.append(attribute.g)
                    names += [info.name for info in attribute.g.input]
    assert len(set(names)) == len(names)


def test_a_loop_may_turn_no_times(tmp_path: Path) -> None:
    total = np.arange(6, dtype=np.float32).reshape(2, 3)
    result = computed(saved(tmp_path, loop()), {"limit": np.array(-9, np.int32), "total": total})
    assert result[0] == -2
    np.testing.assert_array_equal(result[2], total)


def _conditional(**options: Any) -> bytes:
    f, g = File(), File()
    p, x, y = f.tensor("p", (), "BOOL"), *(f.tensor(n, (2, 3), "FLOAT32") for n in "xy")
    f.operator("IF", [p, x], [y], "IfOptions", **options)
    a, b = (g.tensor(name, (2, 3), "FLOAT32") for name in "ab")
    g.operator("IF", [g.constant("flag", np.array(True)), a], [b], "IfOptions",
               ThenSubgraphIndex=1, ElseSubgraphIndex=1)  # fmt: skip
    h = File()
    c, d = (h.tensor(name, (2, 3), "FLOAT32") for name in "cd")
    h.operator("RNN", [c], [d])
    return f.write([p, x], [y], [(g, [a], [b]), (h, [c], [d])])


def test_a_graph_inside_itself_is_refused(tmp_path: Path) -> None:
    content = _conditional(ThenSubgraphIndex=1, ElseSubgraphIndex=1)
    with pytest.raises(UnsupportedOperatorError, match="or one contains itself"):
        read_tflite(saved(tmp_path, content))


@pytest.mark.slow(seconds=2)
def test_graphs_that_execute_each_other_many_times_are_refused(tmp_path: Path) -> None:
    """Each of thirty graphs executes the next one twice, which makes 2^30 operators."""
    f = File()
    p, x, y = f.tensor("p", (), "BOOL"), *(f.tensor(n, (3,), "FLOAT32") for n in "xy")
    f.operator("IF", [p, x], [y], "IfOptions", ThenSubgraphIndex=1, ElseSubgraphIndex=1)
    graphs = []
    for number in range(1, 30):
        g = File()
        q, a, b = g.constant("q", np.array(True)), *(g.tensor(n, (3,), "FLOAT32") for n in "ab")
        g.operator("IF", [q, a], [b], "IfOptions", ThenSubgraphIndex=number + 1,
                   ElseSubgraphIndex=number + 1)  # fmt: skip
        graphs.append((g, [a], [b]))
    g = File()
    a, b = (g.tensor(name, (3,), "FLOAT32") for name in "ab")
    g.operator("NEG", [a], [b])
    with pytest.raises(UnsupportedOperatorError, match="have more than"):
        read_tflite(saved(tmp_path, f.write([p, x], [y], [*graphs, (g, [a], [b])])))


def test_an_operator_inside_a_branch_is_named(tmp_path: Path) -> None:
    content = _conditional(ThenSubgraphIndex=2, ElseSubgraphIndex=2)
    with pytest.raises(
        UnsupportedOperatorError, match="IF: in its graph, 'd': RNN: it keeps state"
    ):
        read_tflite(saved(tmp_path, content))


@pytest.mark.parametrize("number", [0, 3, -1])
def test_a_graph_that_is_not_there_is_refused(number: int, tmp_path: Path) -> None:
    content = _conditional(ThenSubgraphIndex=2, ElseSubgraphIndex=number)
    with pytest.raises(ModelFileError, match=f"refers to the graph {number}"):
        read_graph(saved(tmp_path, content))


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [((3, 3), "FLOAT32", "the shape of 'x'"), ((2, 3), "INT32", "with another type")],
)
def test_arguments_that_do_not_fit_a_graph_are_refused(
    shape: tuple[int, ...], dtype: str, reason: str, tmp_path: Path
) -> None:
    f, g = File(), File()
    x, y = (f.tensor(name, (2, 3), "FLOAT32") for name in "xy")
    f.operator("STABLEHLO_COMPOSITE", [x], [y], "StableHLOCompositeOptions",
               DecompositionSubgraphIndex=1)  # fmt: skip
    a, b = (g.tensor(name, shape, dtype) for name in "ab")
    g.operator("NEG", [a], [b])
    with pytest.raises(UnsupportedOperatorError, match=reason):
        read_tflite(saved(tmp_path, f.write([x], [y], [(g, [a], [b])])))


@pytest.mark.parametrize("count", [0, 1, 9])
def test_any_number_of_rows_may_be_chosen(count: int, tmp_path: Path) -> None:
    x = np.arange(27, dtype=np.float32).reshape(9, 3) + 1
    x[count:, 0] *= -1
    (result,) = computed(saved(tmp_path, chosen_rows()), {"x": x})
    np.testing.assert_array_equal(result, 2 * x[:count])
    total, shape = computed(saved(tmp_path, chosen_rows(True)), {"x": x})
    np.testing.assert_array_equal(total, 2 * x[:count].sum(0))
    np.testing.assert_array_equal(shape, [count, 3])


def test_an_operator_that_needs_a_size_that_depends_on_values_is_named(tmp_path: Path) -> None:
    f = File()
    x, places = f.tensor("x", (9,), "FLOAT32"), f.tensor("places", (1, 1), "INT64")
    parts = [f.tensor(f"part{i}", (1, 1), "INT64") for i in range(2)]
    f.operator("WHERE", [x], [places], "WhereOptions")
    f.operator("SPLIT", [f.constant("axis", np.array(0, np.int32)), places], parts, "SplitOptions",
               NumSplits=2)  # fmt: skip
    reason = "SPLIT: the size of its tensor 'places' depends on values"
    with pytest.raises(UnsupportedOperatorError, match=reason):
        read_tflite(saved(tmp_path, f.write([x], parts)))


def test_a_shape_that_follows_from_an_input_is_known(tmp_path: Path) -> None:
    """The batch is dynamic in the file. The shape depends on the input's shape, not its values."""
    f = File()
    x = f.tensor("x", (1, 6), "FLOAT32", signature=(-1, 6))
    shape, rows = f.tensor("shape", (2,), "INT32"), f.tensor("rows", (1,), "INT32")
    wanted, y = f.tensor("wanted", (2,), "INT32"), f.tensor("y", (1, 6), "FLOAT32",
                                                             signature=(-1, 6))  # fmt: skip
    numbers = [f.constant(f"n{i}", np.array([i], np.int32)) for i in (0, 1, 6)]
    f.operator("SHAPE", [x], [shape], "ShapeOptions", OutType=tflite.TensorType.INT32)
    f.operator("STRIDED_SLICE", [shape, numbers[0], numbers[1], numbers[1]], [rows],
               "StridedSliceOptions")  # fmt: skip
    f.operator("CONCATENATION", [rows, numbers[2]], [wanted], "ConcatenationOptions", Axis=0)
    f.operator("RESHAPE", [x, wanted], [y], "ReshapeOptions")
    model = read_tflite(saved(tmp_path, f.write([x], [y])))
    sizes = model.graph.output[0].type.tensor_type.shape.dim
    assert [size.dim_value for size in sizes] == [1, 6]


def test_complex_numbers_are_no_output_of_a_network(tmp_path: Path) -> None:
    content = general(
        "RFFT2D", [((4, 8), "FLOAT32"), np.array([4, 8], np.int32)], [((4, 5), "COMPLEX64")],
        "Rfft2dOptions",
    )  # fmt: skip
    with pytest.raises(UnsupportedOperatorError, match="RFFT2D: its complex numbers are an output"):
        read_tflite(saved(tmp_path, content))
    content = general("REAL", [((4, 5), "COMPLEX64")], [((4, 5), "FLOAT32")])
    with pytest.raises(UnsupportedOperatorError, match="REAL: its data are not complex numbers"):
        read_tflite(saved(tmp_path, content))


def test_an_angle_has_its_quadrant(tmp_path: Path) -> None:
    numbers = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan], np.float32)
    y, x = (grid.ravel() for grid in np.meshgrid(numbers, numbers))
    content = general("ATAN2", [((49,), "FLOAT32")] * 2, [((49,), "FLOAT32")])
    (result,) = computed(saved(tmp_path, content), {"x0": y, "x1": x})
    np.testing.assert_allclose(result, np.arctan2(y, x), rtol=1e-6)


def test_a_rule_that_gives_up_after_its_first_result_leaves_nothing_behind(tmp_path: Path) -> None:
    """The second result is quantised to 32 bits, which the writer refuses."""
    content = general(
        "TOPK_V2", [((9,), "FLOAT32"), np.array(2, np.int32)],
        [((2,), "FLOAT32"), ((2,), "INT32", 0.5, 0)], "TopKV2Options",
    )  # fmt: skip
    with pytest.raises(UnsupportedOperatorError, match="TOPK_V2: its result is quantised to 32"):
        read_tflite(saved(tmp_path, content))


@pytest.mark.parametrize(
    ("kind", "inputs", "result"),
    [
        (
            "REDUCE_WINDOW",
            [np.array([2**19]), np.array([1]), np.array([1])],
            2**19 + 1,
        ),
        ("DILATE", [np.array([2**31 - 1], np.int32)], 2**20),
    ],
)
def test_windows_of_absurd_sizes_are_refused_at_once(
    kind: str, inputs: list[Any], result: int, tmp_path: Path
) -> None:
    start = np.array(0, np.float32)
    others = [start, *inputs] if kind == "REDUCE_WINDOW" else [*inputs, start]
    options = {"REDUCE_WINDOW": {"ReduceFunction": 1}}.get(kind, {})
    content = general(
        kind,
        [((2**20,), "FLOAT32"), *others],
        [((result,), "FLOAT32")],
        "ReduceWindowOptions" if options else "DilateOptions",
        **options,
    )
    with pytest.raises(UnsupportedOperatorError, match="positions, but at most"):
        read_tflite(saved(tmp_path, content))


@pytest.mark.slow(seconds=5)
def test_an_artifact_takes_a_branch_behind_compiled_layers(tmp_path: Path) -> None:
    """The branches give results of different sizes, and the convolution before them is compiled."""
    path = saved(tmp_path, branches_behind_a_convolution())
    options = BuildOptions(model=str(path), out=tmp_path / "art", target="cpu", trials=0)
    assert build_artifact(LocalRunner(), options).manifest["layers"]
    session = tilewright.load(tmp_path / "art")
    reference = onnxruntime.InferenceSession(read_tflite(path).SerializeToString())
    rng, sizes = np.random.default_rng(0), set()
    for scale in (0.0, 0.3, 1.0, 3.0):
        x = (scale * rng.standard_normal((1, 8, 8, 3))).astype(np.float32)
        (expected,) = reference.run(None, {"x": x})
        (result,) = session.run(None, {"x": x})
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
        sizes.add(result.size)
    assert len(sizes) > 1
