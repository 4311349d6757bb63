"""Checks what a run's total says: how much of the network, against which schedules."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.tune_bare import tune_bare
from tilewright.cli.views.tuning_results import headline
from tilewright.networks.errors import NothingToOffload
from tilewright.targets.capabilities import is_published
from tilewright.tuning.network_totals import Macs, totals
from tilewright.tuning.outputs import Summary


def _save(
    path: Path, nodes: list[onnx.NodeProto], shape: tuple[int, ...], **weights: tuple[int, ...]
) -> str:
    tensors = [
        numpy_helper.from_array(np.ones(size, np.float32), name) for name, size in weights.items()
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "small", [value("x", 1, shape)], [value("y", 1, [None] * len(shape))], tensors
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return str(path)


def test_a_model_of_which_nothing_can_be_offloaded_says_why(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="volume"),
        helper.make_node("Softmax", ["c"], ["s"], name="softmax"),
        helper.make_node("Mul", ["s", "c"], ["y"], name="gate"),
    ]
    source = _save(tmp_path / "film.onnx", nodes, (1, 16, 9, 9, 9), w=(16, 16, 3, 3, 3))
    with pytest.raises(NothingToOffload) as caught:
        tune_bare(model=source, target="vta-pynq", trials=4, out=str(tmp_path / "out"))
    said = str(caught.value)
    for part in (
        "film.onnx", "1 Conv ('volume'): only convolutions of images and of sequences",
        "1 Softmax ('softmax'): needs more than", "1 Mul ('gate'): neither", "tilewright inspect",
    ):  # fmt: skip
        assert part in said


def test_the_share_of_all_macs_goes_with_every_total(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"]),
        helper.make_node("Transpose", ["q"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "t"], ["s"]),
        helper.make_node("MatMul", ["s", "q"], ["y"]),
    ]
    source = _save(tmp_path / "attention.onnx", nodes, (1, 16, 16), w=(16, 16))
    summary = tune_bare(model=source, target="vta-pynq", trials=4, out=str(tmp_path / "out"))
    assert summary["macs"] == {"total": 3 * 16**3, "offloaded": 3 * 16**3}
    assert json.loads((tmp_path / "out/summary.json").read_text())["macs"] == summary["macs"]
    assert summary["total"]["baseline_source"] == "estimate"
    assert summary["total"]["published"]["workloads"] == 0
    said = headline(summary)
    assert "(100 % of the network's MACs)".replace(" %", "\xa0%") in said
    assert "the stock compiler publishes no baseline" in said
    assert "×" not in said  # an estimate does not count


def _row(source: str, before: int, after: int) -> dict[str, object]:
    return {
        "baseline_source": source, "baseline_cycles": before, "baseline_seconds": before / 1e8,
        "fallback_cycles": 10 * before, "fallback_seconds": before / 1e7,
        "tuned_cycles": after, "tuned_seconds": after / 1e8, "roofline_cycles": 1,
        "roofline_seconds": 1e-8, "bound_cycles": 1, "bound_seconds": 1e-8, "count": 2,
    }  # fmt: skip


def _summary(rows: list[dict[str, object]], macs: Macs) -> Summary:
    return {"workloads": rows, "total": totals(rows), "macs": macs}  # type: ignore[arg-type, typeddict-item]


def test_only_published_baselines_count_in_the_headline() -> None:
    assert is_published("tophub")
    assert not is_published("estimate")
    assert not is_published(None)
    known, guess = _row("tophub", 110, 100), _row("estimate", 2202, 100)
    whole: Macs = {"total": 10, "offloaded": 10}
    part: Macs = {"total": 1000, "offloaded": 75}
    assert headline(_summary([known], part)) == (
        "tuned layers 1.10× against the published baseline "
        "(7.5\xa0% of the network's MACs; the rest is not tuned)"
    )
    mixed = headline(_summary([known, guess], whole))
    assert mixed.startswith("1 of 2 tuned layers 1.10× against the published baseline")
    assert "22.02" not in mixed
    assert "the other baselines are estimates (~)" in mixed
    assert mixed.endswith("(all 2: 100\xa0% of the network's MACs)")
    total = totals([known, guess])  # type: ignore[list-item]
    assert total["baseline_source"] == "mixed"
    assert total["fallback_cycles"] == 2 * 10 * (110 + 2202)
    known["fallback_cycles"] = None
    assert totals([known, guess])["fallback_cycles"] is None  # type: ignore[list-item]
    assert total["published"] == {
        "workloads": 1, "baseline_cycles": 220, "baseline_seconds": pytest.approx(2.2e-6),
        "tuned_cycles": 200, "tuned_seconds": pytest.approx(2e-6),
    }  # fmt: skip
