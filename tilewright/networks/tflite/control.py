"""Convert operators that execute other graphs of the file: branches, loops and composites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from tilewright.core.user_text import printable
from tilewright.networks.tflite.elementwise import Rule, input_index
from tilewright.networks.tflite.file import Shape, TfliteOperator, TfliteTensor
from tilewright.networks.tflite.writer import Missing, Writer

ConvertInner = Callable[[Writer, str], None]
"""Function that converts all operators of a nested graph. Its arguments are the writer of the graph
and a prefix for the names of the operators."""

MAX_DEPTH = 32
"""Maximum nesting depth of graphs. A graph that executes itself exceeds this depth."""


def rules(convert: ConvertInner) -> Mapping[str, Rule]:
    """Return the conversion rule of each operator of this module, by its name in the schema.

    Args:
        convert: function that converts all operators of a graph that another operator executes.
    """
    return {
        "IF": partial(_convert_if, convert),
        "WHILE": partial(_convert_while, convert),
        "STABLEHLO_WHILE": partial(_convert_while, convert),
        "STABLEHLO_COMPOSITE": partial(_convert_composite, convert),
    }


def _inner(writer: Writer, operator: TfliteOperator, option: str, *, inline: bool) -> Writer:
    """Create a writer for the graph of the file that an operator executes.

    Args:
        writer: writer of the surrounding graph.
        operator: the operator.
        option: name of the operator's option that contains the number of the graph.
        inline: whether the nodes of the graph become part of the surrounding ONNX graph. If False,
            they form an ONNX graph of their own.

    Raises:
        Missing: there is no graph with this number, or graphs are nested too deeply.
    """
    graph = writer.subgraphs.get(operator.integer(option, -1))
    if graph is None:
        raise Missing(f"its option {option} refers to a graph that does not exist")
    inner = Writer(graph, writer, inline=inline)
    writer.budget.spend(len(graph.operators))
    if inner.depth > MAX_DEPTH:
        raise Missing(f"its graphs are nested {MAX_DEPTH} times, or one contains itself")
    return inner


def _check_count(what: str, places: Sequence[int], wanted: int) -> None:
    """Raise `Missing` unless a graph has as many inputs or outputs as its operator.

    Args:
        what: name of the inputs or outputs, for the message.
        places: tensor indices of the graph's inputs or outputs.
        wanted: number of the operator's inputs or outputs.
    """
    if len(places) != wanted:
        raise Missing(f"its graph has {len(places)} {what}, but the operator has {wanted}")


def _check_alike(inner: TfliteTensor, outer: TfliteTensor, *, shapes: bool = True) -> None:
    """Check that a tensor of an inner graph is stored in the same way as a tensor of the operator.

    Args:
        inner: tensor of the inner graph.
        outer: the operator's tensor.
        shapes: whether the shapes must be equal, too.

    Raises:
        Missing: the element types, the quantisations or the shapes differ.
    """
    same = (
        outer.quantisation is None
        if inner.quantisation is None
        else inner.quantisation.same_as(outer.quantisation)
    )
    if inner.dtype != outer.dtype or not same or not inner.dtype:
        raise Missing(
            f"its graph has '{printable(inner.name)}' with another type than "
            f"'{printable(outer.name)}'"
        )
    if shapes and inner.shape != outer.shape:
        raise Missing(
            f"the shape of '{printable(outer.name)}' is {list(outer.shape)}, but in its "
            f"graph it is {list(inner.shape)}"
        )


def _bind(inner: Writer, writer: Writer, arguments: Sequence[int]) -> None:
    """Connect the inputs of an inner graph to tensors of the surrounding graph.

    Args:
        inner: writer of the inner graph.
        writer: writer of the surrounding graph.
        arguments: for each input, the tensor index in the surrounding graph.

    Raises:
        Missing: an argument is absent, or differs from its input in type, quantisation or shape.
    """
    _check_count("inputs", inner.source.inputs, len(arguments))
    if min(arguments, default=0) < 0:
        raise Missing("one of its inputs is missing")
    for place, argument in zip(inner.source.inputs, arguments, strict=True):
        _check_alike(
            inner.tensors[place], writer.tensors[argument], shapes=not writer.is_open(argument)
        )
        inner.bind(place, writer, argument)


def _convert_composite(convert: ConvertInner, writer: Writer, operator: TfliteOperator) -> None:
    """Convert STABLEHLO_COMPOSITE by inlining the graph that defines it."""
    inner = _inner(writer, operator, "DecompositionSubgraphIndex", inline=True)
    _bind(inner, writer, operator.inputs)
    _check_count("outputs", inner.source.outputs, len(operator.outputs))
    prefix = writer.operator
    convert(inner, prefix)
    for place, result in zip(inner.source.outputs, operator.outputs, strict=True):
        is_open = inner.is_open(place)
        _check_alike(inner.tensors[place], writer.tensors[result], shapes=not is_open)
    for place, result in zip(inner.source.outputs, operator.outputs, strict=True):
        if inner.is_open(place):
            writer.set_open([result])
        writer.write_stored(result, writer.node("Identity", [inner.stored_name(place)], "Output"))


def _convert_if(convert: ConvertInner, writer: Writer, operator: TfliteOperator) -> None:
    condition, arguments = input_index(operator, 0), operator.inputs[1:]
    prefix, graphs, opened = writer.operator, [], set()
    for option, name in (("ThenSubgraphIndex", "then"), ("ElseSubgraphIndex", "else")):
        inner = _inner(writer, operator, option, inline=False)
        _bind(inner, writer, arguments)
        _check_count("outputs", inner.source.outputs, len(operator.outputs))
        convert(inner, f"{prefix}/{name}")
        results: list[tuple[str, str, Sequence[int | None]]] = []
        for place, result in zip(inner.source.outputs, operator.outputs, strict=True):
            tensor = inner.tensors[place]
            _check_alike(tensor, writer.tensors[result], shapes=False)
            is_open = inner.is_open(place) or tensor.shape != writer.tensors[result].shape
            if len(tensor.shape) != len(writer.tensors[result].shape):
                raise Missing("its branches have results of different ranks")
            if is_open:
                opened.add(result)
            shape: Sequence[int | None] = tensor.shape
            if is_open:
                shape = [None] * len(tensor.shape)
            results.append((inner.stored_name(place), tensor.dtype, shape))
        graphs.append(inner.inner_graph([], results))
    writer.set_open(opened)
    chosen = _as_scalar(writer, writer.stored_name(condition), writer.tensors[condition])
    results_of_if = writer.nodes(
        "If", [chosen], len(operator.outputs), then_branch=graphs[0], else_branch=graphs[1]
    )
    for place, name in zip(operator.outputs, results_of_if, strict=True):
        writer.write_stored(place, name)


def _convert_while(convert: ConvertInner, writer: Writer, operator: TfliteOperator) -> None:
    """Convert WHILE to ONNX's Loop.

    The condition is computed once before the loop and again at the end of each iteration. Variables
    that no iteration changes are read from the surrounding graph, so that constants remain
    constants. All other variables are carried from one iteration to the next.
    """
    arguments, results = operator.inputs, operator.outputs
    if min(arguments, default=-1) < 0 or any(map(writer.is_open, arguments)):
        raise Missing("the sizes of its variables depend on values of tensors")
    _check_count("outputs", results, len(arguments))
    prefix = writer.operator
    first = _inner(writer, operator, "CondSubgraphIndex", inline=True)
    _bind(first, writer, arguments)
    convert(first, f"{prefix}/first")
    begins = _condition(first)

    body = _inner(writer, operator, "BodySubgraphIndex", inline=False)
    inputs, outputs = body.source.inputs, body.source.outputs
    _check_count("inputs", inputs, len(arguments))
    _check_count("outputs", outputs, len(arguments))
    for tensors, places in ((body.tensors, inputs), (body.tensors, outputs),
                            (writer.tensors, results)):  # fmt: skip
        for place, argument in zip(places, arguments, strict=True):
            _check_alike(tensors[place], writer.tensors[argument])
    carried = [i for i in range(len(inputs)) if inputs[i] != outputs[i]]
    if not carried:
        raise Missing("its body changes none of its variables")
    body.begin(prefix)
    infos = [body.declare_scalar("turn", "int64"), body.declare_scalar("goes_on", "bool")]
    for i, place in enumerate(inputs):
        if i in carried:
            infos.append(body.declare(place))
        else:
            body.bind(place, writer, arguments[i])
    convert(body, f"{prefix}/body")
    if any(body.is_open(place) for place in outputs):
        raise Missing("the sizes of its variables depend on values of tensors")
    again = _inner(body, operator, "CondSubgraphIndex", inline=True)
    _bind(again, body, outputs)
    convert(again, f"{prefix}/cond")
    finished: list[tuple[str, str, Shape]] = [(_condition(again), "bool", ())]
    for i in carried:
        tensor = body.tensors[outputs[i]]
        finished.append((body.stored_name(outputs[i]), tensor.dtype, tensor.shape))
    body.begin(prefix)
    graph = body.inner_graph(infos, finished)
    starts = [writer.stored_name(arguments[i]) for i in carried]
    final_values = writer.nodes("Loop", ["", begins, *starts], len(carried), body=graph)
    for i, name in zip(carried, final_values, strict=True):
        writer.write_stored(results[i], name)
    for i, result in enumerate(results):
        if i not in carried:
            same = writer.node("Identity", [writer.stored_name(arguments[i])], "Unchanged")
            writer.write_stored(result, same)


def _condition(inner: Writer) -> str:
    """Return the name of the only output of a graph that computes a condition, as a scalar.

    Args:
        inner: writer of the graph.

    Raises:
        Missing: the graph has several outputs, or none.
    """
    _check_count("outputs", inner.source.outputs, 1)
    (place,) = inner.source.outputs
    return _as_scalar(inner, inner.stored_name(place), inner.tensors[place])


def _as_scalar(writer: Writer, name: str, tensor: TfliteTensor) -> str:
    if tensor.dtype != "bool" or tensor.shape not in ((), (1,)):
        raise Missing(f"its condition has type {tensor.dtype} and shape {list(tensor.shape)}")
    if tensor.shape == ():
        return name
    return writer.node("Reshape", [name, writer.add("shape", np.array([], np.int64))], "Condition")
