"""Tests the fusion of attention: two products and the softmax between them become one function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import normal, reference

from tests.draws import nightly_after
from tests.networks.test_bfloat16_tensors import SPEC
from tests.networks.test_bfloat16_tensors import built as built_in_bfloat16
from tests.networks.test_compiled_libraries import built, close
from tilewright.networks.compiled import attention as joined_attention
from tilewright.networks.compiled.attention import FEWEST_ROWS
from tilewright.networks.tolerances import OF_BFLOAT16
from tilewright.networks.zoo.builder import Builder
from tilewright.networks.zoo.transformer import attention
from tilewright.targets.workload import parse_workload


@pytest.fixture(autouse=True)
def however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also join small attentions, and split them into tasks of as few rows as possible."""
    monkeypatch.setattr(joined_attention, "WORTH", 0)
    monkeypatch.setattr(joined_attention, "SCORES", 1)


def two_layers(rows: int, width: int, heads: int) -> onnx.ModelProto:
    net = Builder("small", (1, rows, width), 2, True)
    x = net.add(attention(net, net.input, "first", heads), net.input, "sum")
    return net.model(attention(net, x, "second", heads))


def drawn(
    nodes: Sequence[onnx.NodeProto], shapes: dict[str, tuple[int, ...]], outputs: Sequence[str],
    constants: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """Make a graph with float32 inputs of the given shapes."""
    graph = helper.make_graph(
        list(nodes), "attention",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def compared(model: onnx.ModelProto, folder: Path) -> int:
    """Compare the library with onnxruntime. Return the number of joined attentions."""
    import onnxruntime

    artifact = built(model, folder)
    shapes = {
        info.name: [d.dim_value for d in info.type.tensor_type.shape.dim]
        for info in model.graph.input
    }
    inputs = {name: normal(*shape, seed=n) for n, (name, shape) in enumerate(shapes.items())}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for ours, theirs in zip(
        artifact.infer(inputs).values(), session.run(None, inputs), strict=True
    ):
        assert close(ours, theirs)
    return sum("attention" in row for row in artifact.rows)


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize(
    ("rows", "width", "heads"), nightly_after(1, [(37, 32, 2), (64, 48, 3), (96, 40, 5)], 3)
)
def test_attentions_are_joined_and_give_what_onnxruntime_gives(
    rows: int, width: int, heads: int, tmp_path: Path
) -> None:
    """One number of rows divides evenly between tasks, another one is prime."""
    model = two_layers(rows, width, heads)
    artifact = built(model, tmp_path)
    parts = [row["part_of"] for row in artifact.rows if "part_of" in row]
    assert [number for number, row in enumerate(artifact.rows) if "attention" in row] == parts
    assert len(parts) == 2
    assert len({row["attention"] for row in artifact.rows if "attention" in row}) == 1
    x = normal(1, rows, width, seed=4)
    (ours,) = artifact.infer({"input": x}).values()
    assert close(ours, reference(model, x))


def test_a_profile_counts_a_joined_attention_as_one_call(tmp_path: Path) -> None:
    artifact = built(two_layers(2 * FEWEST_ROWS, 32, 2), tmp_path)
    _, profile = artifact.run({"input": normal(1, 2 * FEWEST_ROWS, 32)}, layers=True)
    assert len(profile.layers) == len(artifact.rows) - 2
    assert sum(layer.macs for layer in profile.layers) == sum(int(r["macs"]) for r in artifact.rows)  # type: ignore[call-overload]
    assert not [name for name, _ in profile.others if "softmax" in name]
    named = [layer for layer in profile.layers if layer.function.startswith("attention")]
    assert all({"first.scores", "first.context"} <= set(item.names) for item in named[:1])
    assert len(list(artifact.verify())) == len(artifact.rows) - 4


def product(softmax: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    return [
        helper.make_node("MatMul", ["q", "k"], ["scores"], name="scores"), *softmax,
        helper.make_node("MatMul", ["chances", "v"], ["out"], name="out"),
    ]  # fmt: skip


@pytest.mark.slow(seconds=5)
@pytest.mark.parametrize(
    ("rows", "width", "heads", "threads"),
    nightly_after(1, [(100, 160, 2, 5), (37, 64, 2, 1), (64, 96, 3, 1), (75, 32, 1, 2)], 5),
)
def test_attentions_in_bfloat16_are_joined(
    rows: int, width: int, heads: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks' row ranges overlap, and there are more threads than heads."""
    monkeypatch.setattr(joined_attention, "SCORES_OF_TILES", 1 << 13)
    model = two_layers(rows, width, heads)
    artifact = built_in_bfloat16(model, tmp_path, replace(SPEC, threads=threads))
    assert sum("attention" in row for row in artifact.rows) == 2
    x = normal(1, rows, width, seed=4)
    (ours,) = artifact.infer({"input": x}).values()
    theirs = reference(model, x)
    assert np.abs(ours - theirs).max() < OF_BFLOAT16 * np.abs(theirs).max()


@pytest.mark.parametrize(
    ("heads", "rows", "threads", "parts"),
    [(12, 128, 2, 1), (3, 197, 2, 2), (1, 197, 4, 4), (17, 64, 2, 1), (1, 40, 4, 1)],
)
def test_threads_share_heads_evenly(heads: int, rows: int, threads: int, parts: int) -> None:
    workload = parse_workload(f"batch_matmul:n={heads},h={rows},c=64,o={rows},dtype=bfloat16")
    assert joined_attention._parts(workload, threads) == parts


SHAPES = {"q": (2, 32, 8), "k": (2, 8, 32), "v": (2, 32, 8)}


def test_a_mask_and_a_scale_are_done_to_rows(tmp_path: Path) -> None:
    mask = np.where(np.tri(32, dtype=bool), 0, -1e4).astype(np.float32)
    nodes = [
        helper.make_node("Mul", ["scores", "scale"], ["scaled"], name="scale"),
        helper.make_node("Add", ["scaled", "mask"], ["masked"], name="mask"),
        helper.make_node("Softmax", ["masked"], ["chances"], name="softmax", axis=-1),
    ]
    constants = {"scale": np.float32(0.3) * np.ones(1, np.float32), "mask": mask}
    assert compared(drawn(product(nodes), SHAPES, ["out"], constants), tmp_path) == 1


def test_attention_may_have_more_keys_than_queries(tmp_path: Path) -> None:
    """The row length of the scores is not a multiple of the vector length."""
    nodes = [helper.make_node("Softmax", ["scores"], ["chances"], name="softmax", axis=-1)]
    shapes = {"q": (2, 32, 8), "k": (2, 8, 43), "v": (2, 43, 8)}
    assert compared(drawn(product(nodes), shapes, ["out"]), tmp_path) == 1


def test_scores_that_are_a_result_too_are_not_joined(tmp_path: Path) -> None:
    nodes = [helper.make_node("Softmax", ["scores"], ["chances"], name="softmax", axis=-1)]
    assert compared(drawn(product(nodes), SHAPES, ["out", "chances"]), tmp_path) == 0


def test_a_softmax_along_another_axis_is_not_joined(tmp_path: Path) -> None:
    nodes = [helper.make_node("Softmax", ["scores"], ["chances"], name="softmax", axis=1)]
    assert compared(drawn(product(nodes), SHAPES, ["out"]), tmp_path) == 0


def test_a_softmax_of_transposed_scores_is_not_joined(tmp_path: Path) -> None:
    """A row of the transposed scores depends on all rows of the product."""
    nodes = [
        helper.make_node("Transpose", ["scores"], ["turned"], name="turn", perm=[0, 2, 1]),
        helper.make_node("Softmax", ["turned"], ["chances"], name="softmax", axis=-1),
    ]
    assert compared(drawn(product(nodes), SHAPES, ["out"]), tmp_path) == 0


def test_heads_in_another_order_are_not_joined(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["scores"], ["turned"], name="turn", perm=[1, 0, 2, 3]),
        helper.make_node("Softmax", ["turned"], ["chances"], name="softmax", axis=-1),
    ]
    shapes = {"q": (2, 2, 32, 8), "k": (2, 2, 8, 32), "v": (2, 2, 32, 8)}
    assert compared(drawn(product(nodes), shapes, ["out"]), tmp_path) == 0
