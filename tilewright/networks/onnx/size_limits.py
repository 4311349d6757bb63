"""Estimate the size of a model's tensors from shapes, before any of the tensors is computed.

A model file of 300 bytes can request a constant of any size (`Range`, `ConstantOfShape`, `Expand`,
…), and constant folding would compute it. The sizes of all results are therefore inferred first.
Where ONNX's shape inference cannot follow the shape arithmetic of a model, this module evaluates
the arithmetic, as long as the tensors are small.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, inliner, numpy_helper, shape_inference

from tilewright.core.lazy_module import lazy_module
from tilewright.networks.errors import ModelFileError
from tilewright.networks.onnx.files import COMPUTABLE, is_stub
from tilewright.networks.onnx.graph import STANDARD_DOMAINS, Shape, static_shape

reference = lazy_module("onnx.reference")

COMPUTED_SHARE = 1 / 4
"""Maximum fraction of the machine's memory for results that are needed at the same time. A build
holds such results up to three times: when it runs the network, when it runs the reference, and when
it compares the two."""
CONSTANT_SHARE = 1 / 16
"""Maximum fraction of the machine's memory for results that do not depend on an input. They are
computed at build time, which needs several copies, and are stored in the artifact."""
MOST_GROWTH = 8
"""Factor by which results that do not depend on an input may always exceed the model's own tensors
in total size. They may be larger because quantised weights become float32 and are copied to other
layouts or types."""
SMALL_ELEMENTS = 4096
"""Maximum number of elements of a tensor whose values are computed here. Larger tensors do not
belong to shape arithmetic."""
MOST_FOLLOWED = 1 << 16
"""Maximum length of a model's vectors up to which ONNX's shape inference is asked to track values.
For each unknown element of a vector, it stores a message."""
_UNBOUNDED = frozenset(
    ("Einsum", "Loop", "Scan", "If", "SequenceMap", "RegexFullMatch", "RandomNormal",
     "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
)  # fmt: skip
"""Operators that are not evaluated here, because they may take very long even on small tensors, or
because their results are random."""
_CGROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def machine_memory_bytes() -> int:
    """Return the memory in bytes that this process may use.

    This is the machine's memory, or the limit of the container if that is lower.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _CGROUP_LIMITS:
        try:
            memory = min(memory, int(Path("/sys/fs/cgroup", name).read_text()))
        except (OSError, ValueError):  # there is no limit, or it is "max"
            continue
    return memory


def check_sizes(model: onnx.ModelProto) -> None:
    """Check that the results of a model fit into memory, as far as their shapes are known.

    Args:
        model: the model.

    Raises:
        ModelFileError: the results that are needed at the same time, or all results that depend on
            no input, take more than their fraction of the machine's memory. The message names the
            operator.
    """
    with suppress(shape_inference.InferenceError, RuntimeError, ValueError):
        infer_checked(_skeleton(model))  # a contradiction is reported later, with its own message


def infer_checked(model: onnx.ModelProto) -> onnx.ModelProto:
    """Infer the shapes of a model, and check its sizes before values are propagated.

    Functions of the model are inlined.

    Args:
        model: the model.

    Returns:
        A copy with the inferred shapes and element types.

    Raises:
        ModelFileError: the results take too much memory, as in `check_sizes`. Further errors are
            those of `onnx.shape_inference.infer_shapes`.
    """
    memory = machine_memory_bytes()
    estimate = _Estimate(model, memory)
    inferred = infer_types(model)
    estimate.check_graph(inferred.graph, {})
    # To propagate values, ONNX's shape inference stores a message for each unknown element of a
    # vector.
    follows_values = estimate.longest_vector <= MOST_FOLLOWED
    if follows_values:
        inferred = infer_types(model, follow_values=True)
        _Estimate(model, memory).check_graph(inferred.graph, {})
    return inferred


def infer_types(model: onnx.ModelProto, *, follow_values: bool = False) -> onnx.ModelProto:
    """Return a copy of a model with the shapes and element types that ONNX infers.

    During inference, ONNX copies a model twice. To avoid copying large weights, it gets the model
    without their data.

    Args:
        model: the model. Functions are inlined.
        follow_values: also track the values of small integer tensors.

    Raises the errors of `onnx.shape_inference.infer_shapes`.
    """
    inferred = shape_inference.infer_shapes(_skeleton(model), data_prop=follow_values)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    source, graph = inferred.graph, copy.graph
    names = {info.name for info in graph.input}
    for field in (graph.node, graph.input, graph.output, graph.value_info):
        del field[:]
    graph.node.extend(source.node)
    graph.input.extend(info for info in source.input if info.name in names)
    graph.output.extend(source.output)
    graph.value_info.extend(source.value_info)
    return copy


def _skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a small copy of a model that is sufficient for shape inference.

    Local functions are inlined, and large constants are replaced by inputs of the same shape and
    type.
    """
    if model.functions:
        model = inliner.inline_local_functions(model)
    copy = onnx.ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    source, graph = model.graph, copy.graph
    graph.name = source.name
    graph.node.extend(source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    graph.value_info.extend(source.value_info)
    graph.sparse_initializer.extend(source.sparse_initializer)
    listed = {info.name for info in source.input}
    for tensor in source.initializer:
        if not is_stub(tensor) and math.prod(tensor.dims) <= SMALL_ELEMENTS:
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    return copy


class _Estimate:
    """Estimates the memory that the results of a model need.

    For this purpose, it tracks the known shapes, element types and small values of tensors.

    Attributes:
        longest_vector: number of elements of the longest vector that was seen.
    """

    def __init__(self, model: onnx.ModelProto, memory_bytes: int) -> None:
        self._opsets = model.opset_import
        self._memory = memory_bytes
        self._constant_bytes = 0
        stored = sum(_describe_stored(tensor).bytes for tensor in model.graph.initializer)
        self._most_constant = max(int(memory_bytes * CONSTANT_SHARE), MOST_GROWTH * stored)
        self.longest_vector = 0

    def check_graph(self, graph: onnx.GraphProto, outer: Mapping[str, _Known]) -> None:
        """Check that the results of a graph and of its subgraphs fit into memory.

        Args:
            graph: the graph.
            outer: known properties of the tensors of the surrounding graph, by name.

        Raises:
            ModelFileError: the results take too much memory.
        """
        known = {name: tensor.from_outside() for name, tensor in outer.items()}
        known.update(_declared_tensors(graph))
        for tensor in graph.initializer:
            known[tensor.name] = _describe_stored(tensor)
        asked = _asked_values(graph, known)
        readers = Counter(name for node in graph.node for name in node.input)
        readers.update(output.name for output in graph.output)
        live: dict[str, int] = {}
        for node in graph.node:
            if (tensor := _constant_of(node)) is not None:
                known[node.output[0]] = _describe_stored(tensor)
                continue
            for name, result in self._results(node, known, asked).items():
                known[name] = result
                live[name] = result.bytes
                if result.constant:
                    self._constant_bytes += result.bytes
            self._refuse(node, known, sum(live.values()))
            shapes = [known[name].shape for name in (*node.input, *node.output) if name in known]
            lengths = [shape[0] for shape in shapes if shape is not None and len(shape) == 1]
            self.longest_vector = max(self.longest_vector, *lengths, 0)
            for inner in _graphs(node):
                self.check_graph(inner, known)
            for name in (*node.input, *node.output):
                readers[name] -= name in node.input
                if readers[name] <= 0:
                    live.pop(name, None)

    def _refuse(self, node: onnx.NodeProto, known: Mapping[str, _Known], needed: int) -> None:
        most = int(self._memory * COMPUTED_SHARE)
        if needed <= most and self._constant_bytes <= self._most_constant:
            return
        largest = max(
            (known[name] for name in node.output if name in known),
            key=lambda result: result.bytes,
            default=_NOTHING,
        )
        shape = "×".join(map(str, largest.shape or ())) or "scalar"
        constant = self._constant_bytes > self._most_constant
        total, share = (
            (self._constant_bytes, CONSTANT_SHARE) if constant else (needed, COMPUTED_SHARE)
        )
        what = (
            "results that do not depend on any input"
            if constant
            else "results that are needed at the same time"
        )
        raise ModelFileError(
            f"the operator '{node.name or node.output[0]}' ({node.op_type}) has a result of "
            f"shape {shape}, {_gigabytes(largest.bytes)}: the model's {what} take "
            f"{_gigabytes(total)}, more than 1/{round(1 / share)} of this machine's "
            f"{_gigabytes(self._memory)} of memory; use smaller inputs or a smaller model"
        )

    def _results(
        self, node: onnx.NodeProto, known: Mapping[str, _Known], asked: Container[str]
    ) -> dict[str, _Known]:
        """Return known properties of an operator's results: shapes, types and small values.

        Args:
            node: the operator.
            known: known properties of tensors, by name.
            asked: names of the tensors whose values have to be computed, if that is possible.

        Returns:
            Properties by name of the result. A result whose shape depends on unknown values counts
            as 0 bytes.
        """
        inputs = [known.get(name, _NOTHING) for name in node.input if name]
        measured = node.op_type in ("Shape", "Size") and all(i.shape is not None for i in inputs)
        constant = measured or all(tensor.constant for tensor in inputs)
        constant = constant and not any(True for _ in _graphs(node))
        declared = {name: known.get(name, _NOTHING) for name in node.output if name}
        unknown = any(tensor.shape is None for tensor in declared.values())
        if unknown and any(tensor.computed for tensor in inputs):
            declared |= self._infer_shapes(node, known)
        values = None
        if constant and any(name in asked for name in node.output):
            values = self._evaluate_node(node, known, declared)
        return {
            name: _Known(tensor.shape, tensor.data_type, None, constant=constant)
            if values is None
            else _Known(
                values[name].shape, tensor.data_type, values[name], constant=True, computed=True
            )
            for name, tensor in declared.items()
        }

    def _infer_shapes(self, node: onnx.NodeProto, known: Mapping[str, _Known]) -> dict[str, _Known]:
        """Infer the shapes and types of an operator's results.

        Args:
            node: the operator.
            known: known properties of tensors, by name. The values of small inputs are used.

        Returns:
            Known properties of the results, by name; empty if the inference fails.
        """
        single_node_model = self._model_of(node, known)
        try:
            inferred = shape_inference.infer_shapes(single_node_model)
        except (shape_inference.InferenceError, RuntimeError, ValueError):
            return {}
        return {
            name: tensor
            for name, tensor in _declared_tensors(inferred.graph)
            if name in node.output
        }

    def _evaluate_node(
        self, node: onnx.NodeProto, known: Mapping[str, _Known], results: Mapping[str, _Known]
    ) -> dict[str, NDArray[Any]] | None:
        """Compute the values of an operator's results with ONNX's reference evaluator.

        Args:
            node: the operator.
            known: known properties of tensors, by name.
            results: known shapes and types of the results, by name.

        Returns:
            The values by name. None if an input or result is large or unknown, or if the evaluator
            fails.
        """
        if node.domain not in STANDARD_DOMAINS or node.op_type in _UNBOUNDED:
            return None
        if node.op_type in ("Shape", "Size"):
            return self._measure_shape(node, known[node.input[0]])
        if not all(known[name].values is not None for name in node.input if name):
            return None
        if not all(array.is_small for array in results.values()):
            return None
        single_node_model = self._model_of(node, known)
        outputs = [name for name in node.output if name]
        single_node_model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        try:
            with np.errstate(all="ignore"):
                values = reference.ReferenceEvaluator(single_node_model).run(outputs, {})
        except Exception:  # any failure of an unusual operator: its size is estimated instead
            return None
        arrays = dict(zip(outputs, map(np.asarray, values), strict=True))
        small = all(
            array.size <= SMALL_ELEMENTS and array.dtype != object for array in arrays.values()
        )
        return arrays if small else None

    def _measure_shape(self, node: onnx.NodeProto, tensor: _Known) -> dict[str, NDArray[Any]]:
        """Return the result of a Shape or Size operator, computed from the shape of its input.

        Args:
            node: the operator.
            tensor: known properties of its input.

        Returns:
            The result, an int64 array, by name.
        """
        shape = np.array(tensor.shape, np.int64)
        bounds = {attribute.name: attribute.i for attribute in node.attribute}
        kept = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
        size = np.array(math.prod(tensor.shape or ()) % (1 << 63), np.int64)
        return {node.output[0]: kept if node.op_type == "Shape" else size}

    def _model_of(self, node: onnx.NodeProto, known: Mapping[str, _Known]) -> onnx.ModelProto:
        """Return a model that consists of a single operator, for shape inference.

        Args:
            node: the operator.
            known: known properties of tensors, by name. Inputs with known values become constants.
        """
        tensors, inputs = [], []
        for name in dict.fromkeys(filter(None, node.input)):
            tensor = known.get(name, _NOTHING)
            if tensor.values is not None:
                tensors.append(numpy_helper.from_array(tensor.values, name))
            elif tensor.data_type:
                inputs.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.shape))
        graph = helper.make_graph([node], "one", inputs, [], tensors)
        return helper.make_model(graph, opset_imports=self._opsets, ir_version=10)


class _Known:
    """Known properties of a tensor.

    Attributes:
        shape: the shape, None if it is unknown.
        data_type: ONNX element type, 0 if it is unknown.
        values: the values if they are known and few, otherwise None.
        constant: whether the tensor depends on no input.
        computed: whether this module computed the values. ONNX's shape inference does not know
            them.
    """

    def __init__(
        self, shape: Shape | None, data_type: int, values: NDArray[Any] | None = None, *,
        constant: bool = False, computed: bool = False,
    ) -> None:  # fmt: skip
        self.shape, self.data_type, self.constant = shape, data_type, constant
        self.computed = computed
        small = values is not None and values.size <= SMALL_ELEMENTS
        self.values = values if small and data_type != TensorProto.STRING else None

    def from_outside(self) -> _Known:
        """Return the properties of this tensor for use inside a subgraph.

        ONNX's shape inference does not track the values of outer tensors there, so the values are
        marked as computed by this module.
        """
        if self.values is None:
            return self
        return _Known(self.shape, self.data_type, self.values, constant=True, computed=True)

    @property
    def is_small(self) -> bool:
        """True if the shape is known and has few elements."""
        return self.shape is not None and math.prod(self.shape) <= SMALL_ELEMENTS

    @property
    def bytes(self) -> int:
        """Size of the tensor in bytes; 0 if the shape is unknown."""
        if self.shape is None:
            return 0
        try:
            size = helper.tensor_dtype_to_np_dtype(self.data_type).itemsize
        except (KeyError, ValueError, TypeError):
            size = 4
        return math.prod(self.shape) * max(1, int(size))


_NOTHING = _Known(None, 0)


def _describe_stored(tensor: onnx.TensorProto) -> _Known:
    """Return the known properties of a constant that is stored in the model file."""
    shape = tuple(tensor.dims)
    small = not is_stub(tensor) and math.prod(shape) <= SMALL_ELEMENTS
    small = small and tensor.data_type in COMPUTABLE
    values = numpy_helper.to_array(tensor) if small else None
    return _Known(shape, tensor.data_type, values, constant=True)


def _constant_of(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the tensor of a Constant operator, or None for other operators."""
    if node.op_type != "Constant" or node.domain not in STANDARD_DOMAINS:
        return None
    return next((a.t for a in node.attribute if a.name == "value"), None)


def _asked_values(graph: onnx.GraphProto, known: Mapping[str, _Known]) -> set[str]:
    """Return the names of the tensors whose values are needed to infer the unknown shapes.

    Args:
        graph: the graph.
        known: known properties of tensors, by name.
    """
    asked: set[str] = set()
    for node in reversed(graph.node):
        unknown = any(known.get(name, _NOTHING).shape is None for name in node.output if name)
        if unknown or not asked.isdisjoint(node.output):
            asked.update(node.input)
    return asked


def _declared_tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, _Known]]:
    """Yield the tensors whose element types the graph states.

    Args:
        graph: the graph.

    Yields:
        The name of a tensor, and its known shape and type.
    """
    for info in (*graph.value_info, *graph.input, *graph.output):
        if info.type.WhichOneof("value") == "tensor_type":
            yield info.name, _Known(static_shape(info), info.type.tensor_type.elem_type)


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
