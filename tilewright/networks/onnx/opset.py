"""Convert models of older opsets to opset 17, so that other modules read one form of each operator.

`onnx.version_converter` lacks many operators and fails for some of the others, so the conversions
are implemented here. They cover

- attributes that became inputs (`Slice`, `Clip`, `Pad`, `TopK`, `Split`, `Squeeze`),
- axes whose meaning changed (`Softmax`),
- renamed operators (`Upsample`, `Scatter`), and
- onnxruntime's own normalisations, which its optimiser writes into models of any opset.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import defs, helper, inliner, numpy_helper, shape_inference

from tilewright.core.user_text import printable
from tilewright.networks.onnx.files import is_stub, without_weights
from tilewright.networks.onnx.graph import STANDARD_DOMAINS, Shape, static_shape

OPSET = 17
"""Opset to which models are converted."""
OLDEST_OPSET = 7
"""Oldest opset from which models are converted. In older opsets, an attribute controlled
broadcasting, not the shapes of the operands."""
IR_VERSION = 8
"""Version of the ONNX file format that belongs to opset 17. Before version 4, a model had to list
its constants among its inputs."""
SIMPLIFIED = "SimplifiedLayerNormalization"
"""Name of onnxruntime's operator for root-mean-square normalisation."""
RUNTIME_NORMS = ("LayerNormalization", SIMPLIFIED)
"""Operators that onnxruntime accepts in the standard domain with every opset."""
AXES_AS_INPUT = 18
"""First opset in which the axes of ReduceMean are an input instead of an attribute."""


class _NotRaisedError(Exception):
    """Raised if an operator cannot be converted to the form that it has in opset 17."""


def raise_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """Convert a model to opset 17.

    A newer model keeps its opset, and only onnxruntime's own operators are converted. A model is
    returned unchanged if its opset is below 7 or if an operator cannot be converted.

    Args:
        model: the model.

    Returns:
        A converted copy in which every operator has a name, or `model` itself.
    """
    version = opset_of(model)
    foreign = any(node.op_type == SIMPLIFIED for node in model.graph.node)
    if version < OLDEST_OPSET or (version >= OPSET and not foreign):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(inliner.inline_local_functions(model) if model.functions else model)
    _name_nodes(copy.graph)
    try:
        _Raiser(copy.graph, version, _infer_value_infos(copy)).raise_graph()
    except _NotRaisedError:
        return model
    other_domains = [o for o in copy.opset_import if o.domain not in STANDARD_DOMAINS]
    del copy.opset_import[:]
    copy.opset_import.extend([helper.make_opsetid("", max(version, OPSET)), *other_domains])
    copy.ir_version = max(copy.ir_version, IR_VERSION)
    return copy


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the standard ONNX operators that a model uses."""
    versions = (opset.version for opset in model.opset_import if opset.domain in STANDARD_DOMAINS)
    return max(versions, default=1)


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Give every operator the name that normalisation would give it.

    This has to happen before conversions insert operators, since names contain positions.
    """
    for position, node in enumerate(graph.node):
        node.name = printable(node.name) or f"{node.op_type}_{position}"


def _infer_value_infos(model: onnx.ModelProto) -> Mapping[str, onnx.ValueInfoProto]:
    """Infer the types and shapes of the main graph's tensors, by tensor name."""
    try:
        inferred = shape_inference.infer_shapes(without_weights(model))
    except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise _NotRaisedError from error
    graph = inferred.graph
    return {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}


class _Raiser:
    """Converts the operators of one graph and of its subgraphs to opset 17, in place.

    Args:
        graph: the graph.
        version: opset of the model.
        infos: known types and shapes of tensors by name, including those of surrounding graphs.
    """

    def __init__(
        self, graph: onnx.GraphProto, version: int, infos: Mapping[str, onnx.ValueInfoProto]
    ) -> None:
        self._graph = graph
        self._version = version
        self._infos = {**infos, **{info.name: info for info in graph.value_info}}
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._constants = {
            node.output[0]: node for node in graph.node if node.op_type == "Constant"
        }
        self._read = set(_tensors_read(graph))
        self._made: list[onnx.NodeProto] = []

    def raise_graph(self) -> None:
        """Convert every operator of the graph.

        Raises:
            _NotRaisedError: an operator cannot be converted.
        """
        for node in self._graph.node:
            for attribute in node.attribute:
                # Accessing the field of an absent graph would create it, even if nothing is
                # changed.
                single = [attribute.g] if attribute.HasField("g") else []
                for inner in (*single, *attribute.graphs):
                    _Raiser(inner, self._version, self._infos).raise_graph()
            if node.domain in STANDARD_DOMAINS:
                self._raise(node)
            else:
                self._made.append(node)
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in self._made]
        del self._graph.node[:]
        self._graph.node.extend(kept)

    def _raise(self, node: onnx.NodeProto) -> None:
        if node.op_type not in RUNTIME_NORMS and not _has_schema(node.op_type, self._version):
            # onnxruntime may support the operator only in this opset.
            raise _NotRaisedError(node.op_type)
        until, convert = CONVERSIONS.get(node.op_type, (0, _Raiser._keep))
        if self._version < until:
            convert(self, node)
        else:
            self._keep(node)

    def _keep(self, node: onnx.NodeProto) -> None:
        self._made.append(node)

    # attributes and inputs

    def _attribute(self, node: onnx.NodeProto, name: str, default: Any = None) -> Any:
        """Remove an attribute from an operator and return its value.

        Args:
            node: the operator.
            name: name of the attribute.
            default: value that is returned if the operator does not have the attribute.
        """
        for place, attribute in enumerate(node.attribute):
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                del node.attribute[place]
                return value
        return default

    def _rank(self, name: str) -> int | None:
        if name in self._tensors:
            return len(self._tensors[name].dims)
        kind = self._infos[name].type.tensor_type if name in self._infos else None
        return len(kind.shape.dim) if kind is not None and kind.HasField("shape") else None

    def _shape(self, name: str) -> Shape | None:
        if name in self._tensors:
            return tuple(self._tensors[name].dims)
        return static_shape(self._infos[name]) if name in self._infos else None

    def _dtype(self, *names: str) -> Any:
        """Return the NumPy type of the first tensor whose element type is known.

        Args:
            *names: names of the tensors.

        Raises:
            _NotRaisedError: no element type is known.
        """
        for name in names:
            element_type = 0
            if name in self._tensors:
                element_type = self._tensors[name].data_type
            elif name in self._infos:
                element_type = self._infos[name].type.tensor_type.elem_type
            if element_type:
                return helper.tensor_dtype_to_np_dtype(element_type)
        raise _NotRaisedError(names[0])

    def _value(self, name: str) -> NDArray[Any] | None:
        """Return the values of a constant.

        Args:
            name: name of the tensor.

        Returns:
            The values; None if the tensor is not a constant or has no data.
        """
        tensor = self._tensors.get(name)
        if tensor is None and name in self._constants:
            values = [a.t for a in self._constants[name].attribute if a.name == "value"]
            tensor = values[0] if values else None
        return None if tensor is None or is_stub(tensor) else numpy_helper.to_array(tensor)

    def _constant(self, node: onnx.NodeProto, role: str, values: Any) -> str:
        """Add a constant for the conversion of an operator and return the constant's name.

        Args:
            node: the operator.
            role: suffix of the name.
            values: values of the constant.
        """
        name = f"{node.output[0]}/{role}"
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def _integers(self, node: onnx.NodeProto, role: str, values: Sequence[int]) -> str:
        return self._constant(node, role, np.array(values, np.int64))

    def _drop_unread(self, node: onnx.NodeProto, kept: int = 1) -> None:
        """Remove the last outputs of an operator, which must not be read.

        Args:
            node: the operator.
            kept: number of outputs that remain.

        Raises:
            _NotRaisedError: an output to be removed is read.
        """
        if not self._read.isdisjoint(name for name in node.output[kept:] if name):
            raise _NotRaisedError(node.op_type)
        del node.output[kept:]

    # conversions

    def slice_(self, node: onnx.NodeProto) -> None:
        """Convert Slice from opsets before 10, where the ranges were attributes."""
        for name in ("starts", "ends", "axes"):
            values = self._attribute(node, name)
            if values is not None:
                node.input.append(self._integers(node, name, values))
        self._keep(node)

    def clip(self, node: onnx.NodeProto) -> None:
        """Convert Clip from opsets before 11, where the bounds were attributes."""
        for place, name in enumerate(("min", "max"), 1):
            bound = self._attribute(node, name)
            if bound is None:
                continue
            dtype = self._dtype(node.input[0], node.output[0])
            node.input.extend([""] * (place - len(node.input)))
            node.input.append(self._constant(node, name, np.array(bound, dtype)))
        self._keep(node)

    def pad(self, node: onnx.NodeProto) -> None:
        """Convert Pad from opsets before 11, where the pad sizes and the value were attributes."""
        pads, value = self._attribute(node, "pads"), self._attribute(node, "value", 0.0)
        if pads is None:
            raise _NotRaisedError(node.op_type)
        node.input.append(self._integers(node, "pads", pads))
        if value:
            dtype = self._dtype(node.input[0], node.output[0])
            node.input.append(self._constant(node, "value", np.array(value, dtype)))
        self._keep(node)

    def top_k(self, node: onnx.NodeProto) -> None:
        """Convert TopK from opsets before 10, where the count was an attribute."""
        if len(node.input) == 1:
            node.input.append(self._integers(node, "k", [self._attribute(node, "k")]))
        self._keep(node)

    def dropout(self, node: onnx.NodeProto) -> None:
        """Convert Dropout from opsets before 12.

        The type of its second output, the mask, has changed, so the mask must not be read.
        """
        self._drop_unread(node)
        self._attribute(node, "ratio")
        self._keep(node)

    def batch_norm(self, node: onnx.NodeProto) -> None:
        """Convert BatchNormalization from opsets before 14.

        There, several outputs selected the training mode, which is rejected.
        """
        if any(node.output[1:]) or not self._attribute(node, "spatial", 1):
            raise _NotRaisedError(node.op_type)
        self._keep(node)

    def axes(self, node: onnx.NodeProto) -> None:
        """Convert Squeeze, Unsqueeze and ReduceSum from opsets before 13 (axes as attributes)."""
        axes = self._attribute(node, "axes")
        if axes:
            node.input.append(self._integers(node, "axes", axes))
        self._keep(node)

    def split(self, node: onnx.NodeProto) -> None:
        """Convert Split from opsets before 13, where the sizes of the parts were an attribute."""
        sizes = self._attribute(node, "split")
        if sizes:
            node.input.append(self._integers(node, "sizes", sizes))
        self._keep(node)

    def softmax(self, node: onnx.NodeProto) -> None:
        """Convert Softmax from opsets before 13, which normalised over all axes from `axis` on."""
        axis = self._attribute(node, "axis", 1)
        data, result = node.input[0], node.output[0]
        rank, shape = self._rank(data), self._shape(data)
        last = axis == -1 or (rank is not None and axis % max(rank, 1) == rank - 1)
        if last or (shape is not None and math.prod(shape[axis:][1:]) == 1):
            node.attribute.append(helper.make_attribute("axis", -1 if last else axis))
            self._keep(node)
            return
        shape_name, flat, norm = (f"{result}/{role}" for role in ("shape", "flat", "rows"))
        self._add("Shape", node, [data], shape_name)
        self._add("Flatten", node, [data], flat, axis=axis)
        node.input[0], node.output[0] = flat, norm
        node.attribute.append(helper.make_attribute("axis", -1))
        self._keep(node)
        self._add("Reshape", node, [norm, shape_name], result)

    def upsample(self, node: onnx.NodeProto) -> None:
        """Convert Upsample to Resize with asymmetric coordinates."""
        scales = self._attribute(node, "scales")
        if scales is not None:
            node.input.append(self._constant(node, "scales", np.array(scales, np.float32)))
        if len(node.input) != 2:
            raise _NotRaisedError(node.op_type)
        node.op_type = "Resize"
        self._resize_from_first(node, "floor")

    def resize(self, node: onnx.NodeProto) -> None:
        """Convert Resize from opset 10, which used asymmetric coordinates.

        If nearest-neighbour Resize shrinks an image, onnxruntime rounds coordinates up instead of
        down.
        """
        scales = self._value(node.input[1])
        mode = next((a.s for a in node.attribute if a.name == "mode"), b"nearest")
        nearest = "floor"
        if mode == b"nearest":
            if scales is None or ((scales < 1).any() and (scales > 1).any()):
                raise _NotRaisedError(node.op_type)
            nearest = "ceil" if (scales < 1).any() else "floor"
        self._resize_from_first(node, nearest)

    def _resize_from_first(self, node: onnx.NodeProto, nearest: str) -> None:
        node.input.insert(1, "")
        node.attribute.extend([
            helper.make_attribute("coordinate_transformation_mode", "asymmetric"),
            helper.make_attribute("nearest_mode", nearest),
        ])  # fmt: skip
        self._keep(node)

    def scatter(self, node: onnx.NodeProto) -> None:
        """Rename Scatter to ScatterElements."""
        node.op_type = "ScatterElements"
        self._keep(node)

    def roi_align(self, node: onnx.NodeProto) -> None:
        """Convert RoiAlign from opsets before 16, which measured coordinates from pixel corners."""
        mode = helper.make_attribute("coordinate_transformation_mode", "output_half_pixel")
        node.attribute.append(mode)
        self._keep(node)

    def scan(self, node: onnx.NodeProto) -> None:
        """Reject Scan from opset 8, which iterated over batches."""
        raise _NotRaisedError(node.op_type)

    def simplified_norm(self, node: onnx.NodeProto) -> None:
        """Replace onnxruntime's SimplifiedLayerNormalization by elementary operators.

        It computes data / sqrt(mean(data²) + epsilon) · scale, where the mean is over all axes from
        `axis` on.
        """
        self._drop_unread(node)
        data, scale = node.input
        axis, epsilon = self._attribute(node, "axis", -1), self._attribute(node, "epsilon", 1e-5)
        rank, dtype = self._rank(data), self._dtype(data, node.output[0])
        if rank is None and axis != -1:
            raise _NotRaisedError(node.op_type)
        axes = [-1] if rank is None else list(range(axis % rank, rank))
        base = node.output[0]
        square, mean, shifted, root = (
            f"{base}/{role}" for role in ("square", "mean", "shifted", "root")
        )
        self._add("Mul", node, [data, data], square)
        if self._version < AXES_AS_INPUT:
            self._add("ReduceMean", node, [square], mean, axes=axes)
        else:
            self._add("ReduceMean", node, [square, self._integers(node, "axes", axes)], mean)
        shift = self._constant(node, "epsilon", np.array(epsilon, dtype))
        self._add("Add", node, [mean, shift], shifted)
        self._add("Sqrt", node, [shifted], root)
        self._add("Div", node, [data, root], f"{base}/scaled")
        scaled = helper.make_node("Mul", [f"{base}/scaled", scale], [base], name=node.name)
        self._keep(scaled)

    def _add(
        self, op: str, node: onnx.NodeProto, inputs: Sequence[str], result: str, **attributes: Any
    ) -> None:
        """Append an operator that is part of the conversion of another operator.

        Args:
            op: ONNX type of the new operator.
            node: the operator that is converted.
            inputs: names of the input tensors.
            result: name of the result.
            **attributes: attributes of the new operator.
        """
        name = f"{node.name}/{op}"
        self._made.append(helper.make_node(op, list(inputs), [result], name=name, **attributes))


NEVER = 10**6
"""Number that is larger than every opset. It stands for "in no opset"."""
CONVERSIONS: Mapping[str, tuple[int, Callable[[_Raiser, onnx.NodeProto], None]]] = {
    "BatchNormalization": (14, _Raiser.batch_norm),
    "Clip": (11, _Raiser.clip),
    "Dropout": (12, _Raiser.dropout),
    "Hardmax": (13, _Raiser.softmax),
    "LogSoftmax": (13, _Raiser.softmax),
    "Pad": (11, _Raiser.pad),
    "ReduceSum": (13, _Raiser.axes),
    "Resize": (11, _Raiser.resize),
    "RoiAlign": (16, _Raiser.roi_align),
    "Scan": (9, _Raiser.scan),
    "Scatter": (OPSET, _Raiser.scatter),
    SIMPLIFIED: (NEVER, _Raiser.simplified_norm),
    "Slice": (10, _Raiser.slice_),
    "Softmax": (13, _Raiser.softmax),
    "Split": (13, _Raiser.split),
    "Squeeze": (13, _Raiser.axes),
    "TopK": (10, _Raiser.top_k),
    "Unsqueeze": (13, _Raiser.axes),
    "Upsample": (OPSET, _Raiser.upsample),
}
"""Conversions to opset 17, by operator type. Each entry consists of the first opset in which the
operator has the same form as in opset 17, and the function that converts the operator from older
opsets."""


def _has_schema(op_type: str, version: int) -> bool:
    try:
        defs.get_schema(op_type, version, "")
    except defs.SchemaError:
        return False
    return True


def _tensors_read(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names of the tensors that operators and graph outputs read, including subgraphs."""
    yield from (info.name for info in graph.output)
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors_read(inner)
