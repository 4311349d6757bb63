"""Convert a TensorFlow Lite file to an ONNX model in QDQ form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from tilewright.core.user_text import printable
from tilewright.networks.errors import ModelFileError, UnsupportedOperatorError, last_line
from tilewright.networks.onnx.files import weights_as_inputs, without_weights
from tilewright.networks.onnx.size_limits import MOST_FOLLOWED
from tilewright.networks.tflite import control, sizes
from tilewright.networks.tflite.elementwise import Rule
from tilewright.networks.tflite.file import TfliteGraph, TfliteOperator, read_graph
from tilewright.networks.tflite.fourier import takes_complex
from tilewright.networks.tflite.graph import Names, operator_names
from tilewright.networks.tflite.supported_operators import REFUSED, SUPPORTED
from tilewright.networks.tflite.writer import Missing, Writer


@dataclass(frozen=True)
class Converted:
    """Result of converting a TensorFlow Lite graph.

    Attributes:
        model: the ONNX model. An operator that cannot be converted is kept as a node of the domain
            `tflite`.
        missing: for each operator that cannot be converted, its kind and the reason, by operator
            name.
    """

    model: onnx.ModelProto
    missing: Mapping[str, str]


def read_tflite(path: Path) -> onnx.ModelProto:
    """Read a TensorFlow Lite file and convert it to an ONNX model.

    Quantised tensors are written in QDQ form, with QuantizeLinear and DequantizeLinear operators.
    Inputs and outputs keep their names, types and layouts.

    Args:
        path: path of the file.

    Raises:
        ModelFileError: the file cannot be read or is not a valid model.
        UnsupportedOperatorError: some operators cannot be converted to ONNX. The message names all
            of them.
    """
    converted = convert(read_graph(path))
    if converted.missing:
        shown = "; ".join(f"'{name}': {why}" for name, why in converted.missing.items())
        raise UnsupportedOperatorError(
            f"'{path}' cannot be converted completely: {shown}; replace these operators "
            "before converting the model, or remove them"
        )
    return converted.model


def convert(graph: TfliteGraph) -> Converted:
    """Convert a TensorFlow Lite graph to ONNX.

    Operators that cannot be converted are kept and reported in `Converted.missing`.

    Args:
        graph: the main graph of the file.

    Raises:
        ModelFileError: the graph contradicts itself.
    """
    writer, missing = Writer(graph), {}
    sizes.analyse(writer)
    needed = _needed_operators(writer)
    for operator, name in zip(needed, _operator_names(graph, needed), strict=True):
        writer.begin(name, operator.kind, in_floats=_computes_floats(graph, operator))
        if reason := _convert_operator(writer, operator):
            node = writer.keep_foreign(
                operator.kind, sizes.tensors_read(writer, operator), operator.outputs
            )
            missing[node] = f"{printable(operator.kind)}: {reason}"
    model = writer.model()
    _check(model, graph)
    return Converted(model, missing)


def _convert_inner(writer: Writer, prefix: str) -> None:
    """Convert all operators of a graph that another operator executes, such as a loop body.

    Args:
        writer: writer of the graph.
        prefix: prefix of the names of all nodes.

    Raises:
        Missing: an operator of the graph cannot be converted.
    """
    graph = writer.source
    sizes.analyse(writer)
    needed = _needed_operators(writer)
    for operator, name in zip(needed, _operator_names(graph, needed), strict=True):
        writer.begin(f"{prefix}/{name}", operator.kind, in_floats=_computes_floats(graph, operator))
        if reason := _convert_operator(writer, operator):
            raise Missing(f"in its graph, '{name}': {printable(operator.kind)}: {reason}")
    # The operator that executes the graph adds the nodes that follow.
    writer.begin(prefix)


def _convert_operator(writer: Writer, operator: TfliteOperator) -> str:
    """Convert one operator to ONNX.

    Args:
        writer: writer of the graph.
        operator: the operator.

    Returns:
        "" on success, or the reason why the operator cannot be converted.
    """
    for place in operator.inputs:
        if place >= 0 and writer.tensors[place].is_variable:
            name = printable(writer.tensors[place].name)
            return f"its tensor '{name}' is state that is kept between runs"
    if operator.is_custom:
        return "it is a custom operator, which only its author's runtime supports"
    if operator.kind in REFUSED:
        return REFUSED[operator.kind]
    rule = RULES.get(operator.kind)
    if rule is None:
        return "this kind of operator is not supported"
    for place in (*sizes.tensors_read(writer, operator), *operator.outputs):
        tensor = writer.tensors[place]
        if not tensor.dtype and not takes_complex(operator.kind, tensor):
            return f"its tensor '{printable(tensor.name)}' contains {tensor.kind}"
    try:
        sizes.check(writer, operator)
        rule(writer, operator)
    except Missing as error:
        return str(error)
    return ""


def _needed_operators(writer: Writer) -> list[TfliteOperator]:
    """Return the operators on which the graph's outputs depend, in execution order."""
    graph = writer.source
    wanted, needed = set(graph.outputs), []
    for operator in reversed(graph.operators):
        if not wanted.isdisjoint(operator.outputs):
            needed.append(operator)
            wanted.update(sizes.tensors_read(writer, operator))
    return needed[::-1]


def _operator_names(graph: TfliteGraph, operators: Sequence[TfliteOperator]) -> list[str]:
    names = Names()
    sources = [_source(graph, operator) for operator in operators]
    return [names.take_free_name(printable(name)) for name in operator_names(sources)]


def _source(graph: TfliteGraph, operator: TfliteOperator) -> tuple[str, str, str]:
    """Return the texts from which `operator_names` derives the name of an operator.

    Returns:
        The kind of the operator, the name of its first output, and the name of its weights; "" for
        missing ones.
    """
    outputs = [graph.tensors[place].name for place in operator.outputs[:1]]
    second = [graph.tensors[place] for place in operator.inputs[1:2] if place >= 0]
    weights = [tensor.name for tensor in second if tensor.data is not None]
    return operator.kind, "".join(outputs), "".join(weights)


def _computes_floats(graph: TfliteGraph, operator: TfliteOperator) -> bool:
    """Return whether an operator computes a float32 result.

    The quantised weights of such an operator are converted to float32. Otherwise, the whole model
    would count as quantised.
    """
    results = [graph.tensors[place] for place in operator.outputs]
    return all(tensor.dtype == "float32" for tensor in results)


def _check(model: onnx.ModelProto, graph: TfliteGraph) -> None:
    """Raise `ModelFileError` if ONNX's shape inference contradicts the shapes in the file."""
    light = weights_as_inputs(without_weights(model))
    graphs = (graph, *graph.subgraphs.values())
    shapes = [tensor.shape for subgraph in graphs for tensor in subgraph.tensors]
    # To propagate values, ONNX's shape inference stores a message for each element of a vector.
    follows_values = max(max(shape, default=0) for shape in shapes) <= MOST_FOLLOWED
    try:
        onnx.shape_inference.infer_shapes(light, strict_mode=True, data_prop=follows_values)
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        raise ModelFileError(
            f"the model contradicts itself: {last_line(error)}; the file is damaged, convert it "
            "again"
        ) from None


RULES: Mapping[str, Rule] = {**SUPPORTED, **control.rules(_convert_inner)}
"""Conversion rule of each operator kind, by its name in the schema."""
