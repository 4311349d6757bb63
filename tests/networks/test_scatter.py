"""Tests ScatterND: it writes whole vectors in the order of the updates, with several threads."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from tvm import relax
from tvm.ir import IRModule

from tests.draws import examples
from tilewright.networks.compiled.library import compiled_library
from tilewright.networks.compiled.loaded_library import LoadedLibrary
from tilewright.networks.model_runner import run_feeds
from tilewright.targets.cpu.compile import llvm_target, lowering
from tilewright.targets.cpu.spec import CpuSpec

COMBINED = {
    "update": lambda old, new: new, "add": np.add, "mul": np.multiply, "min": np.minimum,
    "max": np.maximum,
}  # fmt: skip


@pytest.mark.slow(seconds=8)
@settings(max_examples=examples(15), deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=2),
    st.sampled_from(((64,), (2, 24), (7,), (13,))),
    st.integers(1, 40), st.sampled_from(tuple(COMBINED)),
)  # fmt: skip
def test_the_result_is_numpys(
    places: list[int], row: tuple[int, ...], updates: int, reduction: str
) -> None:
    rng = np.random.default_rng(0)
    data = rng.standard_normal((*places, *row)).astype(np.float32)
    new = rng.standard_normal((updates, *row)).astype(np.float32)
    at = np.stack([rng.integers(0, size, updates) for size in places], -1)
    arrays = data, at, new
    builder = relax.BlockBuilder()
    params = [
        relax.Var(name, relax.TensorType(array.shape, str(array.dtype)))
        for name, array in zip("xiu", arrays, strict=True)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            made = builder.emit_output(relax.op.scatter_nd(*params, reduction))
        builder.emit_func_output(made)
    module: IRModule = builder.finalize()
    content, weights = compiled_library(module, llvm_target(CpuSpec.parse("")), lowering())
    want = data.copy()
    for place, values in zip(map(tuple, at), new, strict=True):
        want[place] = COMBINED[reduction](want[place], values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.so"
        path.write_bytes(content)
        (result,) = LoadedLibrary(path, weights)(arrays)
    np.testing.assert_allclose(result, want, rtol=1e-6)


def test_the_reference_loses_no_sum() -> None:
    """With several threads, onnxruntime 1.31 often loses sums that go to the same row."""
    updates, width = 2000, 4096
    node = helper.make_node("ScatterND", ["x", "at", "new"], ["y"], reduction="add")
    graph = helper.make_graph(
        [node], "sums",
        [helper.make_tensor_value_info("x", 1, (1, width)),
         helper.make_tensor_value_info("new", 1, (updates, width))],
        [helper.make_tensor_value_info("y", 1, (1, width))],
        [numpy_helper.from_array(np.zeros((updates, 1), np.int64), "at")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    new = np.random.default_rng(0).integers(-8, 8, (updates, width)).astype(np.float32)
    feed = {"x": np.zeros((1, width), np.float32), "new": new}
    for result in run_feeds(model, ["y"], [feed] * 10):
        np.testing.assert_array_equal(result["y"], new.sum(axis=0, keepdims=True))
