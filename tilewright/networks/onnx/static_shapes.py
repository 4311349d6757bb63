"""Makes every shape static: gives dynamic dimensions their sizes, infers the rest, and evaluates
arithmetic on shapes.
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
REGION_ONLY = ("sequence_type", "optional_type")
"""Inputs that onnxruntime takes, and no compiled code."""
FOLD_ELEMENTS = 4096  # larger constants are no shape arithmetic
SHAPE_ARITHMETIC = frozenset(
    (
        "Shape", "Size", "Gather", "Concat", "Unsqueeze", "Squeeze", "Slice", "Cast", "Add", "Sub",
        "Mul", "Div", "Mod", "Range", "Reshape", "ReduceProd", "Floor", "Ceil", "Min", "Max",
        "Equal", "Where", "Split", "ConstantOfShape",
    )
)  # fmt: skip


def fix_inputs(normal: NormalGraph, input_shapes: Mapping[str, Sequence[int]]) -> None:
    """Give the inputs the shapes asked for. Raises `DynamicShapeError` where one stays dynamic or a
    shape fits no input, `ModelFileError` where one is no tensor or would exhaust memory."""
    inputs = {info.name: info for info in data_inputs(normal.model)}
    for name, shape in input_shapes.items():
        if name not in inputs:
            known = ", ".join(f"'{known}'" for known in inputs)
            raise DynamicShapeError(f"the model has no input '{name}'; its inputs are {known}")
        _set_shape(inputs[name], tuple(shape))
    for name, info in inputs.items():
        kind = info.type.WhichOneof("value")
        if kind in REGION_ONLY:
            continue
        if kind != "tensor_type":
            raise ModelFileError(
                f"input '{name}' is {KINDS.get(str(kind), 'of no type')}, not a tensor; "
                "export the model with tensors only"
            )
        static = static_shape(info)
        if static is None:
            raise DynamicShapeError(
                f"input '{name}' has the dynamic shape {_text(info)}; give its sizes, for example "
                f"--input-shape {name}={_example(info)}"
            )
        refuse_absurd(name, static)
    kept = list(inputs.values())
    del normal.graph.input[:]
    normal.graph.input.extend(kept)


def state_defaults(model: onnx.ModelProto) -> None:
    """State attributes, in place, for which ONNX's shape inference takes another default than the
    standard and onnxruntime: STFT is one-sided if nothing else is said."""
    for node in model.graph.node:
        said = {attribute.name for attribute in node.attribute}
        if node.op_type == "STFT" and "onesided" not in said:
            node.attribute.append(helper.make_attribute("onesided", 1))


def fixed_inputs(
    model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]]
) -> onnx.ModelProto:
    """A copy whose inputs have the shapes asked for; its outputs as far as these decide them.
    Raises as `fix_inputs`."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    state_defaults(copy)
    normal = NormalGraph(copy, ())
    fix_inputs(normal, input_shapes)
    infer_shapes(normal)
    return normal.model


def infer_shapes(normal: NormalGraph) -> None:
    """Infer every shape that follows. Raises `ModelFileError` where the graph is contradictory, by
    ONNX's inference and by onnxruntime's, or its results would take too much memory."""
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
    """Evaluate what exporters compute about shapes, now that shapes are static. Return whether
    there was anything: more shapes may be known then."""
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
        normal.remove(folded, Absorbed(None, "shape arithmetic, known before the model runs"))
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
            f"input '{info.name}' has the shape {_text(info)}, which "
            f"{'x'.join(map(str, shape))} does not fit; give one positive size for each dimension"
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
    """Let onnxruntime infer the shapes and types that are missing in a graph, in place. What it
    does not know either is only known when the model runs. Return whether onnxruntime takes the
    graph."""
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
    own = {info.name for info in exposed.graph.output}
    exposed.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in missing if name not in own
    )
    options = quiet_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            exposed.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except failures():  # it names the reason when it gets the whole model
        return False
    known = {info.name: info for info in (*normal.graph.value_info, *normal.graph.output)}
    for output in session.get_outputs():
        if output.name not in missing or not output.type.startswith("tensor("):
            continue
        kind = _element_type(output.type.removeprefix("tensor(").removesuffix(")"))
        info = helper.make_tensor_value_info(output.name, kind, list(output.shape))
        if output.name in known:
            known[output.name].CopyFrom(info)
        else:
            normal.graph.value_info.append(info)
    return True


def _element_type(text: str) -> int:
    """Return the ONNX type that onnxruntime calls `text`."""
    names = {"float": "FLOAT", "double": "DOUBLE", "bool": "BOOL", "string": "STRING"}
    return int(onnx.TensorProto.DataType.Value(names.get(text, text.upper())))


MOST_COMBINATIONS = 16


@dataclass(frozen=True)
class SizedShapes:
    """The size of each dynamic dimension, and the shapes of the inputs that have any."""

    sizes: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]


def named_shapes(model: onnx.ModelProto) -> dict[str, NamedShape]:
    """The shape of each input; a dynamic axis without a name is called INPUT.AXIS."""
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
    """Every combination of the sizes, ascending, with the shapes that inputs have there. Raises
    `DynamicShapeError` for a dimension that no input has, and too many combinations."""
    known = {axis: None for shape in inputs.values() for axis in shape if isinstance(axis, str)}
    for name, listed in sizes.items():
        if name not in known:
            dynamic = ", ".join(f"'{each}'" for each in known) or "none"
            raise DynamicShapeError(
                f"the model has no dynamic dimension '{name}'; its dynamic dimensions: {dynamic}"
            )
        if not listed or min(listed) < 1:
            raise DynamicShapeError(f"--sizes {name}: sizes are whole numbers from 1")
    grid = list(product(*(sorted(set(listed)) for listed in sizes.values())))
    if len(grid) > MOST_COMBINATIONS:
        raise DynamicShapeError(
            f"the sizes make {len(grid)} combinations, and each is compiled; declare fewer, "
            f"{MOST_COMBINATIONS} at most together"
        )
    return [_shapes(inputs, dict(zip(sizes, chosen, strict=True))) for chosen in grid]


def _shapes(inputs: Mapping[str, NamedShape], chosen: Mapping[str, int]) -> SizedShapes:
    found = {}
    for name, shape in inputs.items():
        if any(isinstance(axis, str) for axis in shape):
            sizes = [chosen.get(axis, 0) if isinstance(axis, str) else axis for axis in shape]
            left = [axis for axis, size in zip(shape, sizes, strict=True) if not size]
            if left:
                raise DynamicShapeError(
                    f"dimension '{left[0]}' of input '{name}' is dynamic, too; give its size: "
                    f"--sizes {left[0]}=1"
                )
            found[name] = tuple(sizes)
    return SizedShapes(chosen, found)
