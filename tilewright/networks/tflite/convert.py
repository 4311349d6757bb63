"""Converts a TensorFlow Lite file to an ONNX model in QDQ form."""

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
from tilewright.networks.tflite.file import TfliteGraph, TfliteOperator, read
from tilewright.networks.tflite.fourier import takes_complex
from tilewright.networks.tflite.graph import Names, operator_names
from tilewright.networks.tflite.supported_operators import REFUSED, SUPPORTED
from tilewright.networks.tflite.writer import Missing, Writer


@dataclass(frozen=True)
class Converted:
    """The model, in which an operator without a rule stands as one of the domain `tflite`;
    `missing` says of each, by name, its kind and what is in the way."""

    model: onnx.ModelProto
    missing: Mapping[str, str]


def read_tflite(path: Path) -> onnx.ModelProto:
    """The ONNX model of a file, in QDQ form where it is quantised; inputs and outputs keep names,
    types and layouts. Raises `ModelFileError`, and `UnsupportedOperatorError` which names every
    operator that cannot be expressed."""
    converted = convert(read(path))
    if converted.missing:
        shown = "; ".join(f"'{name}': {why}" for name, why in converted.missing.items())
        raise UnsupportedOperatorError(
            f"'{path}' cannot be converted whole: {shown}; replace these operators before "
            "converting the model, or cut them off"
        )
    return converted.model


def convert(graph: TfliteGraph) -> Converted:
    """The graph in ONNX. Raises `ModelFileError` for one that contradicts itself."""
    writer, missing = Writer(graph), {}
    sizes.analyse(writer)
    needed = _needed(writer)
    for operator, name in zip(needed, _operator_names(graph, needed), strict=True):
        writer.begin(name, operator.kind, in_floats=_computes_floats(graph, operator))
        if reason := _converted(writer, operator):
            node = writer.foreign(operator.kind, sizes.reads(writer, operator), operator.outputs)
            missing[node] = f"{printable(operator.kind)}: {reason}"
    model = writer.model()
    _check(model, graph)
    return Converted(model, missing)


def _convert_inner(writer: Writer, prefix: str) -> None:
    """Let a writer of a graph that an operator executes have all its operators. Raises `Missing`
    for the first one that cannot be expressed."""
    graph = writer.source
    sizes.analyse(writer)
    needed = _needed(writer)
    for operator, name in zip(needed, _operator_names(graph, needed), strict=True):
        writer.begin(f"{prefix}/{name}", operator.kind, in_floats=_computes_floats(graph, operator))
        if reason := _converted(writer, operator):
            raise Missing(f"in its graph, '{name}': {printable(operator.kind)}: {reason}")
    writer.begin(prefix)


def _converted(writer: Writer, operator: TfliteOperator) -> str:
    """Let the writer have an operator; why that cannot be, or ""."""
    for place in operator.inputs:
        if place >= 0 and writer.tensors[place].is_variable:
            name = printable(writer.tensors[place].name)
            return f"its tensor '{name}' is state, kept from run to run"
    if operator.is_custom:
        return "it is a custom operator, which only its author's runtime knows"
    if operator.kind in REFUSED:
        return REFUSED[operator.kind]
    rule = RULES.get(operator.kind)
    if rule is None:
        return "there is no rule for this kind of operator"
    for place in (*sizes.reads(writer, operator), *operator.outputs):
        tensor = writer.tensors[place]
        if not tensor.dtype and not takes_complex(operator.kind, tensor):
            return f"its tensor '{printable(tensor.name)}' holds {tensor.kind}"
    try:
        sizes.check(writer, operator)
        rule(writer, operator)
    except Missing as error:
        return str(error)
    return ""


def _needed(writer: Writer) -> list[TfliteOperator]:
    """The operators that the outputs of a graph depend on, in order."""
    graph = writer.source
    wanted, needed = set(graph.outputs), []
    for operator in reversed(graph.operators):
        if not wanted.isdisjoint(operator.outputs):
            needed.append(operator)
            wanted.update(sizes.reads(writer, operator))
    return needed[::-1]


def _operator_names(graph: TfliteGraph, operators: Sequence[TfliteOperator]) -> list[str]:
    names = Names()
    sources = [_source(graph, operator) for operator in operators]
    return [names.free(printable(name)) for name in operator_names(sources)]


def _source(graph: TfliteGraph, operator: TfliteOperator) -> tuple[str, str, str]:
    """What `operator_names` makes a name of."""
    outputs = [graph.tensors[place].name for place in operator.outputs[:1]]
    second = [graph.tensors[place] for place in operator.inputs[1:2] if place >= 0]
    weights = [tensor.name for tensor in second if tensor.data is not None]
    return operator.kind, "".join(outputs), "".join(weights)


def _computes_floats(graph: TfliteGraph, operator: TfliteOperator) -> bool:
    """Whether an operator with quantised weights computes in floats: the weights are real then, or
    the model would pass for a quantised one."""
    results = [graph.tensors[place] for place in operator.outputs]
    return all(tensor.dtype == "float32" for tensor in results)


def _check(model: onnx.ModelProto, graph: TfliteGraph) -> None:
    """Raises `ModelFileError` where ONNX's inference finds other shapes than the file states."""
    light = weights_as_inputs(without_weights(model))
    graphs = (graph, *graph.subgraphs.values())
    shapes = [tensor.shape for each in graphs for tensor in each.tensors]
    # To follow values, ONNX writes a message for each element of a vector.
    follows_values = max(max(shape, default=0) for shape in shapes) <= MOST_FOLLOWED
    try:
        onnx.shape_inference.infer_shapes(light, strict_mode=True, data_prop=follows_values)
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        raise ModelFileError(
            f"the model contradicts itself: {last_line(error)}; the file is damaged, convert it "
            "again"
        ) from None


RULES: Mapping[str, Rule] = {**SUPPORTED, **control.rules(_convert_inner)}
"""How each kind of operator is expressed, by the schema's word."""
