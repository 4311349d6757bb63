"""A command imports a model once, and infers shapes without the data of its weights."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, shape_inference

from tilewright.networks import zoo
from tilewright.networks.model_source import OnnxSource
from tilewright.networks.onnx.size_limits import SMALL_ELEMENTS, infer_types


def test_an_examined_network_is_split_without_reading_its_weights() -> None:
    reads = []

    def weighted() -> onnx.ModelProto:
        reads.append(1)
        return zoo.build("digits_cnn")

    source = OnnxSource("digits_cnn", zoo.build("digits_cnn", weights=False), weighted, {})
    source.examine()
    assert source.split() == (source, None)
    assert not reads
    source.refuse({})  # what was examined does not hold any more
    assert source.split() == (source, None)
    assert reads


@pytest.mark.parametrize("name", ["digits_cnn", "resnet18", "bert_tiny"])
def test_shapes_inferred_without_weights_are_those_that_onnx_infers_with_them(name: str) -> None:
    model = zoo.build(name)
    assert infer_types(model) == shape_inference.infer_shapes(model)


def test_values_of_small_tensors_decide_shapes_and_large_ones_keep_their_data() -> None:
    shape = numpy_helper.from_array(np.array([2, -1], np.int64), "shape")
    weight = numpy_helper.from_array(np.ones((4, SMALL_ELEMENTS), np.float32), "weight")
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("MatMul", ["x", "weight"], ["y"]),
                helper.make_node("Reshape", ["y", "shape"], ["z"]),
            ],
            "net",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 4])],
            [helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None)],
            [shape, weight],
        )
    )
    inferred = infer_types(model)
    sizes = [dim.dim_value for dim in inferred.graph.output[0].type.tensor_type.shape.dim]
    assert sizes == [2, 3 * SMALL_ELEMENTS // 2]
    assert list(inferred.graph.initializer) == [shape, weight]
    assert [info.name for info in inferred.graph.input] == ["x"]
