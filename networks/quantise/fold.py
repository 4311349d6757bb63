"""The float model that is quantised: static, BatchNorms in the weights, constants computed.

onnxruntime's basic graph optimisation does the folding; the operators that stay keep their names.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, version_converter

from networks.errors import ModelFileError, QuantisationError, first_line
from networks.graph import STANDARD_DOMAINS, NormalGraph
from networks.normalise import normalise
from networks.onnx_file import all_tensors, is_stub
from networks.quantise.session import failures, quiet_options

OLDEST_OPSET = 13
"""From it on DequantizeLinear has the form that is written here."""

KEPT_AS_THEY_ARE = (
    "MatMulAddFusion",  # makes a Gemm between two Reshapes of a product and its bias
    "GeluFusionL1",
    "LayerNormFusionL1",
    "SliceConcatToSpaceToDepthFusion",
    "TransposeOptimizer",
    "QDQPropagationTransformer",
    "ConstantSharing",  # two layers' constants may get two scales
    "CommonSubexpressionElimination",
)
"""onnxruntime's rewritings that change more than weights."""


def folded(model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]]) -> NormalGraph:
    """The normal form of a float model with its weights, BatchNorms folded.

    Raises `QuantisationError` where weights lack or onnxruntime does not take the model, and as
    `networks.normalise.normalise`.
    """
    missing = next((tensor.name for tensor in all_tensors(model) if is_stub(tensor)), None)
    if missing is not None:
        raise QuantisationError(
            f"tensor '{missing}' has no data, and a model without weights cannot be quantised; "
            "load it with its weights"
        )
    normal = normalise(_recent(model), input_shapes)
    _scale_products(normal)
    lean = _optimised(normal.model)
    _name_again(lean, normal)
    refolded = normalise(lean, {})
    return NormalGraph(refolded.model, normal.operators, {**normal.absorbed, **refolded.absorbed})


def _recent(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in an opset whose QuantizeLinear is the one written here."""
    version = max(
        (o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS), default=1
    )
    if version >= OLDEST_OPSET:
        return model
    try:
        return version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as error:  # the converter fails in ways of its own
        raise QuantisationError(
            f"the model is written in opset {version}, which cannot be brought to "
            f"{OLDEST_OPSET}: {first_line(error)}; export it again in a newer opset"
        ) from error


def _optimised(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxruntime

    options = quiet_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "folded.onnx"
        options.optimized_model_filepath = str(path)
        try:
            onnxruntime.InferenceSession(
                model.SerializeToString(),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=list(KEPT_AS_THEY_ARE),
            )
        except failures() as error:
            raise ModelFileError(
                f"onnxruntime does not take the model: {first_line(error)}; export it again"
            ) from error
        lean = onnx.load(path)
    used = {node.domain for node in lean.graph.node} | {""}
    domains = [o for o in lean.opset_import if o.domain in used]
    del lean.opset_import[:]
    lean.opset_import.extend(domains)
    lean.graph.name = model.graph.name
    lean.producer_name = model.producer_name
    return lean


def _name_again(lean: onnx.ModelProto, normal: NormalGraph) -> None:
    """Give an operator that onnxruntime wrote in other terms its name back, where the last of them
    computes it."""
    present = {node.name for node in lean.graph.node}
    gone = {
        output: operator.name
        for operator in normal.operators
        if operator.name not in present
        for output in operator.outputs
    }
    own = {operator.name for operator in normal.operators}
    for node in lean.graph.node:
        name = next((gone[output] for output in node.output if output in gone), None)
        if name is not None and node.name not in own:
            node.name = name


def _scale_products(normal: NormalGraph) -> None:
    """`alpha` and `beta` of a Gemm go into its weights and its bias, where these are constants."""
    for node in [node for node in normal.graph.node if node.op_type == "Gemm"]:
        for attribute in [a for a in node.attribute if a.name in ("alpha", "beta")]:
            place, tensors = 1 if attribute.name == "alpha" else 2, normal.tensors()
            name = node.input[place] if len(node.input) > place else ""
            if attribute.f == 1.0 or not name:
                node.attribute.remove(attribute)
            elif name in tensors:
                values = numpy_helper.to_array(tensors[name]) * np.float32(attribute.f)
                scaled = f"{node.name}/{name}*{attribute.name}"
                normal.add_tensor(numpy_helper.from_array(values.astype(np.float32), scaled))
                node.input[place] = scaled
                node.attribute.remove(attribute)


def attribute(node: onnx.NodeProto, name: str, default: object = None) -> object:
    """The value of a node's attribute."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
