"""Track sizes that depend on values of tensors, and convert the operators that cause them.

A file states a shape for every tensor, with 1 in place of a size that its converter did not know.
Such a size is known here if it follows from constants and from the shapes of the inputs. A size is
called open if it depends on the values of tensors, for example after WHERE. Tensors with open sizes
can only be converted by rules that need no sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.core.user_text import printable
from tilewright.networks.tflite import moves
from tilewright.networks.tflite.elementwise import Rule, input_index, output
from tilewright.networks.tflite.file import Shape, TfliteOperator
from tilewright.networks.tflite.logic import cast, write_as
from tilewright.networks.tflite.writer import Missing, Writer

SHAPE_ONLY = frozenset(("SHAPE", "RANK", "ZEROS_LIKE"))
"""Operators that read only the shape of their input, not its values."""

SIZED: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            "RESHAPE", "BROADCAST_TO", "TILE", "PAD", "PADV2", "MIRROR_PAD", "RESIZE_BILINEAR",
            "RESIZE_NEAREST_NEIGHBOR", "SPARSE_TO_DENSE", "ONE_HOT", "TOPK_V2", "RFFT2D",
            "SEGMENT_SUM",
        ),
        (1,),
    ),
    **dict.fromkeys(("FILL", "TRANSPOSE_CONV", "CONV_3D_TRANSPOSE"), (0,)),
    **dict.fromkeys(("SLICE", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"), (1, 2)),
    **dict.fromkeys(
        (
            "SCATTER_ND", "UNSORTED_SEGMENT_SUM", "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_MAX",
            "UNSORTED_SEGMENT_MIN", "EMBEDDING_LOOKUP_SPARSE", "NON_MAX_SUPPRESSION_V4",
            "NON_MAX_SUPPRESSION_V5",
        ),
        (2,),
    ),
    "STRIDED_SLICE": (1, 2, 3),
    "RANGE": (0, 1, 2),
}  # fmt: skip
"""Indices of the inputs whose values determine the shape of the result, by the kind of operator."""

BY_VALUES = frozenset(("WHERE", "UNIQUE"))
"""Operators for which the size of the result depends on the values of the data."""

OPEN = frozenset((
    "WHERE", "UNIQUE", "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "SHAPE", "RANK", "BROADCAST_TO", "FILL",
    "RANGE", "TILE", "PAD", "PADV2", "SLICE", "STRIDED_SLICE", "TRANSPOSE", "CONCATENATION", "PACK",
    "REVERSE_V2", "GATHER", "GATHER_ND", "EMBEDDING_LOOKUP", "ONE_HOT", "TOPK_V2", "ARG_MAX",
    "ARG_MIN", "CUMSUM", "SCATTER_ND", "BATCH_MATMUL", "IF", "STABLEHLO_COMPOSITE",
    "MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL",
    "ADD", "ADD_N", "SUB", "MUL", "DIV", "FLOOR_DIV", "FLOOR_MOD", "POW", "MAXIMUM", "MINIMUM",
    "SQUARED_DIFFERENCE", "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "LEAKY_RELU", "ELU",
    "GELU", "HARD_SWISH", "LOGISTIC", "TANH", "SOFTMAX", "LOG_SOFTMAX", "ABS", "NEG", "SIGN", "EXP",
    "LOG", "SQRT", "RSQRT", "SQUARE", "SIN", "COS", "ATAN2", "FLOOR", "CEIL", "ROUND", "QUANTIZE",
    "DEQUANTIZE", "CAST", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", "EQUAL", "NOT_EQUAL",
    "LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT", "SELECT_V2",
))  # fmt: skip
"""Operators that can be converted even if the sizes of their tensors depend on tensor values. Their
conversion rules do not need these sizes."""


def analyse(writer: Writer) -> None:
    """Find the tensors of a graph with open sizes, and the tensors with derived values.

    A size is open if it depends on values of tensors. Values are derived if they follow from
    constants and shapes. The results are recorded in `writer`.

    Args:
        writer: writer of the graph.
    """
    for operator in writer.source.operators:
        read = [place for place in operator.inputs if place >= 0]
        opened = [place for place in read if writer.is_open(place)]
        if all(map(writer.is_derived, read)) or (operator.kind in SHAPE_ONLY and not opened):
            writer.derived.update(operator.outputs)
        computed = _computed_sizes(writer, operator)
        if operator.kind in OPEN and (opened or computed or operator.kind in BY_VALUES):
            writer.set_open(_open_results(writer, operator, opened, computed))


def tensors_read(writer: Writer, operator: TfliteOperator) -> Shape:
    """Return the indices of the tensors that an operator reads.

    Inputs that only state a shape are left out, unless a size of the operator's tensors depends on
    values of tensors.

    Args:
        writer: writer of the graph.
        operator: the operator.
    """
    if not any(map(writer.is_open, (*operator.inputs, *operator.outputs))):
        return moves.tensors_read(operator)
    return tuple(place for place in operator.inputs if place >= 0)


def check(writer: Writer, operator: TfliteOperator) -> None:
    """Check that an operator can be converted although some sizes depend on tensor values.

    Args:
        writer: writer of the graph.
        operator: the operator.

    Raises:
        Missing: the conversion needs a size that depends on tensor values.
    """
    opened = [place for place in operator.inputs if writer.is_open(place)]
    if operator.kind in OPEN or not (opened or _computed_sizes(writer, operator)):
        return
    (place, *_) = opened or operator.outputs
    raise Missing(
        f"the size of its tensor '{printable(writer.tensors[place].name)}' depends on values "
        "of tensors"
    )


def _computed_sizes(writer: Writer, operator: TfliteOperator) -> list[int]:
    """Return the inputs of an operator from which its result's shape is computed at run time.

    Returns:
        Tensor indices; empty if the shape is known at conversion time.
    """
    sizing = [operator.inputs[i] for i in SIZED.get(operator.kind, ()) if i < len(operator.inputs)]
    is_open = any(writer.tensors[place].has_open_shape for place in operator.outputs)
    if operator.kind != "RANGE" and not is_open:
        return []  # the shape does not depend on values
    return [place for place in sizing if place >= 0 and not writer.is_derived(place)]


def _open_results(
    writer: Writer, operator: TfliteOperator, opened: list[int], computed: list[int]
) -> list[int]:
    """Return the tensor indices of an operator's results whose sizes depend on values.

    Args:
        writer: writer of the graph.
        operator: the operator.
        opened: tensor indices of the inputs whose sizes depend on values.
        computed: tensor indices of the inputs from which the shape of a result is computed at run
            time.
    """
    if operator.kind in (*SHAPE_ONLY, "IF", "STABLEHLO_COMPOSITE"):
        return []  # subgraphs are examined when they are converted
    if operator.kind == "UNIQUE" and not opened:
        return list(operator.outputs[:1])
    if operator.kind in ("RESHAPE", "BROADCAST_TO") and not computed and len(operator.inputs) > 1:
        sizes = operator.inputs[1]
        if writer.is_constant(sizes) and (writer.constant(sizes, "its shape") >= 0).all():
            return []
    if operator.kind == "SCATTER_ND" and not computed:
        return []
    return [place for place in operator.outputs if writer.tensors[place].shape]


def _convert_where(writer: Writer, operator: TfliteOperator) -> None:
    """Convert WHERE, which returns the indices of all non-zero elements as the rows of a matrix."""
    data, result = input_index(operator, 0), output(operator)
    rank = len(writer.tensors[data].shape)
    if not rank:
        raise Missing("its data are a single number")
    name = writer.stored_name(data)
    if writer.tensors[data].dtype not in NONZERO_TYPES:
        name = cast(writer, name, "bool", "CastData")
    coordinates = writer.node("NonZero", [name], "NonZero")
    write_as(writer, result, writer.node("Transpose", [coordinates], "Rows", perm=[1, 0]), "int64")


NONZERO_TYPES = frozenset(("bool", "float32", "int32", "int64", "uint8"))
"""Element types that onnxruntime supports for NonZero."""


def _unique(writer: Writer, operator: TfliteOperator) -> None:
    """Convert UNIQUE to ONNX.

    The first result contains the distinct elements, in the order of their first occurrence. The
    second result contains the index in the first result for each element of the input.
    """
    data = input_index(operator, 0)
    if len(operator.outputs) != 2 or len(writer.tensors[data].shape) != 1:
        raise Missing("its data are not a vector, or it does not have two results")
    dtype = writer.tensors[data].dtype
    name, sortable = writer.stored_name(data), dtype
    if dtype not in UNIQUE_TYPES:
        sortable = "float32" if dtype == "float16" else "int64"
        name = cast(writer, name, sortable, "CastData")
    results = writer.nodes("Unique", [name], 4, sorted=0)
    values = results[0] if sortable == dtype else cast(writer, results[0], dtype, "CastValues")
    writer.write_stored(operator.outputs[0], values)
    write_as(writer, operator.outputs[1], results[2], "int64")


UNIQUE_TYPES = frozenset(("float32", "float64", "int8", "int64"))
"""Element types that onnxruntime supports for Unique."""


def _broadcast_args(writer: Writer, operator: TfliteOperator) -> None:
    """Convert BROADCAST_ARGS, which computes the shape to which two shapes are broadcast."""
    places, result = [input_index(operator, i) for i in (0, 1)], output(operator)
    lengths = [writer.tensors[place].shape for place in places]
    if any(len(length) != 1 for length in lengths):
        raise Missing("its inputs are not two shapes")
    most = max(length[0] for length in lengths)
    if all(map(writer.is_constant, places)):
        shapes = [[int(size) for size in writer.integers(place, "its shape")] for place in places]
        try:
            common_shape = np.broadcast_shapes(*map(tuple, shapes))
        except ValueError:
            raise Missing(f"the shapes {shapes[0]} and {shapes[1]} cannot be broadcast") from None
        writer.fold(result, np.array(common_shape).astype(writer.tensors[result].dtype))
        return
    names = []
    for place, (length,) in zip(places, lengths, strict=True):
        name = writer.stored_name(place)
        if length < most:
            ones = writer.add("ones", np.ones(most - length, writer.tensors[place].dtype))
            name = writer.node("Concat", [ones, name], "Concat", axis=0)
        names.append(name)
    one = writer.add("one", np.ones((), writer.tensors[places[0]].dtype))
    is_one = writer.node("Equal", [names[0], one], "Equal")
    writer.write(result, writer.node("Where", [is_one, names[1], names[0]]))


RULES: Mapping[str, Rule] = {
    "WHERE": _convert_where,
    "UNIQUE": _unique,
    "BROADCAST_ARGS": _broadcast_args,
}
"""Conversion rule of each operator of this module, by its name in the schema."""
