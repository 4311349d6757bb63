"""Reject models that onnxruntime cannot run.

onnxruntime has to support every operator, because it computes the reference results and runs the
regions that TVM does not compile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import onnx
from onnx import TensorProto

from tilewright.core.lazy_module import lazy_module
from tilewright.core.user_text import printable
from tilewright.networks.errors import ModelFileError, UnsupportedOperatorError, first_line
from tilewright.networks.onnx.files import weights_as_inputs
from tilewright.networks.onnx.graph import STANDARD_DOMAINS, data_inputs
from tilewright.networks.onnx.opset import OPSET, raise_opset
from tilewright.networks.onnxruntime_options import failures, quiet_options

onnxruntime = lazy_module("onnxruntime")

NO_ARRAYS = frozenset(
    int(number)
    for name, number in TensorProto.DataType.items()
    if name.startswith(("FLOAT8", "FLOAT4", "INT4", "UINT4", "INT2", "UINT2"))
)
"""ONNX element types that inputs and outputs cannot have, because NumPy does not support them."""


def check_known(name: str, weightless: onnx.ModelProto) -> bool:
    """Check that onnxruntime supports all operators of a model.

    Args:
        name: name of the model, for messages.
        weightless: the model, whose weights may be stubs without data.

    Returns:
        True if onnxruntime accepts the model without the data of its weights. False if it may need
        the data, or a newer opset, to accept the model.

    Raises:
        UnsupportedOperatorError: an operator is unknown, or has no kernel for its element types.
        ModelFileError: the opset or IR version is newer than onnxruntime supports, or shapes
            contradict each other.
    """
    for info in (*data_inputs(weightless), *weightless.graph.output):
        dtype = int(info.type.tensor_type.elem_type)
        if dtype in NO_ARRAYS:
            raise UnsupportedOperatorError(
                f"'{printable(info.name)}' of '{name}' is a tensor of "
                f"{TensorProto.DataType.Name(dtype)}, which onnxruntime can neither receive "
                "from Python nor return; cast it to another type inside the model"
            )
    local_functions = {(function.domain, function.name) for function in weightless.functions}
    for node in _nodes(weightless):
        domain = "" if node.domain in STANDARD_DOMAINS else node.domain
        if (domain, node.op_type) not in _operators() | local_functions:
            operator = f"{node.domain}.{node.op_type}" if domain else f"{node.op_type}"
            raise UnsupportedOperatorError(
                f"the operator '{printable(_node_name(node))}' of '{name}' has the type "
                f"{printable(operator)}, which neither Tilewright nor onnxruntime "
                f"{onnxruntime.__version__} supports; export the model with standard "
                "operators"
            )
    try:
        _open(weightless)
    except failures() as error:
        message = first_line(error)
        if _opset(weightless) < OPSET and opens(raise_opset(weightless)):
            return False  # onnxruntime supports a newer version of the operators
        _refuse(name, weightless, message)
        return False
    return True


def _open(model: onnx.ModelProto, *, optimised: bool = False) -> None:
    """Create an onnxruntime session for a model. Raises onnxruntime's own errors."""
    options = quiet_options()
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        model = weights_as_inputs(model)
    onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def opens(model: onnx.ModelProto, *, optimised: bool = False) -> bool:
    """Return whether onnxruntime accepts a model, whose weights may lack their data.

    Args:
        model: the model.
        optimised: enable graph optimisations. The model then needs its weights.
    """
    try:
        _open(model, optimised=optimised)
    except failures():
        return False
    return True


def has_branches(model: onnx.ModelProto) -> bool:
    """Return whether an operator of the model, such as `If` or `Loop`, contains a subgraph."""
    return any(a.HasField("g") for node in model.graph.node for a in node.attribute)


def _refuse(name: str, model: onnx.ModelProto, message: str) -> None:
    """Raise this package's exception that corresponds to an error message of onnxruntime.

    Nothing is raised for other messages, since these may be caused by the missing data of the
    weights.

    Args:
        name: name of the model, for messages.
        model: the model.
        message: onnxruntime's error message.
    """
    version = f"onnxruntime {onnxruntime.__version__}"
    if "Unsupported model IR version" in message:
        newest = message.rpartition("max supported IR version: ")[2]
        raise ModelFileError(
            f"'{name}' has IR version {model.ir_version}, but {version} supports at most "
            f"{newest}; save the model with an older version of the onnx package"
        )
    if parts := re.search(r"domain (\S+) is till opset (\d+)", message):
        raise ModelFileError(
            f"'{name}' uses opset {_opset(model)}, but {version} supports at most opset "
            f"{parts[2]}; export the model with an older opset"
        )
    if parts := re.search(r"Node \((.*)\) Op \((\w+)\) \[ShapeInferenceError\] (.*)", message):
        raise ModelFileError(
            f"'{name}' contradicts itself at the operator "
            f"'{printable(parts[1]) or parts[2]}' ({parts[2]}): {parts[3]}; export it again"
        )
    if parts := re.search(
        r"find an implementation for (\w+)\(\d+\) node with name '(.*)'", message
    ):
        raise UnsupportedOperatorError(
            f"the operator '{printable(parts[2]) or parts[1]}' ({parts[1]}) of '{name}' has "
            f"no kernel for its element types in {version}; cast its inputs to other types, "
            "or export the model without it"
        )


def _node_name(node: onnx.NodeProto) -> str:
    return str(node.name or next(iter(node.output), node.op_type))


def _opset(model: onnx.ModelProto) -> int:
    return max((o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS), default=1)


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield all nodes of a model, including those in subgraphs and functions."""
    waiting = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                waiting += graph.node


@cache
def _operators() -> frozenset[tuple[str, str]]:
    """Return the (domain, type) of every operator that onnxruntime knows."""
    schemas = onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema()
    return frozenset((schema.domain, schema.name) for schema in schemas)
