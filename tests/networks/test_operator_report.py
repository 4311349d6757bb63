"""Checks that the report accounts for every operator of a model and gives a reason for each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx_graphs import model, normal

from tilewright import networks
from tilewright.networks.errors import UnsupportedOperatorError
from tilewright.networks.model_source import OnnxSource
from tilewright.networks.network import Network
from tilewright.networks.offloading.report import OperatorReport, epilogue_text

Load = Callable[[onnx.ModelProto], Network]


@pytest.fixture
def save(tmp_path: Path) -> Load:
    def load(source: onnx.ModelProto) -> Network:
        onnx.save(source, tmp_path / "model.onnx")
        return networks.load(tmp_path / "model.onnx")

    return load


def _by_name(network: Network) -> dict[str, OperatorReport]:
    return {operator.name: operator for operator in network.report(16, 16).operators}


def _conv(x: str, w: str, y: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, w], [y], name=y, **attributes)


def test_an_epilogue_is_fused_only_where_nobody_else_reads_its_input(save: Load) -> None:
    nodes = [
        _conv("x", "w", "c"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Add", ["c", "r"], ["y"], name="sum"),
    ]
    result = _by_name(save(model(nodes, {"w": normal(16, 16, 1, 1)}, (1, 16, 8, 8), "y")))
    for name in ("c", "relu", "sum"):
        assert result[name].status == "offloaded"
        assert result[name].workload
    assert result["relu"].workload == "conv2d:n=1,c=16,h=8,w=8,o=16,k=1,s=1,p=0,g=16"


def test_a_sum_of_a_tensor_with_itself_is_no_residual_but_a_layer(save: Load) -> None:
    nodes = [_conv("x", "w", "c"), helper.make_node("Add", ["c", "c"], ["y"], name="twice")]
    result = _by_name(save(model(nodes, {"w": normal(16, 16, 1, 1)}, (1, 16, 8, 8), "y")))
    assert result["c"].workload
    assert result["twice"].workload


def test_one_of_two_convolutions_takes_the_sum_of_both(save: Load) -> None:
    nodes = [
        _conv("x", "w", "a"),
        _conv("x", "w", "b"),
        helper.make_node("Add", ["a", "b"], ["y"], name="sum"),
    ]
    network = save(model(nodes, {"w": normal(16, 16, 1, 1)}, (1, 16, 8, 8), "y"))
    calls = {call.node: [s.kind for s in call.steps] for call in network.examined.found.fused_calls}
    assert calls == {"a": ["add"], "b": []}
    assert _by_name(network)["sum"].reason == "in the epilogue of 'a'"
    (_, calls, names), *rest = network.workloads(16, 16, epilogue="plain")
    assert (calls, names, rest) == (2, ("a", "b"), [])
    result = {names: epilogue_text(w) for w, _, names in network.workloads(16, 16)}
    assert result == {
        ("a",): "residual 7, + 128, >> 8, min 127, max 0",
        ("b",): "+ 128, >> 8, min 127, max 0",
    }


@pytest.mark.parametrize(
    ("low", "high", "status"), [(0, 6, "offloaded"), (-1, 1, "cpu"), (0, None, "offloaded")]
)
def test_a_clip_is_fused_only_from_zero(
    save: Load, low: float, high: float | None, status: str
) -> None:
    bounds = {"low": np.float32(low)} | ({} if high is None else {"high": np.float32(high)})
    nodes = [
        _conv("x", "w", "c"),
        helper.make_node("Clip", ["c", *bounds], ["y"], name="clip"),
    ]
    tensors = {"w": normal(16, 16, 1, 1)} | {k: np.asarray(v) for k, v in bounds.items()}
    assert _by_name(save(model(nodes, tensors, (1, 16, 8, 8), "y")))["clip"].status == status


def test_a_broadcast_sum_is_no_residual(save: Load) -> None:
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["g"], name="pool"),
        _conv("x", "w", "c"),
        helper.make_node("Add", ["c", "g"], ["y"], name="sum"),
    ]
    result = _by_name(save(model(nodes, {"w": normal(16, 16, 1, 1)}, (1, 16, 8, 8), "y")))
    assert result["sum"].status == "cpu"
    assert "two tensors of one shape" in result["sum"].reason
    assert result["pool"].workload == "conv2d:n=1,c=16,h=8,w=8,o=16,k=8,s=1,p=0,g=16"


def test_a_grouped_convolution_is_one_workload(save: Load) -> None:
    nodes = [_conv("x", "w", "y", group=4)]
    network = save(model(nodes, {"w": normal(64, 32, 1, 1)}, (1, 128, 8, 8), "y"))
    ((workload, calls, _),) = network.workloads(16, 16)
    assert (str(workload), calls) == ("conv2d:n=1,c=128,h=8,w=8,o=64,k=1,s=1,p=0,g=4", 1)
    result = _by_name(network)["y"]
    assert (result.reason, result.waste) == ("", 0.0)
    assert workload.macs == result.macs


def test_narrow_groups_share_a_block_and_say_what_they_waste(save: Load) -> None:
    network = save(
        model([_conv("x", "w", "y", group=6)], {"w": normal(48, 4, 1, 1)}, (1, 24, 8, 8), "y")
    )
    ((workload, _, _),) = network.workloads(16, 16)
    assert str(workload) == "conv2d:n=1,c=24,h=8,w=8,o=48,k=1,s=1,p=0,g=6"
    result = _by_name(network)["y"]
    assert result.reason == "6 groups are padded to 8"
    assert result.waste == pytest.approx(1 - 6 * 4 * 8 / (2 * 16 * 32))


def test_dilation_stride_and_uneven_padding_reach_the_workload(save: Load) -> None:
    nodes = [_conv("x", "w", "y", strides=[2, 1], dilations=[2, 3], pads=[1, 2, 3, 4])]
    network = save(model(nodes, {"w": normal(16, 16, 3, 2)}, (1, 16, 12, 9), "y"))
    ((workload, _, _),) = network.workloads(16, 16)
    assert str(workload) == "conv2d:n=1,c=16,h=12,w=9,o=16,k=3x2,s=2x1,p=1x2x3x4,d=2x3"
    assert (1, 16, workload.out_height, workload.out_width) == _by_name(network)["y"].output_shape


def test_products_of_any_rank_are_dense_and_of_two_activations_one_a_head(save: Load) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"], name="query"),
        helper.make_node("Add", ["q", "b"], ["qb"], name="bias"),
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1], name="turn"),
        helper.make_node("MatMul", ["qb", "t"], ["y"], name="scores"),
    ]
    tensors = {"w": normal(32, 32), "b": normal(32)}
    network = save(model(nodes, tensors, (2, 5, 32), "y"))
    result = {
        names: (str(w), calls, epilogue_text(w)) for w, calls, names in network.workloads(16, 16)
    }
    assert result == {
        ("query",): ("dense:n=10,c=32,o=32", 1, "bias, >> 8, min 127, max 0"),
        ("scores",): ("dense:n=5,c=32,o=5", 2, "+ 128, >> 8, min 127, max 0"),
    }
    scores = _by_name(network)["scores"]
    assert "one of them is packed as weights" in scores.reason
    assert scores.waste == pytest.approx(1 - 5 / 16)
    assert "turn" not in {o.name for o in network.report(16, 16).by_status("offloaded")}


def test_other_convolutions_are_left_with_a_reason(save: Load) -> None:
    result = _by_name(save(model([_conv("x", "x", "y")], {}, (1, 16, 9, 9), "y")))
    assert result["y"].status == "cpu"
    assert "with constant weights" in result["y"].reason


def test_an_unknown_operator_is_refused_by_name(save: Load) -> None:
    nodes = [
        _conv("x", "w", "first"),
        helper.make_node("Wobble", ["first"], ["z"], name="odd", domain="org.example"),
        _conv("z", "w", "y"),
    ]
    source = model(nodes, {"w": normal(16, 16, 1, 1)}, (1, 16, 8, 8), "y", 17, ("org.example",))
    network = save(source)
    for refused in (lambda: network.report(16, 16), network.split):
        with pytest.raises(UnsupportedOperatorError, match=r"'odd'.*org\.example\.Wobble"):
            refused()


def test_behind_an_operator_that_onnxruntime_runs_the_graph_goes_on(save: Load) -> None:
    nodes = [
        _conv("x", "w", "first"),
        helper.make_node("QuickGelu", ["first"], ["z"], name="odd", domain="com.microsoft"),
        _conv("z", "w", "y"),
    ]
    source = model(nodes, {"w": normal(16, 16, 1, 1)}, (1, 16, 8, 8), "y", 17, ("com.microsoft",))
    network = save(source)
    result = _by_name(network)
    assert [result[n].status for n in ("first", "odd", "y")] == [
        "offloaded", "onnxruntime", "offloaded",
    ]  # fmt: skip
    assert "QuickGelu" in result["odd"].reason
    (region,) = network.report(16, 16).regions
    assert (region.operators, region.cause) == (("odd",), "odd")


def test_a_standard_operator_the_importer_cannot_express_is_named(save: Load) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="deep")]
    network = save(model(nodes, {"w": normal(2, 2, 1, 1, 1, 1)}, (1, 2, 3, 3, 3, 3), "y"))
    assert _by_name(network)["deep"].status == "onnxruntime"


def test_the_report_is_plain_data(save: Load) -> None:
    report = save(
        model([_conv("x", "w", "y")], {"w": normal(16, 16, 1, 1)}, (1, 16, 8, 8), "y")
    ).report(16, 16)
    assert json.loads(json.dumps(report.to_dict()))["operators"][0]["name"] == "y"


def test_nameless_operators_get_names_that_say_where_they_are(save: Load) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    assert list(_by_name(save(model(nodes, {}, (1, 4), "y")))) == ["Relu_0", "Neg_1"]


STEPS = ("conv", "relu", "clip", "add", "bias", "sigmoid")


@settings(max_examples=60, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 30), st.integers(0, 30)),
        min_size=1,
        max_size=14,
    )
)
def test_any_graph_is_partitioned_without_double_use(steps: list[tuple[str, int, int]]) -> None:
    """Every convolution of a random graph is a call, and no operator belongs to two calls.

    Every operator that the accelerator can run belongs to a call.
    """
    tensors = {
        "w": normal(16, 16, 1, 1), "b": normal(1, 16, 1, 1), "zero": np.float32(0),
        "six": np.float32(6),
    }  # fmt: skip
    values, nodes = ["x"], []
    for i, (kind, left, right) in enumerate(steps):
        a, b = values[-1 - left % len(values)], values[-1 - right % len(values)]
        op, inputs = {
            "conv": ("Conv", [a, "w"]),
            "relu": ("Relu", [a]),
            "clip": ("Clip", [a, "zero", "six"]),
            "add": ("Add", [a, b]),
            "bias": ("Add", ["b", a]),
            "sigmoid": ("Sigmoid", [a]),
        }[kind]
        nodes.append(helper.make_node(op, inputs, [f"v{i}"], name=f"{kind}{i}"))
        values.append(f"v{i}")
    source = model(nodes, {k: np.asarray(v) for k, v in tensors.items()}, (1, 16, 2, 2), values[-1])
    network = Network(OnnxSource("random", source, lambda: source, {}), foretold=True)
    calls = network.examined.found.calls
    used = [o for o in network.report(16, 16).operators if "not used" not in o.reason]
    convolutions = [call.node for call in calls if call.operator == "conv2d"]
    assert convolutions == [o.name for o in used if o.op_type == "Conv"]
    owned = [{call.node, *(step.node for step in call.steps)} for call in calls]
    members = [name for item in owned for name in item]
    assert len(members) == len(set(members))
    report = network.report(16, 16)
    assert {o.name for o in report.by_status("offloaded")} == set(members)
