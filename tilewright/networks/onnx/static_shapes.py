"""Make all shapes of a model static.

The user gives the sizes of dynamic input dimensions. All other shapes are inferred, and operators
that compute shapes are evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, shape_inference

from tilewright.core.lazy_module import lazy_module
from tilewright.networks.errors import DynamicShapeError, ModelFileError, last_line
from tilewright.networks.onnx.files import is_stub, weights_as_inputs
from tilewright.networks.onnx.graph import (
    STANDARD_DOMAINS,
    Absorbed,
    NormalGraph,
    Shape,
    data_inputs,
    refuse_absurd,
    static_shape,
)
from tilewright.networks.onnx.size_limits import infer_checked
from tilewright.networks.onnxruntime_options import failures, quiet_options
from tilewright.targets.layer import NamedShape

reference = lazy_module("onnx.reference")

KINDS = {
    "sequence_type": "a sequence", "optional_type": "optional", "map_type": "a map",
    "sparse_tensor_type": "sparse",
}  # fmt: skip
"""Descriptions for error messages of the ONNX types that are not dense tensors."""
REGION_ONLY = ("sequence_type", "optional_type")
"""Types of inputs that onnxruntime supports but compiled code does not."""
FOLD_ELEMENTS = 4096  # larger constants do not belong to shape arithmetic
SHAPE_ARITHMETIC = frozenset(
    (
        "Shape", "Size", "Gather", "Concat", "Unsqueeze", "Squeeze", "Slice", "Cast", "Add", "Sub",
        "Mul", "Div", "Mod", "Range", "Reshape", "ReduceProd", "Floor", "Ceil", "Min", "Max",
        "Equal", "Where", "Split", "ConstantOfShape",
    )
)  # fmt: skip
"""Operators with which exporters of models compute shapes."""


def fix_inputs(normal: NormalGraph, input_shapes: Mapping[str, Sequence[int]]) -> None:
    """Give the inputs of a graph static shapes, in place.

    Args:
        normal: the graph.
        input_shapes: shape for each dynamic input, by input name.

    Raises:
        DynamicShapeError: an input remains dynamic, or a given shape fits no input.
        ModelFileError: an input is not a tensor, or has too many elements.
    """
    inputs = {info.name: info for info in data_inputs(normal.model)}
    for name, shape in input_shapes.items():
        if name not in inputs:
            known = ", ".join(f"'{known}'" for known in inputs)
            raise DynamicShapeError(f"the model has no input '{name}'; its inputs are {known}")
        _set_shape(inputs[name], tuple(shape))
    for name, info in inputs.items():
        type_name = info.type.WhichOneof("value")
        if type_name in REGION_ONLY:
            continue
        if type_name != "tensor_type":
            raise ModelFileError(
                f"the input '{name}' is {KINDS.get(str(type_name), 'of no type')}, not a "
                "tensor; export the model so that all its inputs are tensors"
            )
        static = static_shape(info)
        if static is None:
            raise DynamicShapeError(
                f"the input '{name}' has the dynamic shape {_text(info)}; set its sizes, for "
                f"example with --input-shape {name}={_example(info)}"
            )
        refuse_absurd(name, static)
    kept = list(inputs.values())
    del normal.graph.input[:]
    normal.graph.input.extend(kept)


def state_defaults(model: onnx.ModelProto) -> None:
    """Set attributes explicitly where ONNX's shape inference uses the wrong default, in place.

    STFT is one-sided by default in the standard and in onnxruntime, but not in shape inference.
    """
    for node in model.graph.node:
        explicit = {attribute.name for attribute in node.attribute}
        if node.op_type == "STFT" and "onesided" not in explicit:
            node.attribute.append(helper.make_attribute("onesided", 1))


def fixed_inputs(
    model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]]
) -> onnx.ModelProto:
    """Return a copy of a model with static input shapes and with the shapes inferred from them.

    Args:
        model: the model.
        input_shapes: shape for each dynamic input, by input name.

    Raises:
        DynamicShapeError: an input remains dynamic, or a given shape fits no input.
        ModelFileError: the model contradicts itself or would exhaust memory.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    state_defaults(copy)
    normal = NormalGraph(copy, ())
    fix_inputs(normal, input_shapes)
    infer_shapes(normal)
    return normal.model


def infer_shapes(normal: NormalGraph) -> None:
    """Infer all shapes of a graph, in place.

    Raises:
        ModelFileError: the graph contradicts itself according to both ONNX and onnxruntime, or its
            results would take too much memory.
    """
    try:
        model = infer_checked(normal.model)
    except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
        if complete_shapes(normal):
            return
        reason = last_line(error)
        raise ModelFileError(f"the model contradicts itself: {reason}; export it again") from error
    for info in model.graph.value_info:
        refuse_absurd(info.name, static_shape(info) or ())
    normal.model = model


def fold_shape_arithmetic(normal: NormalGraph) -> bool:
    """Evaluate the operators of a graph that compute shapes, in place.

    This is possible after the input shapes have become static.

    Args:
        normal: the graph.

    Returns:
        True if an operator was evaluated. Inferring shapes again may then find more static shapes.
    """
    shapes, tensors = normal.shapes(), normal.tensors()
    folded = set()
    for node in normal.graph.node:
        if node.op_type not in SHAPE_ARITHMETIC or node.domain not in STANDARD_DOMAINS:
            continue
        values = _shape_of(node, shapes) or _evaluate(node, shapes, tensors, normal.model)
        if values is None:
            continue
        for name, value in zip(node.output, values, strict=True):
            tensors[name] = numpy_helper.from_array(value, name)
            normal.add_tensor(tensors[name])
        folded.add(node.name)
    if folded:
        normal.remove(folded, Absorbed(None, "shape arithmetic, computed before the model runs"))
    return bool(folded)


def _shape_of(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> list[NDArray[Any]] | None:
    if node.op_type not in ("Shape", "Size") or node.input[0] not in shapes:
        return None
    shape = np.array(shapes[node.input[0]], np.int64)
    if node.op_type == "Size":
        return [np.asarray(shape.prod())]
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    return [shape[bounds.get("start", 0) : bounds.get("end", len(shape))]]


def _evaluate(
    node: onnx.NodeProto,
    shapes: Mapping[str, Shape],
    tensors: Mapping[str, onnx.TensorProto],
    model: onnx.ModelProto,
) -> list[NDArray[Any]] | None:
    inputs = [tensors.get(name) for name in node.input if name]
    small = [t for t in inputs if t is not None and not is_stub(t) and _is_small(tuple(t.dims))]
    outputs_small = all(name in shapes and _is_small(shapes[name]) for name in node.output)
    if len(small) != len(inputs) or not inputs or not outputs_small:
        return None
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "one", [], outputs, small)
    one = helper.make_model(graph, opset_imports=model.opset_import, ir_version=10)
    return [np.asarray(value) for value in reference.ReferenceEvaluator(one).run(None, {})]


def _is_small(shape: Shape) -> bool:
    return math.prod(shape) <= FOLD_ELEMENTS


def _set_shape(info: onnx.ValueInfoProto, shape: Shape) -> None:
    declared = info.type.tensor_type.shape.dim
    ranks_differ = info.type.tensor_type.HasField("shape") and len(declared) != len(shape)
    sizes_differ = any(
        dim.dim_value > 0 and dim.dim_value != size
        for dim, size in zip(declared, shape, strict=False)
    )
    if ranks_differ or sizes_differ or any(size < 1 for size in shape):
        raise DynamicShapeError(
            f"the shape {'x'.join(map(str, shape))} does not fit the input '{info.name}', "
            f"whose shape is {_text(info)}; give one positive size for each dimension"
        )
    element = info.type.tensor_type.elem_type
    info.CopyFrom(helper.make_tensor_value_info(info.name, element, shape))


def _text(info: onnx.ValueInfoProto) -> str:
    kind = info.type.tensor_type
    if not kind.HasField("shape"):
        return "of unknown rank"
    sizes = (str(d.dim_value) if d.HasField("dim_value") else "?" for d in kind.shape.dim)
    named = (d.dim_param or size for d, size in zip(kind.shape.dim, sizes, strict=True))
    return f"({', '.join(named)})"


def _example(info: onnx.ValueInfoProto) -> str:
    dims = info.type.tensor_type.shape.dim
    if not dims:
        return "1x3x224x224"
    sizes = [dim.dim_value or (1 if axis == 0 else 224) for axis, dim in enumerate(dims)]
    return "x".join(map(str, sizes))


onnxruntime = lazy_module("onnxruntime")


def complete_shapes(normal: NormalGraph) -> bool:
    """Let onnxruntime infer the shapes and types that are still missing in a graph, in place.

    A shape that remains unknown depends on values of tensors at run time.

    Args:
        normal: the graph.

    Returns:
        True if onnxruntime accepts the graph.
    """
    shapes, types = normal.shapes(), normal.types()
    missing = [
        name
        for node in normal.graph.node
        for name in node.output
        if name and (name not in shapes or name not in types)
    ]
    if not missing:
        return True
    exposed = weights_as_inputs(normal.model)
    outputs = {info.name for info in exposed.graph.output}
    # onnxruntime only reports the types of outputs, so that the missing tensors become outputs.
    exposed.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in missing if name not in outputs
    )
    options = quiet_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            exposed.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except failures():  # the reason is reported when the whole model is checked
        return False
    known = {info.name: info for info in (*normal.graph.value_info, *normal.graph.output)}
    for output in session.get_outputs():
        if output.name not in missing or not output.type.startswith("tensor("):
            continue
        element_type = _element_type(output.type.removeprefix("tensor(").removesuffix(")"))
        info = helper.make_tensor_value_info(output.name, element_type, list(output.shape))
        if output.name in known:
            known[output.name].CopyFrom(info)
        else:
            normal.graph.value_info.append(info)
    return True


def _element_type(text: str) -> int:
    """Convert onnxruntime's name of an element type, such as "float", to ONNX's enumeration."""
    names = {"float": "FLOAT", "double": "DOUBLE", "bool": "BOOL", "string": "STRING"}
    return int(onnx.TensorProto.DataType.Value(names.get(text, text.upper())))


MOST_COMBINATIONS = 16
"""Maximum number of combinations of sizes. The model is compiled for each combination."""


@dataclass(frozen=True)
class SizedShapes:
    """Sizes of all dynamic dimensions, with the input shapes that result from them.

    Attributes:
        sizes: size by dimension name.
        shapes: shape of each input that has dynamic dimensions, by input name.
    """

    sizes: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]


def named_shapes(model: onnx.ModelProto) -> dict[str, NamedShape]:
    """Return the shape of each input, with names for dynamic axes.

    A dynamic axis without a name is called `<input>.<axis>`.
    """
    return {
        info.name: tuple(
            d.dim_value if d.HasField("dim_value") else d.dim_param or f"{info.name}.{axis}"
            for axis, d in enumerate(info.type.tensor_type.shape.dim)
        )
        for info in data_inputs(model)
    }


def shapes_at(
    inputs: Mapping[str, NamedShape], sizes: Mapping[str, Sequence[int]]
) -> list[SizedShapes]:
    """Return every combination of sizes with the resulting input shapes.

    Args:
        inputs: shape of each input, with names for dynamic axes.
        sizes: the sizes to combine, by dimension name.

    Returns:
        The combinations in ascending order.

    Raises:
        DynamicShapeError: no input has the dimension, a size is missing or below 1, or there are
            too many combinations.
    """
    known = {axis: None for shape in inputs.values() for axis in shape if isinstance(axis, str)}
    for name, listed in sizes.items():
        if name not in known:
            dynamic = ", ".join(f"'{axis}'" for axis in known) or "none"
            raise DynamicShapeError(
                f"the model has no dynamic dimension '{name}'; its dynamic dimensions: {dynamic}"
            )
        if not listed or min(listed) < 1:
            raise DynamicShapeError(f"--sizes {name}: sizes must be integers from 1")
    grid = list(product(*(sorted(set(listed)) for listed in sizes.values())))
    if len(grid) > MOST_COMBINATIONS:
        raise DynamicShapeError(
            f"the sizes have {len(grid)} combinations, each of which is compiled; give sizes "
            f"with at most {MOST_COMBINATIONS} combinations"
        )
    return [_shapes(inputs, dict(zip(sizes, chosen, strict=True))) for chosen in grid]


def _shapes(inputs: Mapping[str, NamedShape], chosen: Mapping[str, int]) -> SizedShapes:
    shapes = {}
    for name, shape in inputs.items():
        if any(isinstance(axis, str) for axis in shape):
            sizes = [chosen.get(axis, 0) if isinstance(axis, str) else axis for axis in shape]
            missing = [axis for axis, size in zip(shape, sizes, strict=True) if not size]
            if missing:
                raise DynamicShapeError(
                    f"the dimension '{missing[0]}' of the input '{name}' is dynamic, too; "
                    f"give its size, for example: --sizes {missing[0]}=1"
                )
            shapes[name] = tuple(sizes)
    return SizedShapes(chosen, shapes)
