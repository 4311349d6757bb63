"""Explain failures of TVM's importer in terms of the model.

Messages of TVM often refer to its implementation (`object of type 'Call' has no len()`). A message
is shown to the user only if it is plain English. Otherwise, the cause is determined from the
operator itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import onnx

from tilewright.networks.errors import last_line

MUST_BE_CONSTANT: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,), "CumSum": (1,), "Expand": (1,), "OneHot": (1,), "Pad": (1, 2, 3),
    "Range": (0, 1, 2), "Reshape": (1,), "Resize": (1, 2, 3), "Slice": (1, 2, 3, 4), "Split": (1,),
    "SplitToSequence": (1,), "Squeeze": (1,), "Tile": (1,), "TopK": (1,), "Unsqueeze": (1,),
    "Upsample": (1,), "ConstantOfShape": (0,),
    **{f"Reduce{name}": (1,) for name in (
        "L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare",
    )},
}  # fmt: skip
"""Indices of the inputs that determine a shape or an axis, by operator type. They must be constants
in a graph with static shapes."""

INNER_WORDS = re.compile(
    r"object of type|NoneType|Check failed|ErrorContext|Traceback|<class|\btvm\b|\btirx?\b"
    r"|\brelax\b|\b[RTI]\.\w|\bVar\b|Expr|Tensor(Type|Struct)|Type\b|Call\b|has no attribute"
    r"|subscriptable|\bnot iterable|argument|assert|Error\b|\w\.(cc|h|py)\b|`|\[\[|show_meta"
    r"|ndim|dtype|::|_impl"
)
"""Matches messages that mention TVM's implementation. Such messages do not help a user who only has
a model."""


def explanation(model: onnx.ModelProto, name: str, error: Exception) -> str:
    """Return an error message that states the cause of a failed import and the next step.

    Args:
        model: the model.
        name: name of the operator at which the import stopped; "" if it stopped before the first
            operator.
        error: the exception of TVM's importer.
    """
    node = next((node for node in model.graph.node if node.name == name and name), None)
    if node is None:
        said = (
            plain_message(error)
            or "its tensors or outputs have a form that TVM's importer does not support"
        )
        return f"the model cannot be imported: {said}; export it again with standard operators"
    if said := _contradiction(model, node):
        return f"the model contradicts itself at operator '{name}': {said}; export it again"
    constants = {tensor.name for tensor in model.graph.initializer}
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return (
        f"operator '{node.name}' ({operator}) cannot be imported: {_cause(node, constants, error)}"
    )


def plain_message(error: Exception) -> str:
    """Return the message of an exception if it is plain English, or "" otherwise.

    Args:
        error: an exception that TVM raised.
    """
    said = last_line(error).strip().rstrip(".;: ")
    sentence = len(said.split()) > 2 and len(said) < 250 and said[0].isalpha()
    return said if sentence and not INNER_WORDS.search(said) else ""


def _contradiction(model: onnx.ModelProto, node: onnx.NodeProto) -> str:
    """Return the error that ONNX's shape inference reports for an operator.

    Args:
        model: the model.
        node: the operator.

    Returns:
        The error message, or "" if shape inference accepts the operator.
    """
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        said = last_line(error)
        return said.rpartition("): ")[2] if f"node name: {node.name})" in said else ""
    except (RuntimeError, ValueError):
        return ""
    return ""


def _cause(node: onnx.NodeProto, constants: Collection[str], error: Exception) -> str:
    computed = [
        f"'{_input_name(node, place)}' ('{node.input[place]}')"
        for place in MUST_BE_CONSTANT.get(node.op_type, ())
        if place < len(node.input) and node.input[place] not in {"", *constants}
    ]
    if computed:
        return (
            f"its input {' and '.join(computed)} must be constant, but is only known when "
            "the model runs; simplify the model so that it is constant (onnxsim folds such "
            "inputs)"
        )
    if isinstance(error, KeyError) and re.fullmatch(
        r"\w+", str(error.args[0] if error.args else "")
    ):
        return (
            f"the importer needs the attribute '{error.args[0]}', which the operator does "
            "not have; export the model with an older opset, or remove the operator"
        )
    if said := plain_message(error):
        return f"{said}; export the model without this operator"
    return (
        f"TVM's importer does not support this form of the operator ({_form(node)}); export "
        "the model with simpler operators, or remove this one"
    )


def _input_name(node: onnx.NodeProto, place: int) -> str:
    """Return the name that the ONNX standard gives to an operator's input.

    Args:
        node: the operator.
        place: index of the input.

    Returns:
        The name, or a text such as "number 2" if the standard does not define the input.
    """
    try:
        formal = onnx.defs.get_schema(node.op_type, node.domain).inputs
    except onnx.defs.SchemaError:
        formal = []
    return str(formal[place].name) if place < len(formal) else f"number {place}"


def _form(node: onnx.NodeProto) -> str:
    """Describe an operator for an error message: inputs, outputs and attributes."""
    inputs = sum(1 for name in node.input if name)
    attributes = ", ".join(attribute.name for attribute in node.attribute) or "no attributes"
    outputs = f", {len(node.output)} outputs" if len(node.output) > 1 else ""
    return f"{inputs} input{'s' * (inputs != 1)}{outputs}, {attributes}"
