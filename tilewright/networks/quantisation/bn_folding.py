"""Prepares a float model for quantisation: static shapes, folded BatchNorms and folded constants.

onnxruntime's basic graph optimisation folds BatchNorms into convolutions. `_norms_into_products`
folds BatchNorms that follow a matrix product. The remaining operators keep their names.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright.core.lazy_module import lazy_module
from tilewright.networks.errors import ModelFileError, QuantisationError, first_line
from tilewright.networks.onnx.files import all_tensors, is_stub
from tilewright.networks.onnx.graph import NormalGraph
from tilewright.networks.onnx.normalise import make_importable, named_copy
from tilewright.networks.onnx.opset import OPSET, opset_of
from tilewright.networks.onnx.static_shapes import infer_shapes
from tilewright.networks.onnxruntime_options import failures, quiet_options

onnxruntime = lazy_module("onnxruntime")

NEWEST_IR = 13
"""Newest version of the ONNX file format (IR version) that onnxruntime accepts. It rejects files
with a newer version even if it supports all of their operators. The version of such files is
therefore lowered."""
OLDEST_OPSET = 13
"""First opset in which DequantizeLinear has the attribute `axis`. The quantised model needs this
attribute."""

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
"""Graph optimisations of onnxruntime that are disabled, because they change the operators of the
model, not only its weights."""


@dataclass(frozen=True, eq=False)
class FoldedGraph:
    """A float model in normal form whose BatchNorms are folded.

    Attributes:
        normal: the model.
        gone: names of the BatchNorms that are now part of the operator before them; None if
            onnxruntime changed other operators as well.
    """

    normal: NormalGraph
    gone: frozenset[str] | None


def fold_batch_norms(fixed: NormalGraph) -> FoldedGraph:
    """Return the normal form of a float model with BatchNorms folded into weights.

    Args:
        fixed: the model with its weights and static shapes. It is not changed.

    Returns:
        The folded model.

    Raises:
        QuantisationError: weights are missing, or the opset is too old.
        ModelFileError: onnxruntime rejects the model.
    """
    tensors = all_tensors(fixed.model)
    missing = next((tensor.name for tensor in tensors if is_stub(tensor)), None)
    if missing is not None:
        raise QuantisationError(
            f"the tensor '{missing}' has no data, and a model without weights cannot be "
            "quantised; load the model with its weights"
        )
    _check_opset(fixed.model)
    normal = fixed.copy()
    make_importable(normal)
    _scale_products(normal)
    _norms_into_products(normal)
    lean = _optimised(normal.model)
    _name_again(lean, normal)
    folded = named_copy(lean)
    infer_shapes(folded)
    graph = NormalGraph(folded.model, normal.operators, normal.absorbed)
    return FoldedGraph(graph, _folded_norms(normal, graph))


def _folded_norms(before: NormalGraph, after: NormalGraph) -> frozenset[str] | None:
    """Return the names of the BatchNorms that folding removed.

    Args:
        before: the model before folding.
        after: the model after folding.

    Returns:
        The names; None if an operator of another type was removed, or if an operator was added or
        changed in type.
    """
    old, new = ({node.name: node.op_type for node in item.graph.node} for item in (before, after))
    gone = frozenset(old.keys() - new.keys())
    same = all(old.get(name) == operator for name, operator in new.items())
    return gone if same and all(old[name] == "BatchNormalization" for name in gone) else None


def _check_opset(model: onnx.ModelProto) -> None:
    """Raise `QuantisationError` if the opset is too old for the QuantizeLinear that is inserted."""
    if (version := opset_of(model)) < OLDEST_OPSET:
        raise QuantisationError(
            f"the model uses opset {version}, which cannot be converted to opset {OPSET}; "
            "export it again with a newer opset"
        )


def _optimised(model: onnx.ModelProto) -> onnx.ModelProto:
    if model.ir_version > NEWEST_IR:
        newer, model = model, onnx.ModelProto()
        model.CopyFrom(newer)
        model.ir_version = NEWEST_IR
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
                f"onnxruntime rejects the model: {first_line(error)}; export it again"
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
    """Give operators that onnxruntime created the names of the operators that they replace.

    A new operator replaces the operator that wrote the same tensor.

    Args:
        lean: the model after onnxruntime's optimisation, which is changed.
        normal: the model before it.
    """
    present = {node.name for node in lean.graph.node}
    gone = {
        output: operator.name
        for operator in normal.operators
        if operator.name not in present
        for output in operator.outputs
    }
    matching = {operator.name for operator in normal.operators}
    for node in lean.graph.node:
        name = next((gone[output] for output in node.output if output in gone), None)
        if name is not None and node.name not in matching:
            node.name = name


def _scale_products(normal: NormalGraph) -> None:
    """Multiply `alpha` and `beta` of each Gemm into its weights and bias if these are constants."""
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


def _norms_into_products(normal: NormalGraph) -> None:
    """Fold each BatchNorm after a matrix product with constant weights into the product's weights.

    The remaining constant offset becomes an Add. onnxruntime only folds BatchNorms after
    convolutions.
    """
    writers = {name: node for node in normal.graph.node for name in node.output}
    shapes = normal.shapes()
    reads = Counter(name for node in normal.graph.node for name in node.input)
    reads.update(info.name for info in normal.graph.output)
    for norm in [node for node in normal.graph.node if node.op_type == "BatchNormalization"]:
        product, tensors = writers.get(norm.input[0]), normal.tensors()
        if product is None or product.op_type not in ("Gemm", "MatMul"):
            continue
        if len(shapes.get(norm.input[0], ())) != 2:  # channels are not the product's columns
            continue
        constants = [*norm.input[1:], *product.input[1:]]
        known = all(name in tensors for name in constants)
        plain = not {"alpha", "beta", "transA"} & {a.name for a in product.attribute if a.f or a.i}
        if known and plain and reads[norm.input[0]] == 1 and len(norm.output) == 1:
            _fold_norm(normal, product, norm, tensors)


def _fold_norm(
    normal: NormalGraph,
    product: onnx.NodeProto,
    norm: onnx.NodeProto,
    tensors: Mapping[str, onnx.TensorProto],
) -> None:
    """Fold a BatchNorm into the weights W and the bias b of a matrix product, in place.

    (x·W + b − mean) · s + beta = x·(W·s) + (b − mean) · s + beta, where s = gamma / √(variance +
    ε). The BatchNorm becomes an Add of the constant (b − mean) · s + beta.

    Args:
        normal: the graph.
        product: the matrix product.
        norm: the BatchNorm that reads its result.
        tensors: constants by tensor name.
    """
    arrays = [numpy_helper.to_array(tensors[name]).astype(np.float64) for name in norm.input[1:]]
    gamma, beta, mean, variance = arrays
    scale = gamma / np.sqrt(variance + float(cast("float", attribute(norm, "epsilon", 1e-5))))
    weights = numpy_helper.to_array(tensors[product.input[1]]).astype(np.float64)
    if weights.ndim != 2:
        return
    columns = 0 if attribute(product, "transB", 0) else 1
    scaled = weights * (scale[:, None] if columns == 0 else scale)
    matching = [numpy_helper.to_array(tensors[name]) for name in product.input[2:]]
    bias = (sum(matching, np.zeros_like(mean)) - mean) * scale + beta
    names = f"{product.name}/{product.input[1]}*{norm.name}", f"{norm.name}/added"
    for name, values in zip(names, (scaled, bias), strict=True):
        normal.add_tensor(numpy_helper.from_array(values.astype(np.float32), name))
    del product.input[1:]
    product.input.append(names[0])
    del norm.input[1:], norm.attribute[:]
    norm.op_type = "Add"
    norm.input.append(names[1])


def attribute(node: onnx.NodeProto, name: str, default: object = None) -> object:
    """Return the value of an operator's attribute.

    Args:
        node: the operator.
        name: name of the attribute.
        default: value that is returned if the operator does not have the attribute.
    """
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
