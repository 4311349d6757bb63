"""Tests the addition of a constant that has the shape of a layer's output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from onnx_graphs import model, normal, reference
from tvm import relax
from tvm.ir import GenericConst

import tilewright
from tilewright.networks.compiled.packed_tensors import PackedTensors


@pytest.mark.parametrize("block", [4, 8])
def test_a_constant_lies_in_blocks_before_the_library_runs(block: int) -> None:
    array = normal(2, 16, 3, 5)
    tensors = PackedTensors(relax.BlockBuilder())
    constant = relax.const(array, "float32")
    packed = tensors.as_packed(constant, block)
    assert isinstance(packed, GenericConst)
    blocks = array.reshape(2, 16 // block, block, 3, 5).transpose(0, 1, 3, 4, 2)
    np.testing.assert_array_equal(packed.value.numpy(), blocks)
    assert tensors.as_plain(constant).same_as(constant)


@pytest.mark.nightly(seconds=20)
@pytest.mark.parametrize("kind", ["Conv", "Gemm"])
def test_a_library_adds_a_constant_map(kind: str, tmp_path: Path) -> None:
    conv = kind == "Conv"
    shape, out = ((1, 5, 6, 6), (1, 16, 6, 6)) if conv else ((4, 16), (4, 8))
    weight = normal(16, 5, 3, 3) if conv else normal(16, 8)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["s"], pads=[1] * 4)
        if conv else helper.make_node("MatMul", ["x", "w"], ["s"]),
        helper.make_node("Add", ["c", "s"], ["y"]),
    ]  # fmt: skip
    source = model(nodes, {"w": weight, "c": normal(*out, seed=1)}, shape, "y")
    path = tmp_path / "model.onnx"
    path.write_bytes(source.SerializeToString())
    tilewright.build(path, tmp_path / "built", target="cpu", trials=0)
    x = normal(*shape, seed=2)
    (result,) = tilewright.load(tmp_path / "built", allow_code=True).run(["y"], {"x": x})
    np.testing.assert_allclose(result, reference(source, x), rtol=1e-4, atol=1e-4)
