"""Tests the total of a run: the fraction of the network, and the comparison schedules."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.reports.outcomes import outcome
from tests.reports.outcomes import summary as outcome_of
from tests.tune_bare import tune_bare
from tilewright.cli.views.tuning_results import coverage, headline
from tilewright.networks.errors import NothingToOffload
from tilewright.targets.capabilities import is_published
from tilewright.tuning.gains import totals


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


@pytest.mark.slow(seconds=1.5)
def test_a_model_of_which_nothing_can_be_offloaded_says_why(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "x"], ["c"], name="filter"),
        helper.make_node("Softmax", ["c"], ["s"], name="softmax"),
        helper.make_node("Mul", ["s", "c"], ["y"], name="gate"),
    ]
    source = _save(tmp_path / "film.onnx", nodes, (1, 16, 9, 9))
    with pytest.raises(NothingToOffload) as caught:
        tune_bare(model=source, target="vta-pynq", trials=4, out=str(tmp_path / "out"))
    said = str(caught.value)
    for part in (
        "film.onnx", "1 Conv ('filter'): only convolutions of images, sequences and volumes",
        "1 Softmax ('softmax'): needs more than", "1 Mul ('gate')", "tilewright inspect",
    ):  # fmt: skip
        assert part in said


@pytest.mark.slow(seconds=1.5)
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
    assert summary["total"]["rule_source"] == "estimate"
    assert summary["total"]["published"]["workloads"] == 0
    assert coverage(summary) == "100\xa0% of the network's MACs"
    total = summary["total"]
    assert total["fallback_cycles"] is not None
    assert total["tuned_cycles"] is not None
    gain = total["fallback_cycles"] / total["tuned_cycles"]
    assert f"; {gain:.2f}× as fast as the stock compiler's fallback, " in headline(summary)


def _row(source: str, before: int, after: int) -> dict[str, object]:
    return {
        "rule_source": source, "rule_cycles": before, "rule_seconds": before / 1e8,
        "fallback_cycles": 10 * before, "fallback_seconds": before / 1e7,
        "tuned_cycles": after, "tuned_seconds": after / 1e8, "roofline_cycles": 1,
        "roofline_seconds": 1e-8, "bound_cycles": 1, "bound_seconds": 1e-8, "count": 2,
    }  # fmt: skip


def test_the_headline_compares_with_the_rule_first_then_with_the_fallback() -> None:
    """The run takes 1,000 cycles tuned, 2,000 by the rule and 9,000 by the fallback.

    The bound is 500 cycles.
    """
    known, other = outcome(source="tophub"), outcome(o=17, source="estimate")
    published, guessed, mixed = (outcome_of(item) for item in ([known], [other], [known, other]))
    for run in (published, guessed):
        assert headline(run) == (
            "net on vta-pynq: tuned 1,000 cycles (0.0100 ms): 2.00× as fast as the rule, "
            "2,000 cycles (0.0200 ms); 9.00× as fast as the stock compiler's fallback, "
            "9,000 cycles (0.0900 ms); 100\xa0% above the bound, 500 cycles (0.00500 ms)"
        )
    message = "the rule schedule is the stock compiler's published schedule for"
    assert coverage(published) == f"100\xa0% of the network's MACs; {message} 1 of 1 workloads"
    assert coverage(guessed) == "100\xa0% of the network's MACs"
    assert coverage(mixed).endswith(f"{message} 1 of 2 workloads")
    alone = outcome_of([outcome(source=None, bound=None)])
    assert headline(alone).endswith("(0.0100 ms): 150\xa0% above the roofline")
    assert headline(outcome_of([outcome(chosen=False)])).endswith(
        "no valid schedule among its trials"
    )
    guessed["macs"] = {"total": 1000, "offloaded": 75}
    assert coverage(guessed) == "7.5\xa0% of the network's MACs; the rest is not tuned"


def test_totals_say_which_rules_are_published() -> None:
    assert is_published("tophub")
    assert not is_published("estimate")
    assert not is_published(None)
    known, guess = _row("tophub", 110, 100), _row("estimate", 2202, 100)
    total = totals([known, guess])  # type: ignore[list-item]
    assert total["rule_source"] == "mixed"
    assert total["fallback_cycles"] == 2 * 10 * (110 + 2202)
    known["fallback_cycles"] = None
    assert totals([known, guess])["fallback_cycles"] is None  # type: ignore[list-item]
    assert total["published"] == {
        "workloads": 1, "rule_cycles": 220, "rule_seconds": pytest.approx(2.2e-6),
        "tuned_cycles": 200, "tuned_seconds": pytest.approx(2e-6),
    }  # fmt: skip
