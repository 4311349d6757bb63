"""Tests the count of multiply-accumulates, wherever they run.

The offloaded fraction refers to all of them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_graphs import model, normal

from tilewright import networks
from tilewright.networks.offloading.report import ModelReport


def _report(path: Path, source: onnx.ModelProto) -> ModelReport:
    onnx.save(source, path / "m.onnx")
    return networks.load(path / "m.onnx").report(16, 16)


@pytest.mark.parametrize(
    ("shape", "weights", "attributes", "macs"),
    [
        ((1, 8, 20), (4, 8, 3), {}, 4 * 18 * 8 * 3),
        ((1, 8, 9, 9), (16, 8, 3, 3), {"pads": [1] * 4}, 16 * 81 * 8 * 9),
        ((1, 8, 9, 9), (16, 2, 3, 3), {"group": 4}, 16 * 49 * 2 * 9),
        ((1, 8, 9, 9), (8, 1, 3, 3), {"group": 8}, 8 * 49 * 9),
        ((1, 2, 6, 6, 6), (4, 2, 3, 3, 3), {}, 4 * 64 * 2 * 27),
    ],
)
def test_convolutions_of_every_kind_count(
    shape: tuple[int, ...],
    weights: tuple[int, ...],
    attributes: dict[str, object],
    macs: int,
    tmp_path: Path,
) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="c", **attributes)
    report = _report(tmp_path, model([node], {"w": normal(*weights)}, shape, "y"))
    assert report.total_macs == report.operators[0].macs == macs


@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution_spreads_each_input(groups: int, tmp_path: Path) -> None:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], dilations=[2, 2], group=groups)
    source = model([node], {"w": normal(8, 6, 3, 3)}, (1, 8, 5, 5), "y")
    assert _report(tmp_path, source).total_macs == 8 * 25 * 6 * 9


def test_products_of_two_activations_count_and_are_offloaded(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"], name="query"),
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "t"], ["s"], name="scores"),
        helper.make_node("MatMul", ["s", "x"], ["y"], name="mixed"),
    ]
    report = _report(tmp_path, model(nodes, {"w": normal(32, 32)}, (2, 50, 32), "y"))
    macs = {operator.name: operator.macs for operator in report.operators}
    product = 2 * 50 * 50 * 32
    assert (macs["query"], macs["scores"], macs["mixed"]) == (2 * 50 * 32 * 32, product, product)
    assert report.offloaded_macs == report.total_macs == sum(macs.values())


@pytest.mark.parametrize(
    ("equation", "second", "macs"),
    [
        ("bij,bjk->bik", (2, 4, 5), 2 * 3 * 4 * 5),
        ("bij,jk->bik", (4, 5), 2 * 3 * 4 * 5),
        ("...j,j->...", (4,), 2 * 3 * 4),
    ],
)
def test_an_einsum_counts_all_its_indices(
    equation: str, second: tuple[int, ...], macs: int, tmp_path: Path
) -> None:
    node = helper.make_node("Einsum", ["x", "w"], ["y"], equation=equation)
    w = normal(*second)
    source = model([node], {"w": w}, (2, 3, 4), "y")
    assert _report(tmp_path, source).total_macs == macs
    x = normal(2, 3, 4, seed=1)
    result = networks.load(tmp_path / "m.onnx").run({"x": x})["y"]
    np.testing.assert_allclose(result, np.einsum(equation, x, w), rtol=1e-4, atol=1e-5)


def test_what_depends_on_weights_alone_counts_nothing(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["w"], name="once"),
        helper.make_node("MatMul", ["x", "w"], ["y"], name="always"),
    ]
    source = model(nodes, {"a": normal(16, 8), "b": normal(8, 16)}, (1, 16), "y")
    report = _report(tmp_path, source)
    assert report.total_macs == report.offloaded_macs == 256
