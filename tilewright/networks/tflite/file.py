"""Read TensorFlow Lite files, including constants that are stored in sparse form.

A sparse constant is stored as a tree with one level per dimension, where the dimensions may be in
any order. In a dense level, each node of the level above has one child per index of the dimension.
In a sparse level, each node of the level above only has children for the indices that the file
lists. A dimension that is stored in blocks has an additional level for the index within the block.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.networks.errors import ModelFileError
from tilewright.networks.onnx.files import MAX_FILE_BYTES, MAX_NODES, MAX_TENSOR_ELEMENTS

tflite = lazy_module("tflite")

SPARSE = 1
"""Number of the schema for a level of a sparse tensor that is stored in sparse form."""
MOST_LEVELS = 16
"""Maximum number of levels of a sparse tensor."""

Integers = NDArray[np.int64]


class DamagedTensor(ValueError):
    """Raised if the stored data of a sparse tensor are inconsistent."""


def dense(sparsity: Any, values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Expand a sparse constant to a dense array.

    Args:
        sparsity: the tensor's `SparsityParameters` table.
        values: the stored elements, of shape (elements,).
        shape: shape of the tensor.

    Returns:
        Array of shape `shape`, with the element type of `values`.

    Raises:
        DamagedTensor: sizes, indices or counts contradict each other.
    """
    order = _vector(sparsity.TraversalOrderLength(), sparsity.TraversalOrderAsNumpy)
    blocks = _vector(sparsity.BlockMapLength(), sparsity.BlockMapAsNumpy)
    levels = int(sparsity.DimMetadataLength())
    rank = len(shape)
    if levels != rank + len(blocks) or sorted(order) != list(range(levels)):
        raise DamagedTensor("its levels do not match its dimensions")
    if any(not 0 <= dimension < rank for dimension in blocks) or levels > MOST_LEVELS:
        raise DamagedTensor("its blocks divide dimensions that it does not have")
    places = np.zeros((1, 0), np.int64)  # indices of each node, one column per level so far
    sizes: list[int] = []
    for number in range(levels):
        level = sparsity.DimMetadata(number)
        if level.Format() == SPARSE:
            places = _listed_places(level, places)
            sizes.append(0)
        else:
            places = _all_places(int(level.DenseSize()), places, math.prod(shape))
            sizes.append(int(level.DenseSize()))
    if len(places) != values.size:
        raise DamagedTensor(f"it stores {values.size} elements for {len(places)} positions")
    by_level = {int(level): places[:, number] for number, level in enumerate(order)}
    coordinates = [by_level[dimension] for dimension in range(rank)]
    for number, dimension in enumerate(blocks):
        size = sizes[order.index(rank + number)]
        coordinates[dimension] = coordinates[dimension] * size + by_level[rank + number]
    if any(
        (coordinate < 0).any() or (coordinate >= size).any()
        for coordinate, size in zip(coordinates, shape, strict=True)
    ):
        raise DamagedTensor("it has elements outside of its shape")
    array = np.zeros(shape, values.dtype)
    array[tuple(coordinates)] = values
    return array


def _vector(length: int, read: Callable[[], Any]) -> list[int]:
    if length > MOST_LEVELS:
        raise DamagedTensor(f"it has {length} levels")
    return [int(number) for number in read()] if length else []


def _all_places(size: int, parents: Integers, most: int) -> Integers:
    """Return the nodes of a dense level: every index below each node of the level above.

    Args:
        size: number of indices of the level.
        parents: nodes of the level above, each as a row of indices.
        most: number of elements of the tensor.

    Returns:
        One row of indices per node.

    Raises:
        DamagedTensor: the size is negative, or there are more than `most` nodes.
    """
    if size < 0 or size * len(parents) > most:
        raise DamagedTensor(f"one of its levels has the size {size}")
    places = np.tile(np.arange(size), len(parents))[:, None]
    return np.hstack([np.repeat(parents, size, axis=0), places])


def _listed_places(level: Any, parents: Integers) -> Integers:
    """Return the nodes of a sparse level: the listed indices below each node of the level above.

    Args:
        level: the table of the level.
        parents: nodes of the level above, each as a row of indices.

    Returns:
        One row of indices per node.

    Raises:
        DamagedTensor: the level lists indices for nodes that do not exist.
    """
    segments = _numbers(level.ArraySegments(), level.ArraySegmentsType())
    indices = _numbers(level.ArrayIndices(), level.ArrayIndicesType())
    counts = np.diff(segments)
    if (
        len(segments) != len(parents) + 1
        or segments[0] != 0
        or (counts < 0).any()
        or segments[-1] != len(indices)
    ):
        raise DamagedTensor("one of its levels lists positions for nodes that do not exist")
    return np.hstack([np.repeat(parents, counts, axis=0), indices[:, None]])


def _numbers(table: Any, kind: int) -> Integers:
    """Read a vector of integers, for which the schema has three element types.

    Args:
        table: the table that contains the vector.
        kind: number of the element type in the schema's `SparseIndexVector`.

    Raises:
        DamagedTensor: the vector is missing, or its type is unknown.
    """
    words = {
        number: name
        for name, number in vars(tflite.SparseIndexVector).items()
        if isinstance(number, int) and number
    }
    if table is None or kind not in words:
        raise DamagedTensor("one of its levels lists no positions")
    vector = getattr(tflite, words[kind])()
    vector.Init(table.Bytes, table.Pos)
    numbers: Integers = np.asarray(vector.ValuesAsNumpy()).astype(np.int64).reshape(-1)
    return numbers


IDENTIFIER = b"TFL3"  # the schema's file identifier, at byte 4
# Limits on lengths that a file states, so that a damaged file cannot request much memory.
MAX_TENSORS = 4 * MAX_NODES
MAX_OPERANDS = 1024
MAX_RANK = 8
MAX_OPTION_LENGTH = 64
MAX_SUBGRAPHS = 256

Shape = tuple[int, ...]
Option = int | float | Shape


@dataclass(frozen=True)
class TfliteQuantisation:
    """Quantisation of a tensor: real value = scale · (integer − zero point).

    Attributes:
        scales: float32 array of shape (1,), or of shape (channels,) for one scale per channel.
        zero_points: int64 array of the same shape.
        axis: axis of the channels.
    """

    scales: NDArray[np.float32]
    zero_points: NDArray[np.int64]
    axis: int

    def real(self, integers: NDArray[Any]) -> NDArray[np.float32]:
        """Dequantise an array of integers to float32 values of the same shape."""
        shape = [1] * integers.ndim
        if self.scales.size > 1:
            shape[self.axis] = -1
        steps = integers.astype(np.int64) - self.zero_points.reshape(shape or ())
        values: NDArray[np.float32] = steps.astype(np.float32) * self.scales.reshape(shape or ())
        return values

    def same_as(self, other: TfliteQuantisation | None) -> bool:
        """Return whether both quantisations map every integer to the same real value."""
        return (
            other is not None
            and np.array_equal(self.scales, other.scales)
            and np.array_equal(self.zero_points, other.zero_points)
            and (self.scales.size == 1 or self.axis == other.axis)
        )


@dataclass(frozen=True)
class TfliteTensor:
    """A tensor of a graph.

    Attributes:
        name: name of the tensor.
        shape: shape of the tensor. A size that the file leaves open is 1.
        kind: name of the element type in the schema.
        dtype: name of the element type in NumPy; "" if NumPy does not have the type.
        quantisation: quantisation of the tensor; None if it is not quantised.
        data: values of a constant; None for other tensors.
        is_variable: whether the tensor is state that is kept between runs.
        has_open_shape: whether the file leaves some sizes open.
    """

    name: str
    shape: Shape
    kind: str
    dtype: str
    quantisation: TfliteQuantisation | None
    data: NDArray[Any] | None
    is_variable: bool
    has_open_shape: bool = False


@dataclass(frozen=True)
class TfliteOperator:
    """An operator of a graph.

    Attributes:
        kind: name of the operator's kind in the schema, for example CONV_2D. For a custom operator,
            it is the name that the author chose.
        inputs: tensor index of each input; −1 for an absent input.
        outputs: tensor index of each output.
        options: options of the operator, by their names in the schema.
        is_custom: whether it is a custom operator.
    """

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Option]
    is_custom: bool = False

    def integer(self, option: str, default: int = 0) -> int:
        """Return an option as an int: an integer, an enumeration value or a flag.

        Args:
            option: name of the option.
            default: value that is returned if the operator does not have the option.
        """
        value = self.options.get(option, default)
        return int(value) if isinstance(value, (int, float)) else default

    def integers(self, option: str) -> list[int]:
        """Return an option of the operator that is a vector of integers.

        Args:
            option: name of the option.

        Returns:
            The integers; empty if the operator does not have the option.
        """
        values = self.options.get(option, ())
        return [int(value) for value in values] if isinstance(values, tuple) else []

    def number(self, option: str, default: float) -> float:
        """Return an option as a float.

        Args:
            option: name of the option.
            default: value that is returned if the operator does not have the option.
        """
        value = self.options.get(option, default)
        return float(value) if isinstance(value, (int, float)) else default


@dataclass(frozen=True)
class TfliteGraph:
    """A graph of a TensorFlow Lite file.

    Attributes:
        tensors: the tensors.
        operators: the operators, in execution order.
        inputs: tensor indices of the inputs.
        outputs: tensor indices of the outputs.
        subgraphs: the other graphs of the file that operators execute, by their number in the file.
            Only the main graph has entries.
    """

    tensors: tuple[TfliteTensor, ...]
    operators: tuple[TfliteOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    subgraphs: Mapping[int, TfliteGraph] = field(default_factory=dict)


def read_graph(path: Path) -> TfliteGraph:
    """Parse a TensorFlow Lite file and return its main graph.

    Args:
        path: path of the file.

    Raises:
        ModelFileError: the file is missing, truncated, not a TensorFlow Lite model, or contradicts
            itself.
    """
    try:
        if not path.is_file():
            raise ModelFileError(f"'{path}' is not a file; give the path of a .tflite file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ModelFileError(f"'{path}' is larger than 2 GiB; use a smaller model")
        content = path.read_bytes()
    except OSError as error:
        raise ModelFileError(
            f"cannot read '{path}': {error.strerror}; check the file and its permissions"
        ) from error
    if content[4:8] != IDENTIFIER:
        raise ModelFileError(
            f"'{path}' is not a TensorFlow Lite model (the identifier TFL3 is missing); "
            "convert or copy it again"
        )
    try:
        return _FlatbufferReader(content, path).graph()
    except _DAMAGE:
        raise ModelFileError(
            f"'{path}' is damaged or truncated: its tables point outside of the file; "
            "convert or copy it again"
        ) from None


# Exceptions that the bindings raise for an offset outside of the file.
_DAMAGE = (
    struct.error, IndexError, ValueError, TypeError, AttributeError, OverflowError, KeyError,
    MemoryError,
)  # fmt: skip


class _FlatbufferReader:
    """Reader of the tables of a TensorFlow Lite file, which checks all sizes and indices.

    Args:
        content: content of the file.
        path: path of the file, for error messages.
    """

    def __init__(self, content: bytes, path: Path) -> None:
        self._schema = tflite
        self._content = content
        self._path = path
        self._model = tflite.Model.GetRootAs(content, 0)
        self._operators = _words(tflite.BuiltinOperator)
        self._options = _words(tflite.BuiltinOptions)
        self._later_options = _words(tflite.BuiltinOptions2)
        self._types = _words(tflite.TensorType)
        self._constant_bytes = 0

    def graph(self) -> TfliteGraph:
        """Return the main graph with all graphs that it executes, directly or indirectly."""
        if not self._model.SubgraphsLength():
            self._refuse("contains no graph")
        main = self._graph(0)
        if not main.operators:
            self._refuse("contains no operators")
        subgraphs: dict[int, TfliteGraph] = {}
        waiting = _subgraphs_of(main)
        while waiting:
            number = waiting.pop()
            if number in subgraphs:
                continue
            if not 0 < number < self._model.SubgraphsLength():
                self._refuse(
                    f"refers to the graph {number}, which does not exist or is the main graph"
                )
            self._check_length(len(subgraphs) + 1, MAX_SUBGRAPHS, "graphs")
            subgraphs[number] = self._graph(number)
            waiting += _subgraphs_of(subgraphs[number])
        return replace(main, subgraphs=subgraphs)

    def _graph(self, number: int) -> TfliteGraph:
        graph = self._model.Subgraphs(number)
        tensors = tuple(
            self._tensor(graph.Tensors(i))
            for i in range(self._check_length(graph.TensorsLength(), MAX_TENSORS, "tensors"))
        )
        operators = tuple(
            self._operator(graph.Operators(i), len(tensors))
            for i in range(self._check_length(graph.OperatorsLength(), MAX_NODES, "operators"))
        )
        ends = [
            self._read_indices(vector, length, len(tensors), what)
            for vector, length, what in (
                (graph.InputsAsNumpy, graph.InputsLength(), "inputs"),
                (graph.OutputsAsNumpy, graph.OutputsLength(), "outputs"),
            )
        ]
        if any(place < 0 for places in ends for place in places):
            self._refuse("does not name an input or output of the network")
        return TfliteGraph(tensors, operators, ends[0], ends[1])

    def _tensor(self, table: Any) -> TfliteTensor:
        name = (table.Name() or b"").decode("utf-8", "replace")
        shape = self._vector(
            table.ShapeAsNumpy, table.ShapeLength(), MAX_RANK, f"sizes of '{name}'"
        )
        if any(size < 0 for size in shape) or math.prod(shape) > MAX_TENSOR_ELEMENTS:
            self._refuse(
                f"claims the shape {list(shape)} for the tensor '{name}' (at most "
                f"{MAX_TENSOR_ELEMENTS} elements are accepted)"
            )
        kind = self._types.get(table.Type(), f"type {table.Type()}")
        dtype = _DTYPES.get(kind, "")
        data = self._data(table, name, shape, "int8" if kind == "INT4" else dtype, kind)
        if kind == "INT4" and data is not None:
            dtype = "int8"  # only constants can be int4; they are unpacked to int8
        quantisation = self._quantisation(table.Quantization(), name, shape, dtype)
        signature = self._vector(
            table.ShapeSignatureAsNumpy,
            table.ShapeSignatureLength(),
            MAX_RANK,
            f"sizes of '{name}'",
        )
        return TfliteTensor(
            name, shape, kind, dtype, quantisation, data, bool(table.IsVariable()),
            any(size < 0 for size in signature),
        )  # fmt: skip

    def _data(
        self, table: Any, name: str, shape: Shape, dtype: str, kind: str
    ) -> NDArray[Any] | None:
        """Return the values that the file stores for a tensor.

        Args:
            table: the tensor's table.
            name: name of the tensor, for error messages.
            shape: shape of the tensor.
            dtype: element type in NumPy; "" if NumPy does not have the type.
            kind: element type in the schema.

        Returns:
            The values; None if the file stores none, or if the type is not supported.

        Raises:
            ModelFileError: the stored data do not fit the tensor.
        """
        if not 0 <= table.Buffer() < self._model.BuffersLength():
            self._refuse(f"gives the tensor '{name}' data that do not exist")
        buffer = self._model.Buffers(table.Buffer())
        start, length = buffer.Offset(), buffer.DataLength()
        if start > 1:  # large models store data after the tables
            length = buffer.Size()
            raw = np.frombuffer(self._content, np.uint8)[start : start + length]
        elif length:
            raw = buffer.DataAsNumpy()
        if not length or not dtype:
            return None
        # A damaged file may use the same data for many tensors, so that the sum is limited, too.
        self._constant_bytes += length
        if table.Sparsity() is not None and kind != "INT4":
            return self._dense(table.Sparsity(), name, raw, shape, dtype)
        count = math.prod(shape)
        expected = -(-count // 2) if kind == "INT4" else count * np.dtype(dtype).itemsize
        if raw.size != expected:
            self._refuse(
                f"contains {raw.size} bytes for the tensor '{name}', but its shape "
                f"{list(shape)} needs {expected}"
            )
        if self._constant_bytes > MAX_FILE_BYTES:
            self._refuse("uses the same data for tensors of more than 2 GiB")
        if kind == "INT4":  # two numbers per byte, the first one in the lower half
            self._constant_bytes += count
            # The shifts extend the sign of each four-bit number.
            pairs = raw.view(np.int8)
            return np.stack([pairs << 4 >> 4, pairs >> 4], -1).ravel()[:count].reshape(shape)
        values: NDArray[Any] = raw.view(np.dtype(dtype).newbyteorder("<")).reshape(shape)
        return values

    def _dense(
        self, sparsity: Any, name: str, raw: NDArray[Any], shape: Shape, dtype: str
    ) -> NDArray[Any]:
        """Expand a constant that the file stores in sparse form to a dense array.

        Args:
            sparsity: the tensor's `SparsityParameters` table.
            name: name of the tensor, for error messages.
            raw: the stored bytes.
            shape: shape of the tensor.
            dtype: element type in NumPy.
        """
        kind = np.dtype(dtype).newbyteorder("<")
        self._constant_bytes += math.prod(shape) * kind.itemsize
        if raw.size % kind.itemsize or self._constant_bytes > MAX_FILE_BYTES:
            self._refuse(f"contains {raw.size} bytes for the sparse tensor '{name}'")
        try:
            return dense(sparsity, raw.view(kind), shape)
        except DamagedTensor as fault:
            self._refuse(f"contains the damaged sparse tensor '{name}': {fault}")

    def _quantisation(
        self, table: Any, name: str, shape: Shape, dtype: str
    ) -> TfliteQuantisation | None:
        if table is None or not table.ScaleLength() or dtype not in _INTEGERS:
            return None
        # A vector, such as a bias, has a single axis, even if the file names another one.
        axis = table.QuantizedDimension() if len(shape) != 1 else 0
        channels = shape[axis] if 0 <= axis < len(shape) else 1
        most = max(channels, 1)
        scales = np.array(
            self._vector(table.ScaleAsNumpy, table.ScaleLength(), most, f"scales of '{name}'"),
            np.float32,
        )
        points = np.array(
            self._vector(
                table.ZeroPointAsNumpy, table.ZeroPointLength(), most, f"zero points of '{name}'"
            ),
            np.int64,
        )
        if points.size <= 1:
            points = np.full(scales.size, points[0] if points.size else 0, np.int64)
        limits = np.iinfo(dtype)
        if (
            scales.size not in (1, channels)
            or points.size != scales.size
            or not (np.isfinite(scales) & (scales >= 0)).all()
            or not ((points >= limits.min) & (points <= limits.max)).all()
        ):
            self._refuse(f"has an invalid quantisation of the tensor '{name}'")
        return TfliteQuantisation(scales, points, axis if scales.size > 1 else 0)

    def _operator(self, table: Any, tensors: int) -> TfliteOperator:
        if not 0 <= table.OpcodeIndex() < self._model.OperatorCodesLength():
            self._refuse("has an operator of an unknown kind")
        code = self._model.OperatorCodes(table.OpcodeIndex())
        # Files from before 2020 only have the deprecated field, whose largest value is 127.
        number = max(code.DeprecatedBuiltinCode(), code.BuiltinCode())
        kind = self._operators.get(number, f"operator {number}")
        custom = kind == "CUSTOM"
        if custom:
            kind = (code.CustomCode() or b"custom").decode("utf-8", "replace")
        return TfliteOperator(
            kind,
            self._read_indices(
                table.InputsAsNumpy, table.InputsLength(), tensors, f"inputs of {kind}"
            ),
            self._read_indices(
                table.OutputsAsNumpy, table.OutputsLength(), tensors, f"outputs of {kind}"
            ),
            self._read_options(table), custom,
        )  # fmt: skip

    def _read_options(self, operator: Any) -> dict[str, Option]:
        """Return all scalar and vector options of an operator, by their names in the schema.

        The schema has two fields for options. The second field is for operators that were added in
        2023 and later.
        """
        table = operator.BuiltinOptions()
        table_name = self._options.get(operator.BuiltinOptionsType(), "NONE")
        if table is None or table_name == "NONE":
            table = operator.BuiltinOptions2()
            table_name = self._later_options.get(operator.BuiltinOptions2Type(), "NONE")
        if table is None or table_name == "NONE":
            return {}
        kind = getattr(self._schema, table_name)
        options = kind()
        options.Init(table.Bytes, table.Pos)
        values: dict[str, Option] = {}
        for name in [name for name in vars(kind) if name[0].isupper()]:
            if f"{name}AsNumpy" in vars(kind):
                length = getattr(options, f"{name}Length")()
                vector = getattr(options, f"{name}AsNumpy")
                values[name] = self._vector(vector, length, MAX_OPTION_LENGTH, name)
            elif not name.endswith(_NO_VALUE) and not name.startswith("GetRootAs"):
                value = getattr(options, name)()
                if isinstance(value, (bool, int, float)):
                    values[name] = value
        return values

    def _read_indices(
        self, vector: Callable[[], Any], length: int, tensors: int, what: str
    ) -> tuple[int, ...]:
        """Read a vector of tensor indices, and check that the tensors exist.

        Args:
            vector: function that reads the vector as an array.
            length: length of the vector, according to the file.
            tensors: number of tensors in the graph.
            what: name of the vector, for error messages.
        """
        places = self._vector(vector, length, MAX_OPERANDS, what)
        if any(not -1 <= place < tensors for place in places):
            self._refuse(f"refers to {what} that do not exist")
        return tuple(int(place) for place in places)

    def _vector(self, vector: Callable[[], Any], length: int, most: int, what: str) -> Any:
        """Read a vector of numbers as a tuple, which is empty if the file lacks the vector.

        Args:
            vector: function that reads the vector as an array.
            length: length of the vector, according to the file.
            most: largest length that is accepted.
            what: name of the vector, for error messages.
        """
        return tuple(vector().tolist()) if self._check_length(length, most, what) else ()

    def _check_length(self, length: int, most: int, what: str) -> int:
        """Return `length`; raise `ModelFileError` if it exceeds `most`.

        Args:
            length: length of a vector, according to the file.
            most: largest length that is accepted.
            what: name of the vector, for the error message.
        """
        if length > most:
            self._refuse(f"has {length} {what}, but at most {most} are accepted")
        return length

    def _refuse(self, fault: str) -> NoReturn:
        raise ModelFileError(f"'{self._path}' {fault}; convert the model again")


def _subgraphs_of(graph: TfliteGraph) -> list[int]:
    """Return the numbers of the graphs that the operators of a graph execute.

    Graphs that only initialise variables (CALL_ONCE) are left out.
    """
    return [
        operator.integer(option)
        for operator in graph.operators
        for option in operator.options
        if option.endswith("SubgraphIndex") and option != "InitSubgraphIndex"
    ]


def _words(enumeration: type) -> dict[int, str]:
    """Return the names of an enumeration's values, by value."""
    return {number: word for word, number in vars(enumeration).items() if isinstance(number, int)}


# Suffixes of methods that do not return a field's value.
_NO_VALUE = ("AsNumpy", "Length", "IsNone", "Init", "BufferHasIdentifier")
_DTYPES = {
    "FLOAT32": "float32", "FLOAT16": "float16", "FLOAT64": "float64", "BOOL": "bool",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
}  # fmt: skip
_INTEGERS = ("int8", "uint8", "int16", "int32")
