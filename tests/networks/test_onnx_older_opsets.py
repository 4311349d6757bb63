"""Checks that models of older opsets keep their meaning when they are raised to opset 17."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import session

from tilewright.networks.onnx.normalise import normalise
from tilewright.networks.onnx.opset import OPSET, opset_of, raise_opset

Node = onnx.NodeProto
make = helper.make_node


def _model(
    nodes: Sequence[Node], opset: int, shape: Sequence[int], tensors: Mapping[str, Any],
    outputs: Sequence[str] = ("y",),
) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(
        nodes, "older", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=4 if opset < 17 else 8)
    inferred = onnx.shape_inference.infer_shapes(model)
    for output in inferred.graph.output:
        output.type.tensor_type.elem_type = output.type.tensor_type.elem_type or TensorProto.FLOAT
    return inferred


F = np.float32
RNG = np.random.default_rng(0)
IMAGE = (2, 3, 4, 6)
GATES = {
    name: RNG.standard_normal(shape).astype(F)
    for name, shape in {"W": (1, 32, 5), "R": (1, 32, 8), "B": (1, 64)}.items()
}
BOTH = {name: np.concatenate([array, array[:, ::-1]]) for name, array in GATES.items()}
BRANCH = helper.make_graph(
    [make("Squeeze", ["x"], ["b"], axes=[0]), make("Clip", ["b"], ["c"], max=0.5)],
    "branch", [], [helper.make_tensor_value_info("c", TensorProto.FLOAT, None)],
)  # fmt: skip
OTHER = helper.make_graph(
    [make("Slice", ["x"], ["d"], starts=[0], ends=[1]), make("Squeeze", ["d"], ["e"], axes=[0])],
    "other", [], [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)],
)  # fmt: skip

CASES: dict[str, tuple[int, Sequence[int], list[Node], Mapping[str, Any]]] = {
    "slice": (9, (2, 5), [make("Slice", ["x"], ["y"], axes=[1], starts=[1], ends=[-1])], {}),
    "slice_without_axes": (8, (4, 5), [make("Slice", ["x"], ["y"], starts=[1, 0], ends=[9, 2])],
                           {}),
    "clip": (9, (3, 4), [make("Clip", ["x"], ["y"], min=-0.5, max=0.25)], {}),
    "clip_above": (10, (3, 4), [make("Clip", ["x"], ["y"], max=0.25)], {}),
    "clip_below": (7, (3, 4), [make("Clip", ["x"], ["y"], min=0.25)], {}),
    "pad": (9, IMAGE, [make("Pad", ["x"], ["y"], pads=[0, 0, 1, 2, 0, 0, 0, 1], value=1.5)], {}),
    "pad_reflects": (10, IMAGE, [make("Pad", ["x"], ["y"], mode="reflect",
                                      pads=[0, 0, 1, 2, 0, 0, 0, 1])], {}),
    "top_k": (9, (3, 7), [make("TopK", ["x"], ["y", "i"], k=2, axis=1)], {}),
    "dropout": (7, (3, 7), [make("Dropout", ["x"], ["d", "m"], ratio=0.25),
                            make("Neg", ["d"], ["y"])], {}),
    "dropout_10": (10, (3, 7), [make("Dropout", ["x"], ["d"]), make("Neg", ["d"], ["y"])], {}),
    "split": (9, (3, 7), [make("Split", ["x"], ["a", "b"], axis=1, split=[3, 4]),
                          make("Concat", ["b", "a"], ["y"], axis=1)], {}),
    "split_evenly": (11, (4, 7), [make("Split", ["x"], ["a", "b"]), make("Sub", ["a", "b"], ["y"])],
                     {}),
    "squeeze": (9, (1, 3, 1, 2), [make("Squeeze", ["x"], ["y"], axes=[0, 2])], {}),
    "squeeze_all": (11, (1, 3, 1, 2), [make("Squeeze", ["x"], ["y"])], {}),
    "unsqueeze": (9, (3, 2), [make("Unsqueeze", ["x"], ["y"], axes=[0, 3])], {}),
    "reduce_sum": (11, (3, 2, 4), [make("ReduceSum", ["x"], ["y"], axes=[1, 2], keepdims=0)], {}),
    "reduce_sum_of_all": (9, (3, 2), [make("ReduceSum", ["x"], ["y"])], {}),
    "softmax": (9, (3, 4), [make("Softmax", ["x"], ["y"])], {}),
    "softmax_of_several_axes": (11, IMAGE, [make("Softmax", ["x"], ["y"], axis=1)], {}),
    "softmax_of_the_last_axis": (11, IMAGE, [make("Softmax", ["x"], ["y"], axis=3)], {}),
    "softmax_of_single_pixels": (9, (2, 5, 1, 1), [make("Softmax", ["x"], ["y"])], {}),
    "softmax_from_behind": (12, IMAGE, [make("LogSoftmax", ["x"], ["y"], axis=-2)], {}),
    "hardmax": (11, (2, 3, 4), [make("Hardmax", ["x"], ["y"])], {}),
    "batch_norm": (8, IMAGE, [make("BatchNormalization", ["x", "s", "b", "m", "v"],
                                   ["y"], spatial=1)],
                   {n: np.linspace(0.5, 1.5, 3).astype(F) for n in "sbmv"}),
    "upsample": (7, IMAGE, [make("Upsample", ["x"], ["y"], scales=[1.0, 1.0, 2.0, 3.0])], {}),
    "upsample_linear": (9, IMAGE, [make("Upsample", ["x", "s"], ["y"], mode="linear")],
                        {"s": np.array([1, 1, 2, 1.5], F)}),
    "upsample_by_fractions": (9, IMAGE, [make("Upsample", ["x", "s"], ["y"])],
                              {"s": np.array([1, 1, 1.5, 2.3], F)}),
    "resize_10": (10, IMAGE, [make("Resize", ["x", "s"], ["y"])],
                  {"s": np.array([1, 1, 2, 1.7], F)}),
    "resize_10_shrinks": (10, IMAGE, [make("Resize", ["x", "s"], ["y"])],
                          {"s": np.array([1, 1, 0.5, 0.7], F)}),
    "resize_10_linear": (10, IMAGE, [make("Resize", ["x", "s"], ["y"], mode="linear")],
                         {"s": np.array([1, 1, 0.6, 1.7], F)}),
    "scatter": (9, (3, 4), [make("Scatter", ["x", "i", "u"], ["y"], axis=1)],
                {"i": np.array([[0, 2], [3, 1]]), "u": np.ones((2, 2), F)}),
    "roi_align": (10, IMAGE, [make("RoiAlign", ["x", "r", "i"], ["y"], output_height=2,
                                   output_width=2, sampling_ratio=2)],
                  {"r": np.array([[0.2, 0.1, 4.4, 3.1]], F), "i": np.array([1])}),
    "layer_norm": (12, (3, 8), [make("LayerNormalization", ["x", "g", "b"], ["n"], axis=-1),
                                make("Clip", ["n", "", "m"], ["y"])],
                   {"g": np.linspace(0, 2, 8).astype(F), "b": np.linspace(1, 2, 8).astype(F),
                    "m": F(1.5)}),
    "layer_norm_before_a_clip": (9, (3, 8), [make("LayerNormalization", ["x", "g"], ["n"]),
                                             make("Clip", ["n"], ["y"], max=1.5)],
                                 {"g": np.linspace(0, 2, 8).astype(F)}),
    "simplified_layer_norm": (12, (3, 8), [make("SimplifiedLayerNormalization", ["x", "g"], ["y"],
                                                epsilon=1e-3)],
                              {"g": np.linspace(0, 2, 8).astype(F)}),
    "simplified_layer_norm_17": (17, (3, 2, 8), [
        make("SimplifiedLayerNormalization", ["x", "g"], ["y"], axis=1)],
        {"g": np.linspace(0, 2, 16).astype(F).reshape(2, 8)}),
    "simplified_layer_norm_18": (18, (3, 8), [make("SimplifiedLayerNormalization", ["x", "g"],
                                                   ["y"])],
                                 {"g": np.linspace(0, 2, 8).astype(F)}),
    "lstm": (9, (4, 2, 5), [make("LSTM", ["x", "W", "R", "B"], ["s", "h", "c"], hidden_size=8),
                            make("Sum", ["h", "c"], ["y"])], GATES),
    "lstm_both_ways": (7, (4, 2, 5), [make("LSTM", ["x", "W", "R", "B"], ["y"], hidden_size=8,
                                           direction="bidirectional")], BOTH),
    "branches": (9, (1, 4), [make("If", ["k"], ["y"], then_branch=BRANCH, else_branch=OTHER)],
                 {"k": np.array(True)}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_older_operator_computes_in_opset_17_what_it_computed(case: str) -> None:
    opset, shape, nodes, tensors = CASES[case]
    model = _model(nodes, opset, shape, tensors)
    x = RNG.standard_normal(shape).astype(F)
    (expected,) = session(model, optimised=True).run(None, {"x": x})
    raised = raise_opset(model)
    assert opset_of(raised) == max(opset, OPSET)
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(raised))
    normal = normalise(model, {})
    for candidate in (raised, normal.model):
        (result,) = session(candidate, optimised=True).run(None, {"x": x})
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert {node.op_type for node in normal.graph.node}.isdisjoint(
        ("Upsample", "Scatter", "LSTM", "SimplifiedLayerNormalization", "If")
    )


UNKNOWN: dict[str, tuple[int, Sequence[int], list[Node], Mapping[str, Any]]] = {
    "mask_that_is_read": (7, (3, 4), [make("Dropout", ["x"], ["d", "m"]),
                                      make("Mul", ["d", "m"], ["y"])], {}),
    "batch_norm_in_training": (8, IMAGE, [make("BatchNormalization", ["x", *"sbmv"],
                                               ["y", "o1", "o2", "o3", "o4"])],
                               {n: np.linspace(0.5, 1.5, 3).astype(F) for n in "sbmv"}),
    "nearest_that_shrinks_and_grows": (10, IMAGE, [make("Resize", ["x", "s"], ["y"])],
                                       {"s": np.array([1, 1, 0.5, 2], F)}),
    "operator_of_the_runtime_only": (9, (3, 4), [make("ScaledTanh", ["x"], ["y"], alpha=2.0,
                                                      beta=0.5)], {}),
    "opset_without_broadcasting": (6, (3, 4), [make("Relu", ["x"], ["y"])], {}),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_a_model_that_cannot_be_raised_stays_as_it_is(case: str) -> None:
    opset, shape, nodes, tensors = UNKNOWN[case]
    model = _model(nodes, opset, shape, tensors)
    assert raise_opset(model) is model
