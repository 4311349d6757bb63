"""Read and write ONNX files, with or without the data of their weights.

A model file may be untrusted, so everything in it is checked.

A tensor without data is called a stub. Workload extraction needs only shapes, so the weights of
convolutions and matrix products are replaced by stubs before any other step. The cost of inspecting
a model then depends only on its graph.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from heapq import heapify, heappop, heappush
from pathlib import Path, PurePosixPath

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from tilewright.core.files import write_atomically
from tilewright.networks.errors import ModelFileError

MAX_FILE_BYTES = 2**31 - 1  # protobuf's own limit
MAX_TENSOR_ELEMENTS = 2**30
"""Maximum number of elements of a tensor in a model file."""
MAX_NODES = 100_000
"""Maximum number of operators in a model file."""
SMALL_TENSOR_BYTES = 64 * 1024  # external tensors up to this size are read with the model


def read_model_file(path: Path) -> onnx.ModelProto:
    """Parse an ONNX file.

    External tensors larger than 64 KiB have no data until `load_weights` reads them.

    Args:
        path: path of the file.

    Returns:
        The model, with its nodes in topological order.

    Raises:
        ModelFileError: the file is not an ONNX model, is truncated, states implausible sizes, or
            refers to data outside its own folder.
    """
    model = _parse(path)
    if not model.graph.node:
        raise ModelFileError(
            f"'{path}' is not an ONNX model (it has no operators); export it again"
        )
    if len(model.graph.node) > MAX_NODES:
        raise ModelFileError(f"'{path}' has more than {MAX_NODES} operators; split the model")
    for tensor in all_tensors(model):
        _check_tensor(tensor, path)
        if is_stub(tensor) and tensor_bytes(tensor) <= SMALL_TENSOR_BYTES:
            _load(tensor, path.parent)
    return model


def weight_files(path: Path) -> tuple[Path, ...]:
    """Return the paths of the external data files of an ONNX file, in alphabetical order.

    Raises:
        ModelFileError: the file is not a valid ONNX model.
    """
    names: set[str] = set()
    for tensor in all_tensors(_parse(path)):
        if is_stub(tensor):
            _check_tensor(tensor, path)
            names.update(entry.value for entry in tensor.external_data if entry.key == "location")
    return tuple(path.parent / name for name in sorted(names))


def load_weights(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """Return a copy of the model in which external tensors contain their data.

    Args:
        model: a model whose external tensors may lack their data.
        folder: folder that contains the data files.

    Raises:
        ModelFileError: the model would exceed 2 GiB, the limit of protobuf. This is checked before
            any data are read.
    """
    total = sum(map(tensor_bytes, all_tensors(model)))
    if total > MAX_FILE_BYTES:
        raise ModelFileError(
            f"the model has {total / 1000000000.0:.1f} GB of weights, but a graph with "
            "embedded weights can hold at most 2.1 GB; export the model in parts"
        )
    loaded = onnx.ModelProto()
    loaded.CopyFrom(model)
    for tensor in all_tensors(loaded):
        if is_stub(tensor):
            _load(tensor, folder)
    return loaded


def write(model: onnx.ModelProto, path: Path) -> Path:
    """Write a model to a file atomically and return the path."""
    write_atomically(path, model.SerializeToString())
    return path


def stub(name: str, shape: Sequence[int], data_type: int) -> onnx.TensorProto:
    """Create a tensor without data.

    Args:
        name: name of the tensor.
        shape: shape of the tensor.
        data_type: ONNX element type.
    """
    return TensorProto(
        name=name, dims=shape, data_type=data_type, data_location=TensorProto.EXTERNAL
    )


def is_stub(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor is a stub, that is, has a shape but no data."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Return the size of the tensor's data in bytes. 4-bit elements count as one byte."""
    item = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(math.prod(tensor.dims) * item)


def all_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model: initializers, and tensors in attributes.

    Subgraphs and functions are included.
    """
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _node_tensors(node)


def lone_integers(model: onnx.ModelProto) -> tuple[int, ...]:
    """Return the largest integers above 8 among the one-element constants of a model, at most 16.

    They are candidates for the values of integer inputs.

    Returns:
        The integers in descending order.
    """
    integers = {
        int(numpy_helper.to_array(tensor).item())
        for tensor in all_tensors(model)
        if tensor.data_type in (TensorProto.INT32, TensorProto.INT64)
        and math.prod(tensor.dims) == 1
        and tensor.data_location != TensorProto.EXTERNAL
    }
    return tuple(sorted((value for value in integers if value > 8), reverse=True))[:16]


def has_undrawable_inputs(model: onnx.ModelProto) -> bool:
    """Return whether the model has an input for which random values cannot be drawn.

    This applies to sequences and optional values. It also applies to a computed frame step of an
    STFT, because onnxruntime divides by the frame step and terminates the process if it is zero.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    constants.update(
        name for node in model.graph.node if node.op_type == "Constant" for name in node.output
    )
    steps = {node.input[1] for node in model.graph.node if node.op_type == "STFT"} - constants
    kinds = {
        info.type.WhichOneof("value") for info in model.graph.input if info.name not in constants
    }
    return bool(steps) or not kinds <= {"tensor_type"}


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _node_tensors(node)


def _node_tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for graph in (attribute.g, *attribute.graphs):
            yield from _graph_tensors(graph)


def node_reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of the tensors that a node reads.

    These include the tensors of the outer graph that the node's subgraphs read.
    """
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            local = {value.name for value in (*graph.input, *graph.initializer)}
            for inner in graph.node:
                yield from (name for name in node_reads(inner) if name not in local)
                local.update(inner.output)
            yield from (info.name for info in graph.output if info.name not in local)


def nodes_in_order(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return nodes in topological order, as close to the given order as possible.

    Nodes that are part of a cycle are left out.
    """
    makers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    before = [{makers[name] for name in node_reads(node) if name in makers} for node in nodes]
    after: dict[int, list[int]] = {}
    for i, numbers in enumerate(before):
        for j in numbers:
            after.setdefault(j, []).append(i)
    missing = list(map(len, before))
    ready = [i for i, count in enumerate(missing) if not count]
    heapify(ready)
    ordered = []
    while ready:
        i = heappop(ready)
        ordered.append(nodes[i])
        for j in after.get(i, ()):
            missing[j] -= 1
            if not missing[j]:
                heappush(ready, j)
    return ordered


def _parse(path: Path) -> onnx.ModelProto:
    try:
        if not path.is_file():
            raise ModelFileError(
                f"'{path}' is not a file; give the path of an ONNX file, or the name of a "
                "built-in network"
            )
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ModelFileError(
                f"'{path}' is larger than 2 GiB; save its weights as external data"
            )
        model = onnx.ModelProto.FromString(path.read_bytes())
    except OSError as error:
        raise ModelFileError(
            f"cannot read '{path}': {error.strerror}; check the file and its permissions"
        ) from error
    except DecodeError:
        raise ModelFileError(
            f"'{path}' is not an ONNX model, or is truncated; export or copy it again"
        ) from None
    nodes = list(model.graph.node)  # onnxruntime accepts nodes in any order, our passes do not
    ordered = nodes_in_order(nodes)
    if len(ordered) == len(nodes) and any(map(operator.is_not, ordered, nodes)):
        del model.graph.node[:]
        model.graph.node.extend(ordered)
    return model


def _check_tensor(tensor: onnx.TensorProto, path: Path) -> None:
    shape = list(tensor.dims)
    if any(size < 0 for size in shape) or math.prod(shape) > MAX_TENSOR_ELEMENTS:
        raise ModelFileError(
            f"the tensor '{tensor.name}' in '{path}' claims the shape {shape}, but at most "
            f"{MAX_TENSOR_ELEMENTS} elements are accepted; export the model with smaller "
            "tensors"
        )
    if tensor.data_type not in _KNOWN_TYPES:
        raise ModelFileError(
            f"the tensor '{tensor.name}' in '{path}' has the unknown type "
            f"{tensor.data_type}; export the model again"
        )
    if is_stub(tensor):
        _check_external(tensor, path)
    elif tensor.HasField("raw_data") and tensor.data_type in COMPUTABLE:
        expected, held = tensor_bytes(tensor), len(tensor.raw_data)
        if expected != held:
            raise ModelFileError(
                f"the tensor '{tensor.name}' in '{path}' contains {held} bytes, but its "
                f"shape {shape} needs {expected}; the file is damaged, export it again"
            )


def _check_external(tensor: onnx.TensorProto, path: Path) -> None:
    facts = {entry.key: entry.value for entry in tensor.external_data}
    location = facts.get("location", "")
    folder = path.parent.resolve()
    parts = PurePosixPath(location.replace("\\", "/"))
    inside = (
        location and not parts.is_absolute() and ".." not in parts.parts and ":" not in location
    )
    if not inside or not (folder / location).resolve().is_relative_to(folder):
        raise ModelFileError(
            f"the tensor '{tensor.name}' of '{path}' refers to the data file '{location}' "
            "outside the model's folder, which is not allowed; save the model with its data "
            "next to it"
        )
    data = folder / location
    if not data.is_file():
        raise ModelFileError(
            f"'{path}' needs the data file '{location}', which is missing in its folder; "
            "copy it there"
        )
    try:
        offset = int(facts.get("offset", 0))
        length = int(facts.get("length", tensor_bytes(tensor)))
    except ValueError:
        offset, length = -1, -1
    wrong_length = tensor.data_type in COMPUTABLE and length != tensor_bytes(tensor)
    if offset < 0 or wrong_length or offset + length > data.stat().st_size:
        raise ModelFileError(
            f"the tensor '{tensor.name}' of '{path}' does not fit into its data file "
            f"'{location}'; one of the two files is damaged, so copy or export both again"
        )


def _load(tensor: onnx.TensorProto, folder: Path) -> None:
    external_data_helper.load_external_data_for_tensor(tensor, str(folder))
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


_KNOWN_TYPES = frozenset(helper.get_all_tensor_dtypes())
COMPUTABLE = frozenset(
    {
        TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16,
        TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
        TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
        TensorProto.BOOL,
    }
)  # fmt: skip
"""Element types with which compiled code follows the ONNX standard. Text, types of less than one
byte and 8-bit floats are not included."""


# indices of the inputs that are weights and biases, by operator
WEIGHTS: Mapping[str, tuple[int, ...]] = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (1, 2),
    "MatMul": (1,),
    "ConvInteger": (1,),
    "MatMulInteger": (1,),
    "QLinearConv": (3, 8),
    "QLinearMatMul": (3,),
    "QGemm": (3, 6),
    "LSTM": (1, 2),
    "GRU": (1, 2),
    "RNN": (1, 2),
}


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model in which all weights are stubs (tensors without data).

    Weights are the constants, float or quantised, that only convolutions, matrix products and
    recurrent layers read as weights or biases.
    """
    names = _weight_names(model.graph)
    copy = onnx.ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    source, graph = model.graph, copy.graph
    graph.name = source.name
    graph.node.extend(source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    graph.value_info.extend(source.value_info)
    for tensor in source.initializer:
        weight = tensor.name in names
        graph.initializer.append(
            stub(tensor.name, tensor.dims, tensor.data_type) if weight else tensor
        )
    return copy


def _weight_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the tensors that are read only as weights or biases.

    They may be read directly or through a DequantizeLinear.
    """
    through = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "DequantizeLinear"}
    weights: set[str] = set()
    other: set[str] = {output.name for output in graph.output}
    for node in graph.node:
        roles = (0,) if node.op_type == "DequantizeLinear" else WEIGHTS.get(node.op_type, ())
        for i, name in enumerate(node.input):
            (weights if i in roles else other).add(name)
    read_as_data = {through[name] for name in other if name in through}
    return weights - other - read_as_data


def weights_as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model in which constants without data (stubs) are inputs of the graph.

    This makes the model valid ONNX.
    """
    copy = deepcopy(model)
    tensors = list(copy.graph.initializer)
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(tensor for tensor in tensors if not is_stub(tensor))
    named = {info.name for info in copy.graph.input}  # IR version 3 lists weights among the inputs
    copy.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for t in tensors
        if is_stub(t) and t.name not in named
    )
    return copy
