"""Writes TensorFlow Lite files with one or a few operators, with the builder of the file's schema.

`python tests/networks/tflite_files.py` records what the TensorFlow Lite runtime computes with them.
It needs the package `ai-edge-litert`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import tflite
from flatbuffers import flexbuffers
from numpy.typing import NDArray

DATA = Path(__file__).parent.parent / "data" / "tflite"
RECORDED = DATA / "recorded.npz"
KEYWORDS = DATA / "kws_ref_model.tflite"


class File:
    """A TensorFlow Lite file under construction. A tensor's index identifies it."""

    def __init__(self) -> None:
        self._builder = flatbuffers.Builder(1024)
        self._buffers: list[bytes] = [b""]
        self._tensors: list[dict[str, Any]] = []
        self._operators: list[tuple[str, list[int], list[int], str, dict[str, Any]]] = []

    def tensor(
        self, name: str, shape: tuple[int, ...], dtype: str = "INT8",
        data: NDArray[Any] | None = None, scale: Any = None, zero: Any = 0, axis: int = 0,
        variable: bool = False, signature: tuple[int, ...] = (),
    ) -> int:  # fmt: skip
        """Add a tensor and return its index. `dtype` is the schema's name of the data type.

        A `signature` has -1 for each size that the converter did not know.
        """
        buffer = 0
        if data is not None:
            self._buffers.append(np.ascontiguousarray(data).tobytes())
            buffer = len(self._buffers) - 1
        self._tensors.append({
            "name": name, "shape": shape, "type": getattr(tflite.TensorType, dtype),
            "buffer": buffer, "scale": scale, "zero": zero, "axis": axis, "variable": variable,
            "signature": signature,
        })  # fmt: skip
        return len(self._tensors) - 1

    def constant(self, name: str, values: Any, **quantisation: Any) -> int:
        """Add a constant tensor and return its index."""
        array = np.asarray(values)
        return self.tensor(name, array.shape, array.dtype.name.upper(), array, **quantisation)

    def operator(
        self, kind: str, inputs: list[int], outputs: list[int], options: str = "", **values: Any
    ) -> None:
        """Add an operator. `options` is the schema's options table, and `values` are its fields.

        A kind that the schema does not define becomes a custom operator.
        """
        self._operators.append((kind, inputs, outputs, options, values))

    def write(
        self, inputs: list[int], outputs: list[int],
        graphs: Sequence[tuple[File, list[int], list[int]]] = (),
    ) -> bytes:  # fmt: skip
        """Return the file's content.

        `graphs` are further subgraphs with their inputs and outputs, numbered from 1.
        """
        b = self._builder
        everything = [(self, inputs, outputs), *graphs]
        kinds = list(dict.fromkeys(o[0] for file, *_ in everything for o in file._operators))
        buffers, made = [], []
        for file, read, written in everything:
            first = len(buffers)
            buffers += [self._buffer(content) for content in file._buffers]
            tensors = [self._tensor(tensor, first) for tensor in file._tensors]
            operators = [self._operator(operator, kinds) for operator in file._operators]
            ends = [b.CreateNumpyVector(np.array(item, np.int32)) for item in (read, written)]
            parts = [
                _offsets(b, tflite.SubGraphStartTensorsVector, tensors),
                _offsets(b, tflite.SubGraphStartOperatorsVector, operators),
            ]
            tflite.SubGraphStart(b)
            tflite.SubGraphAddTensors(b, parts[0])
            tflite.SubGraphAddOperators(b, parts[1])
            tflite.SubGraphAddInputs(b, ends[0])
            tflite.SubGraphAddOutputs(b, ends[1])
            made.append(tflite.SubGraphEnd(b))
        codes = [self._code(kind) for kind in kinds]
        vectors = [
            _offsets(b, tflite.ModelStartSubgraphsVector, made),
            _offsets(b, tflite.ModelStartOperatorCodesVector, codes),
            _offsets(b, tflite.ModelStartBuffersVector, buffers),
        ]
        tflite.ModelStart(b)
        tflite.ModelAddVersion(b, 3)
        tflite.ModelAddSubgraphs(b, vectors[0])
        tflite.ModelAddOperatorCodes(b, vectors[1])
        tflite.ModelAddBuffers(b, vectors[2])
        b.Finish(tflite.ModelEnd(b), file_identifier=b"TFL3")
        return bytes(b.Output())

    def _buffer(self, content: bytes) -> int:
        b = self._builder
        data = b.CreateNumpyVector(np.frombuffer(content, np.uint8)) if content else None
        tflite.BufferStart(b)
        if data is not None:
            tflite.BufferAddData(b, data)
        return int(tflite.BufferEnd(b))

    def _tensor(self, each: dict[str, Any], first_buffer: int) -> int:
        b = self._builder
        name = b.CreateString(each["name"])
        shape = b.CreateNumpyVector(np.array(each["shape"], np.int32))
        signature = b.CreateNumpyVector(np.array(each["signature"], np.int32))
        quantisation = None
        if each["scale"] is not None:
            scales = b.CreateNumpyVector(np.atleast_1d(np.array(each["scale"], np.float32)))
            count = np.atleast_1d(each["scale"]).size
            zeros = np.broadcast_to(np.array(each["zero"], np.int64), (count,)).copy()
            points = b.CreateNumpyVector(zeros)
            tflite.QuantizationParametersStart(b)
            tflite.QuantizationParametersAddScale(b, scales)
            tflite.QuantizationParametersAddZeroPoint(b, points)
            tflite.QuantizationParametersAddQuantizedDimension(b, each["axis"])
            quantisation = tflite.QuantizationParametersEnd(b)
        tflite.TensorStart(b)
        tflite.TensorAddName(b, name)
        tflite.TensorAddShape(b, shape)
        tflite.TensorAddType(b, each["type"])
        tflite.TensorAddBuffer(b, first_buffer + each["buffer"])
        if each["signature"]:
            tflite.TensorAddShapeSignature(b, signature)
        tflite.TensorAddIsVariable(b, each["variable"])
        if quantisation is not None:
            tflite.TensorAddQuantization(b, quantisation)
        return int(tflite.TensorEnd(b))

    def _operator(
        self, each: tuple[str, list[int], list[int], str, dict[str, Any]], kinds: list[str]
    ) -> int:
        b = self._builder
        kind, inputs, outputs, word, values = each
        read = b.CreateNumpyVector(np.array(inputs, np.int32))
        written = b.CreateNumpyVector(np.array(outputs, np.int32))
        options = None
        if word:
            wide = np.int64 if word in LATER else np.int32
            types = {float: np.float32, bool: np.bool_}
            vectors = {
                name: b.CreateNumpyVector(np.array(value, types.get(type((*value, 0)[0]), wide)))
                for name, value in values.items()
                if isinstance(value, (list, tuple))
            }
            vectors |= {n: b.CreateString(v) for n, v in values.items() if isinstance(v, str)}
            vectors |= {n: b.CreateByteVector(v) for n, v in values.items() if isinstance(v, bytes)}
            getattr(tflite, f"{word}Start")(b)
            for name, value in values.items():
                getattr(tflite, f"{word}Add{name}")(b, vectors.get(name, value))
            options = getattr(tflite, f"{word}End")(b)
        tflite.OperatorStart(b)
        tflite.OperatorAddOpcodeIndex(b, kinds.index(kind))
        tflite.OperatorAddInputs(b, read)
        tflite.OperatorAddOutputs(b, written)
        if options is not None and word in LATER:
            tflite.OperatorAddBuiltinOptions2Type(b, getattr(tflite.BuiltinOptions2, word))
            tflite.OperatorAddBuiltinOptions2(b, options)
        elif options is not None:
            tflite.OperatorAddBuiltinOptionsType(b, getattr(tflite.BuiltinOptions, word))
            tflite.OperatorAddBuiltinOptions(b, options)
        return int(tflite.OperatorEnd(b))

    def _code(self, kind: str) -> int:
        b = self._builder
        number = getattr(tflite.BuiltinOperator, kind, tflite.BuiltinOperator.CUSTOM)
        custom = b.CreateString(kind) if number == tflite.BuiltinOperator.CUSTOM else None
        tflite.OperatorCodeStart(b)
        tflite.OperatorCodeAddDeprecatedBuiltinCode(b, min(number, 127))
        tflite.OperatorCodeAddBuiltinCode(b, number)
        tflite.OperatorCodeAddVersion(b, VERSIONS.get(kind, 1))
        if custom is not None:
            tflite.OperatorCodeAddCustomCode(b, custom)
        return int(tflite.OperatorCodeEnd(b))


def _offsets(b: Any, start: Callable[[Any, int], Any], offsets: list[int]) -> Any:
    start(b, len(offsets))
    for offset in reversed(offsets):
        b.PrependUOffsetTRelative(offset)
    return b.EndVector()


LATER = frozenset(name for name in vars(tflite.BuiltinOptions2) if name[0].isupper())
"""Names of the option tables that belong into the second options field of an operator."""

# operator versions from which the runtime accepts int8 tensors
VERSIONS = {
    "CONV_2D": 4, "DEPTHWISE_CONV_2D": 5, "FULLY_CONNECTED": 7, "ADD": 2, "SUB": 3, "MUL": 2,
    "AVERAGE_POOL_2D": 3, "MAX_POOL_2D": 3, "MEAN": 3, "SOFTMAX": 2, "LOGISTIC": 2, "TANH": 2,
    "PAD": 2, "PADV2": 2, "CONCATENATION": 2, "LEAKY_RELU": 2, "TRANSPOSE": 2, "STRIDED_SLICE": 2,
    "SLICE": 2, "SPLIT": 2, "TRANSPOSE_CONV": 4, "RESIZE_BILINEAR": 2,
    "RESIZE_NEAREST_NEIGHBOR": 2, "BATCH_MATMUL": 2, "QUANTIZE": 2, "DEQUANTIZE": 2, "RELU": 2,
    "RELU6": 2, "MAXIMUM": 4, "MINIMUM": 4, "BROADCAST_TO": 2, "GELU": 2, "ABS": 3, "PRELU": 1,
    "SQUARED_DIFFERENCE": 2, "LESS": 2, "SQRT": 2, "EXP": 2, "L2_NORMALIZATION": 2, "TILE": 2,
    "SPACE_TO_BATCH_ND": 3, "GATHER": 4, "TOPK_V2": 3, "PACK": 3, "UNPACK": 3, "DIV": 2,
}  # fmt: skip

SAME, VALID = 0, 1
RELU, RELU_N1_TO_1, RELU6 = 1, 2, 3


def _numbers(seed: str, shape: tuple[int, ...], low: int = -127, high: int = 128) -> NDArray[Any]:
    return np.random.default_rng(zlib.crc32(seed.encode())).integers(low, high, shape)


def _weights(seed: str, *shape: int, dtype: str = "int8") -> NDArray[Any]:
    return _numbers(seed, shape).astype(dtype)


def _spread(count: int, scale: float) -> NDArray[np.float32]:
    return (scale * np.linspace(0.5, 1.5, count)).astype(np.float32)


def conv(padding: int = SAME, stride: int = 1, dilation: int = 1, activation: int = 0,
         *, groups: int = 1, dtype: str = "INT8") -> bytes:  # fmt: skip
    f, size = File(), 9
    zero = 128 if dtype == "UINT8" else 5
    x = f.tensor("x", (1, size, 7, 4), dtype, scale=0.05, zero=zero - 10)
    if dtype == "UINT8":
        w = f.constant("w", _numbers("w", (6, 3, 2, 4), 0, 256).astype("uint8"), scale=0.01,
                       zero=120)  # fmt: skip
        bias = f.constant("b", _numbers("b", (6,)).astype("int32") * 9, scale=0.0005)
    else:
        w = f.constant("w", _weights("w", 6, 3, 2, 4 // groups), scale=_spread(6, 0.01))
        bias = f.constant("b", _numbers("b", (6,)).astype("int32") * 9, scale=_spread(6, 0.0005))
    reach = (3 - 1) * dilation + 1, (2 - 1) * dilation + 1
    sizes = [
        -(-n // stride) if padding == SAME else (n - r) // stride + 1
        for n, r in zip((size, 7), reach, strict=True)
    ]
    y = f.tensor("y", (1, *sizes, 6), dtype, scale=0.04, zero=zero - 20)
    f.operator(
        "CONV_2D", [x, w, bias], [y], "Conv2DOptions", Padding=padding, StrideH=stride,
        StrideW=stride, DilationHFactor=dilation, DilationWFactor=dilation,
        FusedActivationFunction=activation,
    )  # fmt: skip
    return f.write([x], [y])


def depthwise(padding: int = SAME, stride: int = 2, multiplier: int = 1) -> bytes:
    f = File()
    outputs = 3 * multiplier
    x = f.tensor("x", (1, 8, 5, 3), scale=0.05, zero=-3)
    w = f.constant("w", _weights("d", 1, 3, 3, outputs), scale=_spread(outputs, 0.01), axis=3)
    bias = f.constant("b", _numbers("b", (outputs,)).astype("int32"),
                      scale=_spread(outputs, 0.0005))  # fmt: skip
    sizes = [-(-n // stride) if padding == SAME else (n - 3) // stride + 1 for n in (8, 5)]
    y = f.tensor("y", (1, *sizes, outputs), scale=0.05, zero=-128)
    f.operator(
        "DEPTHWISE_CONV_2D", [x, w, bias], [y], "DepthwiseConv2DOptions", Padding=padding,
        StrideH=stride, StrideW=stride, DepthMultiplier=multiplier, FusedActivationFunction=RELU,
        DilationHFactor=1, DilationWFactor=1,
    )  # fmt: skip
    return f.write([x], [y])


def transposed_conv(padding: int = SAME) -> bytes:
    f = File()
    x = f.tensor("x", (1, 4, 5, 3), scale=0.05, zero=-3)
    w = f.constant("w", _weights("t", 2, 3, 3, 3), scale=_spread(2, 0.01))
    shape = (1, 8, 10, 2) if padding == SAME else (1, 9, 11, 2)
    sizes = f.constant("shape", np.array(shape, np.int32))
    y = f.tensor("y", shape, scale=0.05, zero=4)
    f.operator("TRANSPOSE_CONV", [sizes, w, x], [y], "TransposeConvOptions", Padding=padding,
               StrideH=2, StrideW=2)  # fmt: skip
    return f.write([x], [y])


def dense(shape: tuple[int, ...] = (2, 12), *, bias: bool = True, keep: bool = False) -> bytes:
    f = File()
    x = f.tensor("x", shape, scale=0.05, zero=-3)
    w = f.constant("w", _weights("f", 5, 12), scale=0.01)
    b = [f.constant("b", _numbers("b", (5,)).astype("int32") * 5, scale=0.0005)] if bias else []
    rows = int(np.prod(shape)) // 12
    y = f.tensor("y", (*shape[:-1], 5) if keep else (rows, 5), scale=0.05, zero=4)
    f.operator("FULLY_CONNECTED", [x, w, *b], [y], "FullyConnectedOptions", KeepNumDims=keep)
    return f.write([x], [y])


def dense_of_four_bits() -> bytes:
    """Return a dense layer with an odd number of 4-bit weights, two of which share a byte."""
    f = File()
    x = f.tensor("x", (3, 5), scale=0.05, zero=-3)
    numbers = _numbers("fours", (3, 5), -7, 8)
    pairs = np.append(numbers.ravel(), 0).reshape(-1, 2) & 15
    w = f.tensor("w", (3, 5), "INT4", (pairs[:, 0] | pairs[:, 1] << 4).astype(np.uint8), scale=0.1)
    b = f.constant("b", _numbers("b", (3,)).astype("int32"), scale=0.005)
    y = f.tensor("y", (3, 3), scale=0.05, zero=4)
    f.operator("FULLY_CONNECTED", [x, w, b], [y], "FullyConnectedOptions")
    return f.write([x], [y])


def one(
    kind: str, shape: tuple[int, ...], result: tuple[int, ...], options: str = "",
    constants: tuple[Any, ...] = (), *, scales: tuple[float, float] = (0.05, 0.05),
    zeros: tuple[int, int] = (-3, 4), dtype: str = "INT8", first: int = 0, **values: Any,
) -> bytes:  # fmt: skip
    """Return a file with one operator. Its input is at position `first` among the constants."""
    f = File()
    floats = dtype == "FLOAT32"
    matching = [
        {} if floats else {"scale": s, "zero": z} for s, z in zip(scales, zeros, strict=True)
    ]
    x = f.tensor("x", shape, dtype, **matching[0])
    inputs = [f.constant(f"c{i}", c) for i, c in enumerate(constants)]
    inputs.insert(first, x)
    y = f.tensor("y", result, dtype, **matching[1])
    f.operator(kind, inputs, [y], options, **values)
    return f.write([x], [y])


def two(
    kind: str, shape: tuple[int, ...], other: tuple[int, ...], options: str = "",
    result: tuple[int, ...] | None = None, *, constant: bool = False, alike: bool = False,
    **values: Any,
) -> bytes:  # fmt: skip
    """Return a file with one operator of two inputs, the second of which may be a constant.

    The scales of the inputs and of the result differ unless `alike` is set.
    """
    f = File()
    x = f.tensor("x", shape, scale=0.05, zero=-3)
    own = {"scale": 0.05, "zero": -3} if alike else {"scale": 0.02, "zero": 7}
    z = (
        f.constant("z", _weights("z", *other), **own)
        if constant else f.tensor("z", other, **own)
    )  # fmt: skip
    y = f.tensor("y", result or shape, **(own if alike else {"scale": 0.07, "zero": 2}))
    f.operator(kind, [x, z], [y], options, **values)
    return f.write([x] if constant else [x, z], [y])


Spec = tuple[tuple[int, ...], str] | tuple[tuple[int, ...], str, float, int]
"""A computed tensor: shape, the schema's name of the data type, and maybe scale and zero point."""


@dataclass(frozen=True)
class Stored:
    """A quantised constant."""

    values: NDArray[Any]
    scale: Any
    zero: int = 0
    axis: int = 0


Graph = tuple[File, list[int], list[int]]
"""A further graph of a file, with its inputs and outputs."""


def combining(kind: str, dtype: str, options: str = "", *, pairs: int = 1, first: tuple[int, int] =
              (0, 1), **values: Any) -> Graph:  # fmt: skip
    """Return a graph with one operator on two scalars, whose input positions are `first`.

    If `kind` is empty, the second scalar is the output.
    """
    f = File()
    read = [f.tensor(f"arg{i}", (), dtype) for i in range(2 * pairs)]
    if not kind:
        return f, read, [read[1]]
    result = f.tensor("result", (), "BOOL" if "COMPARE" in kind or "LESS" in kind else dtype)
    f.operator(kind, [read[i] for i in first], [result], options, **values)
    return f, read, [result]


def general(
    kind: str, inputs: list[Any], outputs: list[Spec], options: str = "",
    graphs: Sequence[Graph] = (), **values: Any,
) -> bytes:  # fmt: skip
    """Return a file with one operator. Arrays in `inputs` become constants; None is omitted."""
    f = File()
    read, data = [], []
    for i, input_ in enumerate(inputs):
        if input_ is None:
            read.append(-1)
        elif isinstance(input_, Stored):
            read.append(f.constant(f"c{i}", input_.values, scale=input_.scale, zero=input_.zero,
                                   axis=input_.axis))  # fmt: skip
        elif isinstance(input_, tuple):
            read.append(_computed(f, f"x{i}", input_))
            data.append(read[-1])
        else:
            read.append(f.constant(f"c{i}", input_))
    written = [_computed(f, f"y{i}", output) for i, output in enumerate(outputs)]
    f.operator(kind, read, written, options, **values)
    return f.write(data, written, graphs)


def _computed(f: File, name: str, spec: Any) -> int:
    shape, dtype, *own = spec
    quantised = {"scale": own[0], "zero": own[1]} if own else {}
    return f.tensor(name, shape, dtype, **quantised)


def gathered_by_computed_indices() -> bytes:
    f = File()
    x = f.tensor("x", (4, 6), "FLOAT32")
    places, y = f.tensor("places", (4,), "INT32"), f.tensor("y", (4, 3), "FLOAT32")
    axis = f.constant("axis", np.array(1, np.int32))
    table = f.constant("table", _numbers("table", (6, 3)).astype(np.float32))
    f.operator("ARG_MAX", [x, axis], [places], "ArgMaxOptions",
               OutputType=tflite.TensorType.INT32)  # fmt: skip
    f.operator("GATHER", [table, places], [y], "GatherOptions", Axis=0)
    return f.write([x], [y])


def dilated_by_batches() -> bytes:
    """Return a dilated convolution between SpaceToBatch and BatchToSpace.

    Old converters wrote dilated convolutions in this form.
    """
    f = File()
    x = f.tensor("x", (1, 7, 8, 3), scale=0.05, zero=-3)
    split = f.tensor("split", (4, 5, 6, 3), scale=0.05, zero=-3)
    summed = f.tensor("summed", (4, 3, 4, 2), scale=0.04, zero=2)
    y = f.tensor("y", (1, 6, 7, 2), scale=0.04, zero=2)
    blocks = f.constant("blocks", np.array([2, 2], np.int32))
    pads = f.constant("pads", np.array([[2, 1], [2, 2]], np.int32))
    crops = f.constant("crops", np.array([[0, 0], [0, 1]], np.int32))
    w = f.constant("w", _weights("w", 2, 3, 3, 3), scale=_spread(2, 0.01))
    b = f.constant("b", np.array([90, -40], np.int32), scale=_spread(2, 0.0005))
    f.operator("SPACE_TO_BATCH_ND", [x, blocks, pads], [split], "SpaceToBatchNDOptions")
    f.operator("CONV_2D", [split, w, b], [summed], "Conv2DOptions", Padding=VALID, StrideH=1,
               StrideW=1)  # fmt: skip
    f.operator("BATCH_TO_SPACE_ND", [summed, blocks, crops], [y], "BatchToSpaceNDOptions")
    return f.write([x], [y])


def spectrum(kind: str, shape: tuple[int, ...] = (2, 6, 5), length: tuple[int, int] = (4, 8),
             dtype: str = "FLOAT32") -> bytes:  # fmt: skip
    """Return a Fourier transform and a part or the magnitude of its complex results."""
    f = File()
    x = f.tensor("x", shape, "FLOAT32")
    lengths = f.constant("lengths", np.array(length, np.int32))
    result = (*shape[:-2], length[0], length[1] // 2 + 1)
    pairs, y = f.tensor("pairs", result, "COMPLEX64"), f.tensor("y", result, dtype)
    f.operator("RFFT2D", [x, lengths], [pairs], "Rfft2dOptions")
    f.operator(kind, [pairs], [y])
    return f.write([x], [y])


def branches(condition: str = "BOOL", scale: float | None = None) -> bytes:
    """Return a file that doubles its input or adds a constant, depending on a second input."""
    f = File()
    own: dict[str, Any] = {} if scale is None else {"scale": scale, "zero": 3}
    dtype = "FLOAT32" if scale is None else "INT8"
    p, x = f.tensor("p", (), condition), f.tensor("x", (2, 3), dtype, **own)
    y = f.tensor("y", (2, 3), dtype, **own)
    f.operator("IF", [p, x], [y], "IfOptions", ThenSubgraphIndex=1, ElseSubgraphIndex=2)
    graphs = []
    for number in (1, 2):
        g = File()
        a, b = (g.tensor(name, (2, 3), dtype, **own) for name in "ab")
        if number == 1:
            g.operator("ADD", [a, a], [b], "AddOptions")
        else:
            if scale is None:
                c = g.constant("c", np.array([1.5, -2.0, 0.25], np.float32))
            else:
                c = g.constant("c", np.array([30, -20, 4], np.int8), scale=scale, zero=3)
            g.operator("ADD", [a, c], [b], "AddOptions", FusedActivationFunction=RELU)
        graphs.append((g, [a], [b]))
    return f.write([p, x], [y], graphs)


def branches_behind_a_convolution() -> bytes:
    """Return a file with a condition on the mean of a convolution's image.

    The mean is doubled if its largest value is above 1. Otherwise only the channels above 0.5 are
    kept.
    """
    f = File()
    x = f.tensor("x", (1, 8, 8, 3), "FLOAT32")
    w = f.constant("w", (_weights("w", 4, 3, 3, 3) / 64).astype(np.float32))
    b = f.constant("b", np.array([0.5, -0.5, 1.0, 0.0], np.float32))
    image, mean = f.tensor("image", (1, 8, 8, 4), "FLOAT32"), f.tensor("mean", (1, 4), "FLOAT32")
    most, p = f.tensor("most", (), "FLOAT32"), f.tensor("p", (), "BOOL")
    y = f.tensor("y", (1,), "FLOAT32", signature=(-1,))
    f.operator("CONV_2D", [x, w, b], [image], "Conv2DOptions", Padding=SAME, StrideH=1,
               StrideW=1, DilationHFactor=1, DilationWFactor=1,
               FusedActivationFunction=RELU)  # fmt: skip
    f.operator("MEAN", [image, f.constant("axes", np.array([1, 2], np.int32))], [mean],
               "ReducerOptions")  # fmt: skip
    f.operator("REDUCE_MAX", [mean, f.constant("all", np.array([0, 1], np.int32))], [most],
               "ReducerOptions")  # fmt: skip
    f.operator("GREATER", [most, f.constant("one", np.array(1, np.float32))], [p],
               "GreaterOptions")  # fmt: skip
    f.operator("IF", [p, mean], [y], "IfOptions", ThenSubgraphIndex=1, ElseSubgraphIndex=2)
    doubled, chosen = File(), File()
    a, c, d = (doubled.tensor(*spec, "FLOAT32") for spec in (("a", (1, 4)), ("c", (1, 4)),
                                                              ("d", (4,))))  # fmt: skip
    doubled.operator("ADD", [a, a], [c], "AddOptions")
    doubled.operator("RESHAPE", [c, doubled.constant("four", np.array([4], np.int32))], [d],
                     "ReshapeOptions")  # fmt: skip
    e, high = chosen.tensor("e", (1, 4), "FLOAT32"), chosen.tensor("high", (1, 4), "BOOL")
    places = chosen.tensor("places", (1, 2), "INT64", signature=(-1, 2))
    g = chosen.tensor("g", (1,), "FLOAT32", signature=(-1,))
    chosen.operator("GREATER", [e, chosen.constant("half", np.array(0.5, np.float32))], [high],
                    "GreaterOptions")  # fmt: skip
    chosen.operator("WHERE", [high], [places], "WhereOptions")
    chosen.operator("GATHER_ND", [e, places], [g], "GatherNdOptions")
    return f.write([x], [y], [(doubled, [a], [d]), (chosen, [e], [g])])


def loop(kind: str = "WHILE", inner: bool = False) -> bytes:
    """Return a loop: while i < limit, total = total * 0.5 + step and i = i + 1.

    The limit is an input that no iteration changes. With `inner`, a separate graph does the
    multiplication.
    """
    f = File()
    names = ("i", "limit", "total", "step")
    forms = {"i": ((), "INT32"), "limit": ((), "INT32"), "total": ((2, 3), "FLOAT32"),
             "step": ((3,), "FLOAT32")}  # fmt: skip
    limit, total = f.tensor("limit", *forms["limit"]), f.tensor("total", *forms["total"])
    start = f.constant("start", np.array(-2, np.int32))
    step = f.constant("step", np.array([1.0, -0.5, 2.0], np.float32))
    results = [f.tensor(f"y_{name}", *forms[name]) for name in names]
    options = "StablehloWhileOptions" if kind == "STABLEHLO_WHILE" else "WhileOptions"
    f.operator(kind, [start, limit, total, step], results, options, CondSubgraphIndex=1,
               BodySubgraphIndex=2)  # fmt: skip
    test = File()
    read = [test.tensor(f"c_{name}", *forms[name]) for name in names]
    goes_on = test.tensor("goes_on", (), "BOOL")
    test.operator("LESS", read[:2], [goes_on], "LessOptions")
    body = File()
    i, most, old, add = (body.tensor(f"b_{name}", *forms[name]) for name in names)
    one = body.constant("one", np.array(1, np.int32))
    half = body.constant("half", np.array(0.5, np.float32))
    after, small, new = (body.tensor("after", (), "INT32"), body.tensor("small", (2, 3), "FLOAT32"),
                         body.tensor("new", (2, 3), "FLOAT32"))  # fmt: skip
    body.operator("ADD", [i, one], [after], "AddOptions")
    graphs = [(test, read, [goes_on]), (body, [i, most, old, add], [after, most, new, add])]
    if inner:
        flag = body.constant("flag", np.array(True))
        body.operator("IF", [flag, old], [small], "IfOptions", ThenSubgraphIndex=3,
                      ElseSubgraphIndex=3)  # fmt: skip
        g = File()
        a, b = g.tensor("a", (2, 3), "FLOAT32"), g.tensor("b", (2, 3), "FLOAT32")
        g.operator("MUL", [a, g.constant("h", np.array(0.5, np.float32))], [b], "MulOptions")
        graphs.append((g, [a], [b]))
    else:
        body.operator("MUL", [old, half], [small], "MulOptions")
    body.operator("ADD", [small, add], [new], "AddOptions")
    return f.write([limit, total], results[:3], graphs)


def chosen_rows(reduced: bool = False) -> bytes:
    """Return the rows of a matrix that begin with a positive value. Their number is dynamic."""
    f = File()
    x = f.tensor("x", (9, 3), "FLOAT32")
    first, positive = f.tensor("first", (9, 1), "FLOAT32"), f.tensor("positive", (9, 1), "BOOL")
    flat, places = f.tensor("flat", (9,), "BOOL"), f.tensor("places", (1, 1), "INT64",
                                                             signature=(-1, 1))  # fmt: skip
    line = f.tensor("line", (1,), "INT64", signature=(-1,))
    rows = f.tensor("rows", (1, 3), "FLOAT32", signature=(-1, 3))
    y = f.tensor("y", (1, 3), "FLOAT32", signature=(-1, 3))
    f.operator(
        "SLICE",
        [
            x,
            f.constant("begin", np.array([0, 0], np.int32)),
            f.constant("size", np.array([-1, 1], np.int32)),
        ],
        [first],
        "SliceOptions",
    )
    f.operator("GREATER", [first, f.constant("zero", np.array(0, np.float32))], [positive],
               "GreaterOptions")  # fmt: skip
    f.operator("RESHAPE", [positive, f.constant("nine", np.array([9], np.int32))], [flat],
               "ReshapeOptions", NewShape=[9])  # fmt: skip
    f.operator("WHERE", [flat], [places], "WhereOptions")
    f.operator("SQUEEZE", [places], [line], "SqueezeOptions", SqueezeDims=[1])
    f.operator("GATHER", [x, line], [rows], "GatherOptions", Axis=0)
    f.operator("MUL", [rows, f.constant("two", np.array(2, np.float32))], [y], "MulOptions")
    if not reduced:
        return f.write([x], [y])
    total, shape = f.tensor("total", (3,), "FLOAT32"), f.tensor("shape", (2,), "INT32")
    f.operator("SUM", [y, f.constant("axis", np.array([0], np.int32))], [total], "ReducerOptions")
    f.operator("SHAPE", [y], [shape], "ShapeOptions", OutType=tflite.TensorType.INT32)
    return f.write([x], [total, shape])


def reshaped_by_values() -> bytes:
    """Return a file with shapes that are computed from values, constants and an input's shape."""
    f = File()
    x = f.tensor("x", (7,), "INT32")
    unique, at = f.tensor("unique", (1,), "INT32", signature=(-1,)), f.tensor("at", (7,), "INT32")
    wide = f.tensor("wide", (1, 1), "INT32", signature=(-1, 1))
    doubled = f.tensor("doubled", (1, 2), "INT32", signature=(-1, 2))
    y = f.tensor("y", (1,), "INT32", signature=(-1,))
    f.operator("UNIQUE", [x], [unique, at], "UniqueOptions", IdxOutType=tflite.TensorType.INT32)
    f.operator("EXPAND_DIMS", [unique, f.constant("axis", np.array(-1, np.int32))], [wide],
               "ExpandDimsOptions")  # fmt: skip
    f.operator("CONCATENATION", [wide, wide], [doubled], "ConcatenationOptions", Axis=1)
    f.operator("RESHAPE", [doubled, f.constant("line", np.array([-1], np.int32))], [y],
               "ReshapeOptions")  # fmt: skip
    return f.write([x], [y, at])


def composed() -> Graph:
    """Return the graph of a composite operator: ReLU(a - b)."""
    f = File()
    a, b, c, d = (f.tensor(name, (2, 3), "FLOAT32") for name in "abcd")
    f.operator("SUB", [a, b], [c], "SubOptions")
    f.operator("RELU", [c], [d])
    return f, [a, b], [d]


def lstm_step(dtype: str = "FLOAT32") -> bytes:
    """Return one step of an LSTM whose state is an input and an output."""
    f = File()
    floats = dtype == "FLOAT32"
    own: dict[str, Any] = {} if floats else {"scale": 1 / 128, "zero": 128}
    wide: dict[str, Any] = {} if floats else {"scale": 1 / 2048, "zero": 0}
    kind = "FLOAT32" if floats else "INT16"
    x, before = f.tensor("x", (2, 3), dtype, **own), f.tensor("before", (2, 4), dtype, **own)
    state = f.tensor("state", (2, 4), kind, **wide)
    if floats:
        w = f.constant("w", (_weights("lstm", 16, 7) / 64).astype(np.float32))
        b = f.constant("b", (_weights("lstmb", 16) / 64).astype(np.float32))
    else:
        w = f.constant("w", _numbers("lstm", (16, 7), 0, 256).astype(np.uint8), scale=0.01,
                       zero=120)  # fmt: skip
        b = f.constant("b", _numbers("lstmb", (16,)).astype(np.int32) * 99, scale=0.01 / 128)
    y, after = f.tensor("y", (2, 4), dtype, **own), f.tensor("after", (2, 4), kind, **wide)
    joined, sums = (
        f.tensor("joined", (2, 7), dtype, **own),
        f.tensor("sums", (2, 16), kind, **({} if floats else {"scale": 1 / 4096, "zero": 0})),
    )
    f.operator("LSTM", [x, before, w, b, state], [y, after, joined, sums], "LSTMOptions",
               FusedActivationFunction=4, KernelType=1)  # fmt: skip
    return f.write([x, before, state], [y, after])


def split(kind: str = "SPLIT") -> bytes:
    f = File()
    own = {"scale": 0.05, "zero": -3}
    x = f.tensor("x", (1, 3, 4, 6), **own)
    axis = f.constant("axis", np.array(3, np.int32))
    ys = [f.tensor(f"y{i}", (1, 3, 4, size), **own) for i, size in enumerate((3, 3))]
    if kind == "SPLIT":
        f.operator(kind, [axis, x], ys, "SplitOptions", NumSplits=2)
    else:
        sizes = f.constant("sizes", np.array((3, 3), np.int32))
        f.operator(kind, [x, sizes, axis], ys, "SplitVOptions", NumSplits=2)
    return f.write([x], ys)


def network() -> bytes:
    """Return a small residual network as a framework would write it.

    It has padding, a convolution, a mean, a residual branch, and a dense layer.
    """
    f = File()
    own = {"scale": 0.05, "zero": -128}
    x = f.tensor("serving_default_x:0", (1, 8, 8, 3), scale=0.02, zero=-1)
    pads = f.constant("pads", np.array(((0, 0), (0, 1), (0, 1), (0, 0)), np.int32))
    padded = f.tensor("m/pad/Pad", (1, 9, 9, 3), scale=0.02, zero=-1)
    w = f.constant("m/conv2d/Conv2D", _weights("w", 4, 3, 3, 3), scale=_spread(4, 0.01))
    b = f.constant("b", _numbers("b", (4,)).astype("int32") * 9, scale=_spread(4, 0.0002))
    one = f.tensor("m/relu/Relu;m/bn/FusedBatchNormV3;m/conv2d/Conv2D", (1, 4, 4, 4), **own)
    u = f.constant("m/conv2d_1/Conv2D", _weights("u", 4, 3, 3, 4), scale=_spread(4, 0.01))
    two = f.tensor("m/conv2d_1/BiasAdd;m/conv2d_1/Conv2D", (1, 4, 4, 4), scale=0.06, zero=9)
    three = f.tensor("m/relu_1/Relu;m/add/add", (1, 4, 4, 4), **own)
    axes = f.constant("axes", np.array((1, 2), np.int32))
    mean = f.tensor("m/mean/Mean", (1, 4), **own)
    v = f.constant("m/dense/MatMul", _weights("v", 3, 4), scale=0.001)
    four = f.tensor("m/dense/MatMul;m/dense/BiasAdd", (1, 3), scale=0.02, zero=3)
    y = f.tensor("StatefulPartitionedCall:0", (1, 3), scale=1 / 256, zero=-128)
    f.operator("PAD", [x, pads], [padded], "PadOptions")
    f.operator("CONV_2D", [padded, w, b], [one], "Conv2DOptions", Padding=VALID, StrideH=2,
               StrideW=2, FusedActivationFunction=RELU)  # fmt: skip
    c = f.constant("c", _numbers("c", (4,)).astype("int32"), scale=_spread(4, 0.0005))
    f.operator("CONV_2D", [one, u, c], [two], "Conv2DOptions", Padding=SAME, StrideH=1,
               StrideW=1)  # fmt: skip
    f.operator("ADD", [one, two], [three], "AddOptions", FusedActivationFunction=RELU)
    f.operator("MEAN", [three, axes], [mean], "ReducerOptions", KeepDims=False)
    f.operator("FULLY_CONNECTED", [mean, v, -1], [four], "FullyConnectedOptions")
    f.operator("SOFTMAX", [four], [y], "SoftmaxOptions", Beta=1.0)
    return f.write([x], [y])


SAMPLES = 8  # of the keyword spotter
IMAGE = (1, 6, 5, 4)
CASES: dict[str, Callable[[], bytes]] = {
    "conv_same": conv,
    "conv_same_stride2": lambda: conv(stride=2, activation=RELU),
    "conv_valid_relu6": lambda: conv(VALID, 2, activation=RELU6),
    "conv_dilated": lambda: conv(dilation=2, activation=RELU_N1_TO_1),
    "conv_uint8": lambda: conv(dtype="UINT8"),
    "conv_computed_weights": lambda: general(
        "CONV_2D", [((1, 6, 5, 4), "FLOAT32"), ((3, 2, 2, 4), "FLOAT32"),
                    np.array((1, 2, -3), np.float32)],
        [((1, 6, 5, 3), "FLOAT32")], "Conv2DOptions", Padding=SAME, StrideH=1, StrideW=1,
        DilationHFactor=1, DilationWFactor=1, FusedActivationFunction=RELU),
    "dense_of_four_bits": dense_of_four_bits,
    "depthwise_same": depthwise,
    "depthwise_valid": lambda: depthwise(VALID, 1),
    "depthwise_multiplier": lambda: depthwise(multiplier=2),
    "transposed_conv_same": transposed_conv,
    "transposed_conv_valid": lambda: transposed_conv(VALID),
    "dense": dense,
    "dense_of_image": lambda: dense((1, 2, 2, 3)),
    "dense_keeps_dimensions": lambda: dense((1, 3, 12), bias=False, keep=True),
    "add": lambda: two("ADD", IMAGE, IMAGE, "AddOptions", FusedActivationFunction=RELU),
    "add_constant": lambda: two("ADD", IMAGE, (4,), "AddOptions", constant=True),
    "sub": lambda: two("SUB", (2, 7), (2, 7), "SubOptions"),
    "mul": lambda: two("MUL", IMAGE, IMAGE, "MulOptions"),
    "mul_channels": lambda: two("MUL", IMAGE, (1, 1, 1, 4), "MulOptions"),
    "maximum": lambda: one("MAXIMUM", (2, 7), (2, 7), "MaximumMinimumOptions",
                           (np.float32(0.25),), dtype="FLOAT32"),
    "average_pool_same": lambda: one("AVERAGE_POOL_2D", IMAGE, (1, 3, 3, 4), "Pool2DOptions",
                                     zeros=(4, 4), Padding=SAME, StrideH=2, StrideW=2,
                                     FilterHeight=3, FilterWidth=3),
    "max_pool_same": lambda: one("MAX_POOL_2D", IMAGE, (1, 3, 3, 4), "Pool2DOptions",
                                 zeros=(4, 4), Padding=SAME, StrideH=2, StrideW=2,
                                 FilterHeight=3, FilterWidth=3),
    "mean": lambda: one("MEAN", IMAGE, (1, 4), "ReducerOptions",
                        (np.array((1, 2), np.int32),)),
    "mean_keeps_dimensions": lambda: one("MEAN", IMAGE, (1, 1, 1, 4), "ReducerOptions",
                                         (np.array((1, 2), np.int32),), KeepDims=True),
    "mean_of_channels": lambda: one("MEAN", IMAGE, (1, 6, 5, 1), "ReducerOptions",
                                    (np.array((-1,), np.int32),), KeepDims=True),
    "reshape": lambda: one("RESHAPE", IMAGE, (1, 120), "ReshapeOptions",
                           (np.array((1, 120), np.int32),), zeros=(4, 4), NewShape=[1, 120]),
    "softmax": lambda: one("SOFTMAX", (2, 7), (2, 7), "SoftmaxOptions", scales=(0.05, 1 / 256),
                           zeros=(4, -128), Beta=1.0),
    "softmax_beta": lambda: one("SOFTMAX", IMAGE, IMAGE, "SoftmaxOptions", dtype="FLOAT32",
                                Beta=0.5),
    "logistic": lambda: one("LOGISTIC", IMAGE, IMAGE, scales=(0.05, 1 / 256), zeros=(4, -128)),
    "tanh": lambda: one("TANH", (2, 7), (2, 7), scales=(0.02, 1 / 128), zeros=(4, 0)),
    "relu": lambda: one("RELU", (2, 7), (2, 7), zeros=(4, -9)),
    "relu6": lambda: one("RELU6", (2, 7), (2, 7), zeros=(4, -9)),
    "relu_n1_to_1": lambda: one("RELU_N1_TO_1", (2, 7), (2, 7), dtype="FLOAT32"),
    "leaky_relu": lambda: one("LEAKY_RELU", (2, 7), (2, 7), "LeakyReluOptions", Alpha=0.1),
    "hard_swish": lambda: one("HARD_SWISH", (2, 7), (2, 7), "HardSwishOptions"),
    "pad": lambda: one("PAD", IMAGE, (1, 9, 6, 5), "PadOptions",
                       (np.array(((0, 0), (1, 2), (0, 1), (0, 1)), np.int32),), zeros=(4, 4)),
    "mirror_pad": lambda: one("MIRROR_PAD", IMAGE, (1, 9, 6, 4), "MirrorPadOptions",
                              (np.array(((0, 0), (1, 2), (0, 1), (0, 0)), np.int32),),
                              dtype="FLOAT32", Mode=0),
    "concatenation": lambda: two("CONCATENATION", IMAGE, IMAGE, "ConcatenationOptions",
                                 (1, 6, 5, 8), Axis=3, alike=True),
    "transpose": lambda: one("TRANSPOSE", IMAGE, (1, 5, 4, 6), "TransposeOptions",
                             (np.array((0, 2, 3, 1), np.int32),), zeros=(4, 4)),
    "strided_slice": lambda: one(
        "STRIDED_SLICE", IMAGE, (1, 3, 2, 4), "StridedSliceOptions",
        tuple(np.array(v, np.int32) for v in ((0, 5, 1, 9), (1, 0, -2, 9), (1, -2, 1, 1))),
        zeros=(4, 4), BeginMask=8, EndMask=10),
    "strided_slice_shrinks": lambda: one(
        "STRIDED_SLICE", IMAGE, (1, 5, 4), "StridedSliceOptions",
        tuple(np.array(v, np.int32) for v in ((0, -2), (1, 0), (1, 1))),
        zeros=(4, 4), ShrinkAxisMask=2),
    "slice": lambda: one("SLICE", IMAGE, (1, 3, 4, 4), "SliceOptions",
                         (np.array((0, 2, 1, 0), np.int32), np.array((1, 3, -1, 4), np.int32)),
                         zeros=(4, 4)),
    "split": split,
    "split_v": lambda: split("SPLIT_V"),
    "squeeze": lambda: one("SQUEEZE", (1, 1, 5, 4), (5, 4), "SqueezeOptions", zeros=(4, 4),
                           SqueezeDims=[0, 1]),
    "expand_dims": lambda: one("EXPAND_DIMS", (5, 4), (1, 5, 4), "ExpandDimsOptions",
                               (np.array(0, np.int32),), zeros=(4, 4)),
    "quantize": lambda: one("QUANTIZE", IMAGE, IMAGE, "QuantizeOptions", scales=(0.05, 0.03)),
    "resize_bilinear": lambda: one("RESIZE_BILINEAR", IMAGE, (1, 12, 7, 4),
                                   "ResizeBilinearOptions", (np.array((12, 7), np.int32),),
                                   dtype="FLOAT32", HalfPixelCenters=True),
    "resize_bilinear_corners": lambda: one("RESIZE_BILINEAR", IMAGE, (1, 11, 9, 4),
                                           "ResizeBilinearOptions",
                                           (np.array((11, 9), np.int32),),
                                           zeros=(4, 4), AlignCorners=True),
    "resize_nearest": lambda: one("RESIZE_NEAREST_NEIGHBOR", IMAGE, (1, 12, 7, 4),
                                  "ResizeNearestNeighborOptions",
                                  (np.array((12, 7), np.int32),), zeros=(4, 4)),
    "resize_nearest_centres": lambda: one("RESIZE_NEAREST_NEIGHBOR", IMAGE, (1, 12, 7, 4),
                                          "ResizeNearestNeighborOptions",
                                          (np.array((12, 7), np.int32),), zeros=(4, 4),
                                          HalfPixelCenters=True),
    "batch_matmul": lambda: two("BATCH_MATMUL", (2, 3, 4), (2, 5, 4), "BatchMatMulOptions",
                                (2, 3, 5), AdjY=True),
    "network": network,
    **{
        kind.lower(): partial(general, kind, [((2, 7), "FLOAT32"), ((2, 7), "FLOAT32")],
                              [((2, 7), "BOOL")], f"{table}Options")
        for kind, table in {
            "LESS": "Less", "LESS_EQUAL": "LessEqual", "GREATER": "Greater",
            "GREATER_EQUAL": "GreaterEqual",
        }.items()
    },
    "equal": lambda: general(
        "EQUAL", [((430,), "INT32"), np.arange(430, dtype=np.int32) % 86 - 43],
        [((430,), "BOOL")], "EqualOptions"),
    "not_equal": lambda: general("NOT_EQUAL", [((3, 4), "BOOL"), np.array(True)],
                                 [((3, 4), "BOOL")], "NotEqualOptions"),
    "less_of_images": lambda: general(
        "LESS", [(IMAGE, "INT8", 0.05, -3), (IMAGE, "INT8", 0.05, -3)], [(IMAGE, "BOOL")],
        "LessOptions"),
    "logical_and": lambda: general("LOGICAL_AND", [(IMAGE, "BOOL"), (IMAGE, "BOOL")],
                                   [(IMAGE, "BOOL")], "LogicalAndOptions"),
    "logical_or": lambda: general("LOGICAL_OR", [((3, 4), "BOOL"), ((4,), "BOOL")],
                                  [((3, 4), "BOOL")], "LogicalOrOptions"),
    "logical_not": lambda: general("LOGICAL_NOT", [((3, 4), "BOOL")], [((3, 4), "BOOL")],
                                   "LogicalNotOptions"),
    "select": lambda: general("SELECT", [((3,), "BOOL"), ((3, 4), "FLOAT32"), ((3, 4), "FLOAT32")],
                              [((3, 4), "FLOAT32")], "SelectOptions"),
    "select_v2": lambda: general(
        "SELECT_V2", [((3, 1), "BOOL"), ((3, 4), "INT32"), ((4,), "INT32")],
        [((3, 4), "INT32")], "SelectV2Options"),
    "cast_to_integers": lambda: general("CAST", [((3, 4), "FLOAT32")], [((3, 4), "INT32")],
                                        "CastOptions"),
    "cast_to_bool": lambda: general("CAST", [((60,), "INT32")], [((60,), "FLOAT32")],
                                    "CastOptions"),
    "floor_div": lambda: general("FLOOR_DIV", [((40,), "INT32"), np.array(7, np.int32)],
                                 [((40,), "INT32")], "FloorDivOptions"),
    "floor_div_negative": lambda: general("FLOOR_DIV", [((40,), "INT32"), np.array(-9, np.int32)],
                                          [((40,), "INT32")], "FloorDivOptions"),
    "floor_div_floats": lambda: general(
        "FLOOR_DIV", [((40,), "FLOAT32"), np.array(0.3, np.float32)], [((40,), "FLOAT32")],
        "FloorDivOptions"),
    "floor_mod": lambda: general("FLOOR_MOD", [((40,), "INT32"), np.array(-9, np.int32)],
                                 [((40,), "INT32")], "FloorModOptions"),
    "floor_mod_floats": lambda: general(
        "FLOOR_MOD", [((2, 40), "FLOAT32"), np.array([[0.75], [-1.25]], np.float32)],
        [((2, 40), "FLOAT32")], "FloorModOptions"),
    "add_n": lambda: general("ADD_N", [((3, 4), "FLOAT32")] * 3, [((3, 4), "FLOAT32")],
                             "AddNOptions"),
    "relu_0_to_1": lambda: one("RELU_0_TO_1", (2, 7), (2, 7), dtype="FLOAT32"),
    "gelu": lambda: one("GELU", IMAGE, IMAGE, "GeluOptions", dtype="FLOAT32"),
    "gelu_approximate": lambda: one("GELU", IMAGE, IMAGE, "GeluOptions", dtype="FLOAT32",
                                    Approximate=True),
    "atan2": lambda: general("ATAN2", [((3, 40), "FLOAT32"), ((3, 40), "FLOAT32")],
                             [((3, 40), "FLOAT32")]),
    "bitcast": lambda: general("BITCAST", [((3, 4), "INT32")], [((3, 4), "UINT32")],
                               "BitcastOptions"),
    "bitwise_xor": lambda: general("BITWISE_XOR", [((3, 4), "INT32"), ((4,), "INT32")],
                                   [((3, 4), "INT32")], "BitwiseXorOptions"),
    "bitwise_xor_bytes": lambda: general("BITWISE_XOR", [((30,), "INT8"), ((30,), "INT8")],
                                         [((30,), "INT8")], "BitwiseXorOptions"),
    "right_shift": lambda: general(
        "RIGHT_SHIFT", [((40,), "INT32"), np.arange(-3, 37, dtype=np.int32)],
        [((40,), "INT32")], "RightShiftOptions"),
    "right_shift_bytes": lambda: general(
        "RIGHT_SHIFT", [((40,), "INT8"), np.array(2, np.int8)], [((40,), "INT8")],
        "RightShiftOptions"),
    "where": lambda: general("WHERE", [((3, 4, 2), "BOOL")], [((1, 3), "INT64")], "WhereOptions"),
    "where_floats": lambda: general("WHERE", [((9,), "FLOAT32")], [((1, 1), "INT64")],
                                    "WhereOptions"),
    "unique": lambda: general(
        "UNIQUE", [((40,), "INT32")], [((1,), "INT32"), ((40,), "INT64")], "UniqueOptions",
        IdxOutType=tflite.TensorType.INT64),
    "unique_floats": lambda: general(
        "UNIQUE", [((40,), "FLOAT32")], [((1,), "FLOAT32"), ((40,), "INT32")], "UniqueOptions",
        IdxOutType=tflite.TensorType.INT32),
    "chosen_rows": chosen_rows,
    "chosen_rows_summed": lambda: chosen_rows(True),
    "reshaped_by_values": reshaped_by_values,
    "if_then": branches,
    "if_quantised": lambda: branches(scale=0.05),
    "if_behind_a_convolution": branches_behind_a_convolution,
    "while": loop,
    "while_inner": lambda: loop(inner=True),
    "rfft2d_real": lambda: spectrum("REAL"),
    "rfft2d_imaginary": lambda: spectrum("IMAG", (5, 3), (8, 2)),
    "rfft2d_magnitude": lambda: spectrum("COMPLEX_ABS", (2, 3, 1, 16), (1, 16)),
    "lstm_step": lstm_step,
    "lstm_step_quantised": lambda: lstm_step("UINT8"),
    "broadcast_args": lambda: general(
        "BROADCAST_ARGS", [np.array([2, 1, 4], np.int32), np.array([3, 1], np.int32)],
        [((3,), "INT32")]),
    "unsorted_segment_max": lambda: general(
        "UNSORTED_SEGMENT_MAX", [((5, 3), "FLOAT32"), np.array((3, 0, -1, 0, 1), np.int32),
                                 np.array(5, np.int32)], [((5, 3), "FLOAT32")],
        "UnsortedSegmentMaxOptions"),
    "unsorted_segment_min": lambda: general(
        "UNSORTED_SEGMENT_MIN", [((5, 3), "INT32"), np.array((3, 0, 2, 0, 1), np.int32),
                                 np.array(5, np.int32)], [((5, 3), "INT32")],
        "UnsortedSegmentMinOptions"),
    **{
        f"embedding_lookup_sparse_{number}": partial(
            general, "EMBEDDING_LOOKUP_SPARSE",
            [np.array((1, 3, 0, 1), np.int32),
             np.array(((0, 0), (0, 1), (1, 0), (3, 2)), np.int32), np.array((4, 3), np.int32),
             ((4,), "FLOAT32"), ((4, 2, 3), "FLOAT32")],
            [((4, 2, 3), "FLOAT32")], "EmbeddingLookupSparseOptions", Combiner=number)
        for number in range(3)
    },
    "hashtable_lookup": lambda: general(
        "HASHTABLE_LOOKUP", [np.array((12, 7, -3), np.int32), np.array((-3, 4, 12), np.int32),
                             ((3, 2), "FLOAT32")],
        [((3, 2), "FLOAT32"), ((3,), "UINT8")]),
    "dilate": lambda: general(
        "DILATE", [((3, 1, 4), "FLOAT32"), np.array((2, 3, 3), np.int32),
                   np.array(-1.5, np.float32)], [((5, 1, 10), "FLOAT32")], "DilateOptions"),
    **{
        f"reduce_window_{number}": partial(
            general, "REDUCE_WINDOW",
            [((7, 5), "FLOAT32"), np.array(0.5, np.float32), np.array((3, 2), np.int64),
             np.array((2, 1), np.int64), np.array((1, 2), np.int64)],
            [((3, 3), "FLOAT32")], "ReduceWindowOptions", ReduceFunction=number)
        for number in range(1, 5)
    },
    "reduce_window_all": lambda: general(
        "REDUCE_WINDOW",
        [((400,), "INT32"), np.array(2, np.int32), np.array((2,), np.int64),
         np.array((1,), np.int64), np.array((1,), np.int64)],
        [((399,), "INT32")], "ReduceWindowOptions", ReduceFunction=5),
    "stablehlo_gather": lambda: general(
        "STABLEHLO_GATHER", [((4, 5, 3), "FLOAT32"), np.array(((0, 1), (9, -3)), np.int32)],
        [((2, 2, 3), "FLOAT32")], "StablehloGatherOptions", OffsetDims=[1, 2],
        CollapsedSliceDims=[0], StartIndexMap=[0, 1], IndexVectorDim=1, SliceSizes=[1, 2, 3]),
    "stablehlo_scatter": lambda: general(
        "STABLEHLO_SCATTER", [((4, 5), "FLOAT32"), np.array(((1,), (1,), (3,), (4,)), np.int32),
                              ((4, 5), "FLOAT32")],
        [((4, 5), "FLOAT32")], "StablehloScatterOptions",
        [combining("STABLEHLO_ADD", "FLOAT32")], UpdateWindowDims=[1], InsertedWindowDims=[0],
        ScatterDimsToOperandDims=[0], IndexVectorDim=1, UpdateComputationSubgraphIndex=1),
    "stablehlo_reduce_window": lambda: general(
        "STABLEHLO_REDUCE_WINDOW", [((6, 5), "FLOAT32"), np.array(-9, np.float32)],
        [((4, 3), "FLOAT32")], "StablehloReduceWindowOptions",
        [combining("STABLEHLO_MAXIMUM", "FLOAT32")], WindowDimensions=[3, 2],
        WindowStrides=[2, 2], BaseDilations=[1, 1], WindowDilations=[1, 2],
        Padding=[1, 2, 0, 2], BodySubgraphIndex=1),
    "stablehlo_pad": lambda: general(
        "STABLEHLO_PAD", [((3, 4), "FLOAT32"), np.array(0.5, np.float32)], [((6, 6), "FLOAT32")],
        "StablehloPadOptions", EdgePaddingLow=[1, -1], EdgePaddingHigh=[0, 0],
        InteriorPadding=[1, 1]),
    "stablehlo_composite": lambda: general(
        "STABLEHLO_COMPOSITE", [((2, 3), "FLOAT32"), ((2, 3), "FLOAT32")], [((2, 3), "FLOAT32")],
        "StableHLOCompositeOptions", [composed()], Name="tests.difference",
        CompositeAttributes=bytes(flexbuffers.Dumps({})),
        DecompositionSubgraphIndex=1),
    "stablehlo_shift_left": lambda: general(
        "STABLEHLO_SHIFT_LEFT", [((30,), "INT32"), np.arange(30, dtype=np.int32)],
        [((30,), "INT32")], "StablehloShiftLeftOptions"),
    "sign": lambda: one("SIGN", (2, 7), (2, 7), "SignOptions", dtype="FLOAT32"),
    "fake_quant": lambda: one("FAKE_QUANT", (2, 30), (2, 30), "FakeQuantOptions", dtype="FLOAT32",
                              Min=-1.0, Max=1.3, NumBits=4, NarrowRange=False),
    "exp": lambda: one("EXP", (2, 7), (2, 7), dtype="FLOAT32"),
    "l2_pool": lambda: one("L2_POOL_2D", IMAGE, (1, 3, 3, 4), "Pool2DOptions", dtype="FLOAT32",
                           Padding=SAME, StrideH=2, StrideW=2, FilterHeight=3, FilterWidth=3),
    "l2_normalization": lambda: one("L2_NORMALIZATION", (3, 7), (3, 7), "L2NormOptions",
                                    dtype="FLOAT32"),
    "local_response": lambda: one("LOCAL_RESPONSE_NORMALIZATION", IMAGE, IMAGE,
                                  "LocalResponseNormalizationOptions", dtype="FLOAT32", Radius=1,
                                  Bias=1.5, Alpha=0.4, Beta=0.75),
    "reduce_prod": lambda: one("REDUCE_PROD", IMAGE, (1, 6, 4), "ReducerOptions",
                               (np.array((2,), np.int32),), dtype="FLOAT32"),
    "reduce_any": lambda: one("REDUCE_ANY", (32, 2), (32,), "ReducerOptions",
                              (np.array((1,), np.int32),), dtype="BOOL"),
    "reduce_all": lambda: one("REDUCE_ALL", (8, 2), (8, 1), "ReducerOptions",
                              (np.array((-1,), np.int32),), dtype="BOOL", KeepDims=True),
    "depth_to_space": lambda: one("DEPTH_TO_SPACE", (1, 3, 2, 12), (1, 6, 4, 3),
                                  "DepthToSpaceOptions", zeros=(4, 4), BlockSize=2),
    "space_to_depth": lambda: one("SPACE_TO_DEPTH", (1, 6, 4, 3), (1, 3, 2, 12),
                                  "SpaceToDepthOptions", dtype="FLOAT32", BlockSize=2),
    "space_to_batch": lambda: one(
        "SPACE_TO_BATCH_ND", (2, 5, 6, 3), (12, 3, 2, 3), "SpaceToBatchNDOptions",
        (np.array((2, 3), np.int32), np.array(((0, 1), (0, 0)), np.int32)), dtype="FLOAT32"),
    "batch_to_space": lambda: one(
        "BATCH_TO_SPACE_ND", (12, 3, 2, 3), (2, 5, 4, 3), "BatchToSpaceNDOptions",
        (np.array((2, 3), np.int32), np.array(((1, 0), (0, 2)), np.int32)), zeros=(4, 4)),
    "dilated_by_batches": dilated_by_batches,
    "tile": lambda: one("TILE", (2, 3), (4, 9), "TileOptions", (np.array((2, 3), np.int32),),
                        dtype="FLOAT32"),
    "broadcast_to": lambda: one("BROADCAST_TO", (3, 1), (2, 3, 4), "BroadcastToOptions",
                                (np.array((2, 3, 4), np.int32),), dtype="FLOAT32"),
    "reverse": lambda: one("REVERSE_V2", (3, 4, 2), (3, 4, 2), "ReverseV2Options",
                           (np.array((1,), np.int32),), dtype="FLOAT32"),
    "reverse_sequence": lambda: one("REVERSE_SEQUENCE", (4, 5, 3), (4, 5, 3),
                                    "ReverseSequenceOptions", (np.array((2, 5, 1, 3), np.int32),),
                                    dtype="FLOAT32", SeqDim=1, BatchDim=0),
    "reverse_sequence_by_other_axes": lambda: one(
        "REVERSE_SEQUENCE", (2, 5, 3), (2, 5, 3), "ReverseSequenceOptions",
        (np.array((2, 3, 1), np.int32),), dtype="FLOAT32", SeqDim=1, BatchDim=2),
    "matrix_diag": lambda: one("MATRIX_DIAG", (2, 3), (2, 3, 3), "MatrixDiagOptions",
                               dtype="FLOAT32"),
    "matrix_set_diag": lambda: general(
        "MATRIX_SET_DIAG", [((2, 4, 3), "FLOAT32"), ((2, 3), "FLOAT32")],
        [((2, 4, 3), "FLOAT32")], "MatrixSetDiagOptions"),
    "fill": lambda: general("FILL", [np.array((2, 3), np.int32), ((), "FLOAT32")],
                            [((2, 3), "FLOAT32")], "FillOptions"),
    "mirror_pad_symmetric": lambda: one(
        "MIRROR_PAD", IMAGE, (1, 9, 6, 4), "MirrorPadOptions",
        (np.array(((0, 0), (1, 2), (0, 1), (0, 0)), np.int32),), dtype="FLOAT32", Mode=1),
    "strided_slice_ellipsis": lambda: one(
        "STRIDED_SLICE", (2, 3, 4, 5), (1, 3, 4, 2), "StridedSliceOptions",
        tuple(np.array(v, np.int32) for v in ((1, 0, 1), (2, 0, 5), (1, 1, 2))),
        dtype="FLOAT32", EllipsisMask=2),
    "strided_slice_new_axis": lambda: one(
        "STRIDED_SLICE", (3, 5), (3, 1, 2), "StridedSliceOptions",
        tuple(np.array(v, np.int32) for v in ((0, 0, 1), (3, 1, 3), (1, 1, 1))),
        dtype="FLOAT32", NewAxisMask=2),
    "gather": lambda: one("GATHER", (3, 5, 2), (3, 2, 2, 2), "GatherOptions",
                          (np.array(((4, 1), (0, 4)), np.int32),), zeros=(4, 4), Axis=1),
    "gather_batches": lambda: one("GATHER", (2, 5, 3), (2, 4, 3), "GatherOptions",
                                  (np.array(((4, 1, 0, 0), (2, 2, 3, 1)), np.int32),),
                                  dtype="FLOAT32", Axis=1, BatchDims=1),
    "gather_between": lambda: general(
        "GATHER", [((2, 3, 5, 2), "FLOAT32"), np.array(((4, 1, 0), (2, 2, 3)), np.int32)],
        [((2, 3, 3, 2), "FLOAT32")], "GatherOptions", Axis=2, BatchDims=1),
    "gather_computed": gathered_by_computed_indices,
    "gather_nd": lambda: one("GATHER_ND", (3, 4, 2), (3, 2), "GatherNdOptions",
                             (np.array(((0, 1), (2, 3), (1, 0)), np.int32),), dtype="FLOAT32"),
    "embedding_lookup": lambda: general(
        "EMBEDDING_LOOKUP", [np.array((2, 0, 2), np.int32), ((4, 3), "FLOAT32")],
        [((3, 3), "FLOAT32")]),
    "scatter_nd": lambda: general(
        "SCATTER_ND", [np.array(((1,), (3,), (1,)), np.int32), ((3, 4), "FLOAT32"),
                       np.array((5, 4), np.int32)], [((5, 4), "FLOAT32")], "ScatterNdOptions"),
    "segment_sum": lambda: one("SEGMENT_SUM", (5, 3), (3, 3), "SegmentSumOptions",
                               (np.array((0, 0, 1, 2, 2), np.int32),), dtype="FLOAT32"),
    "sparse_to_dense_computed": lambda: general(
        "SPARSE_TO_DENSE", [np.array((4, 1), np.int32), np.array((6,), np.int32),
                            ((), "INT32"), ((), "INT32")],
        [((6,), "INT32")], "SparseToDenseOptions"),
    "one_hot_computed": lambda: general(
        "ONE_HOT", [np.array((2, -1, 0), np.int32), np.array(3, np.int32), ((), "FLOAT32"),
                    ((), "FLOAT32")], [((3, 3), "FLOAT32")], "OneHotOptions", Axis=1),
    "mean_of_nothing": lambda: one("MEAN", (2, 7), (2, 7), "ReducerOptions",
                                   (np.array((), np.int32),), dtype="FLOAT32"),
    "sparse_to_dense": lambda: general(
        "SPARSE_TO_DENSE", [np.array(((0, 1), (2, 3)), np.int32), np.array((3, 4), np.int32),
                            ((2,), "FLOAT32"), np.array(0.5, np.float32)],
        [((3, 4), "FLOAT32")], "SparseToDenseOptions"),
    "one_hot": lambda: general(
        "ONE_HOT", [((30,), "INT32"), np.array(40, np.int32), np.array(2.5, np.float32),
                    np.array(-0.5, np.float32)], [((30, 40), "FLOAT32")], "OneHotOptions",
        Axis=-1),
    "one_hot_first": lambda: general(
        "ONE_HOT", [((30,), "INT32"), np.array(40, np.int32), np.array(2, np.int32),
                    np.array(-1, np.int32)], [((40, 30), "INT32")], "OneHotOptions", Axis=0),
    "top_k": lambda: general("TOPK_V2", [((3, 9), "FLOAT32"), np.array(4, np.int32)],
                             [((3, 4), "FLOAT32"), ((3, 4), "INT32")], "TopKV2Options"),
    "arg_max": lambda: general("ARG_MAX", [(IMAGE, "INT8", 0.05, -3), np.array(-1, np.int32)],
                               [((1, 6, 5), "INT32")], "ArgMaxOptions",
                               OutputType=tflite.TensorType.INT32),
    "arg_min": lambda: general("ARG_MIN", [((5, 7), "FLOAT32"), np.array(0, np.int32)],
                               [((7,), "INT64")], "ArgMinOptions",
                               OutputType=tflite.TensorType.INT64),
    "cumsum": lambda: one("CUMSUM", (3, 5), (3, 5), "CumsumOptions", (np.array(1, np.int32),),
                          dtype="FLOAT32", Exclusive=True, Reverse=True),
    "bucketize": lambda: general("BUCKETIZE", [((3, 9), "FLOAT32")], [((3, 9), "INT32")],
                                 "BucketizeOptions", Boundaries=[-2.0, -0.5, 0.25, 1.0]),
    "dynamic_update_slice": lambda: general(
        "DYNAMIC_UPDATE_SLICE", [((4, 5), "FLOAT32"), ((2, 3), "FLOAT32"),
                                 np.array((3, 1), np.int32)], [((4, 5), "FLOAT32")],
        "DynamicUpdateSliceOptions"),
    "non_max_suppression": lambda: general(
        "NON_MAX_SUPPRESSION_V4",
        [((9, 4), "FLOAT32"), ((9,), "FLOAT32"), np.array(6, np.int32),
         np.array(0.2, np.float32), np.array(-0.5, np.float32)],
        [((6,), "INT32"), ((), "INT32")], "NonMaxSuppressionV4Options"),
    "non_max_suppression_scores": lambda: general(
        "NON_MAX_SUPPRESSION_V5",
        [((9, 4), "FLOAT32"), ((9,), "FLOAT32"), np.array(6, np.int32),
         np.array(0.2, np.float32), np.array(-0.5, np.float32), np.array(0.0, np.float32)],
        [((6,), "INT32"), ((6,), "FLOAT32"), ((), "INT32")], "NonMaxSuppressionV5Options"),
    "range": lambda: general("RANGE", [np.array(2, np.int32), np.array(9, np.int32),
                                       np.array(3, np.int32)], [((3,), "INT32")], "RangeOptions"),
    "conv_3d": lambda: general(
        "CONV_3D", [((1, 5, 6, 7, 2), "FLOAT32"), _weights("v", 3, 2, 3, 2, 4).astype(np.float32),
                    _numbers("vb", (4,)).astype(np.float32)],
        [((1, 3, 3, 4, 4), "FLOAT32")], "Conv3DOptions", Padding=SAME, StrideD=2, StrideH=2,
        StrideW=2, DilationDFactor=1, DilationHFactor=1, DilationWFactor=1,
        FusedActivationFunction=RELU),
    "conv_3d_transpose": lambda: general(
        "CONV_3D_TRANSPOSE",
        [np.array((1, 4, 6, 6, 3), np.int32), _weights("vt", 2, 3, 3, 3, 2).astype(np.float32),
         ((1, 2, 3, 3, 2), "FLOAT32")],
        [((1, 4, 6, 6, 3), "FLOAT32")], "Conv3DOptions", Padding=SAME, StrideD=2, StrideH=2,
        StrideW=2, DilationDFactor=1, DilationHFactor=1, DilationWFactor=1),
}  # fmt: skip


def _ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def _int(value: int) -> NDArray[np.int32]:
    return np.array(value, np.int32)


EDGES: dict[str, Callable[[], bytes]] = {
    "edge_add_scalar": lambda: general(
        "ADD", [((), "FLOAT32"), ((), "FLOAT32")], [((), "FLOAT32")], "AddOptions"
    ),
    "edge_add_empty": lambda: general(
        "ADD", [((0, 3), "FLOAT32"), ((1, 3), "FLOAT32")], [((0, 3), "FLOAT32")], "AddOptions"
    ),
    "edge_add_int_relu6": lambda: general(
        "ADD",
        [((9,), "INT32"), ((9,), "INT32")],
        [((9,), "INT32")],
        "AddOptions",
        FusedActivationFunction=3,
    ),
    "edge_add_int_relu": lambda: general(
        "ADD",
        [((9,), "INT64"), ((9,), "INT64")],
        [((9,), "INT64")],
        "AddOptions",
        FusedActivationFunction=1,
    ),
    "edge_transpose_empty": lambda: general(
        "TRANSPOSE", [((0, 3), "FLOAT32"), _ints(1, 0)], [((3, 0), "FLOAT32")], "TransposeOptions"
    ),
    "edge_reshape_scalar": lambda: general(
        "RESHAPE", [((1, 1), "FLOAT32"), _ints()], [((), "FLOAT32")], "ReshapeOptions"
    ),
    "edge_reshape_empty": lambda: general(
        "RESHAPE", [((0, 3), "FLOAT32"), _ints(3, 0)], [((3, 0), "FLOAT32")], "ReshapeOptions"
    ),
    "edge_squeeze_all": lambda: general(
        "SQUEEZE", [((1, 1), "FLOAT32")], [((), "FLOAT32")], "SqueezeOptions"
    ),
    "edge_squeeze_neg": lambda: general(
        "SQUEEZE",
        [((3, 1), "FLOAT32")],
        [((3,), "FLOAT32")],
        "SqueezeOptions",
        SqueezeDims=[-1],
    ),
    "edge_expand_scalar": lambda: general(
        "EXPAND_DIMS", [((), "FLOAT32"), _int(-1)], [((1,), "FLOAT32")], "ExpandDimsOptions"
    ),
    "edge_concat_empty": lambda: general(
        "CONCATENATION",
        [((0, 3), "FLOAT32"), ((2, 3), "FLOAT32")],
        [((2, 3), "FLOAT32")],
        "ConcatenationOptions",
        Axis=-2,
    ),
    "edge_slice_empty": lambda: general(
        "SLICE",
        [((4, 3), "FLOAT32"), _ints(2, 0), _ints(0, 3)],
        [((0, 3), "FLOAT32")],
        "SliceOptions",
    ),
    "edge_strided_empty": lambda: general(
        "STRIDED_SLICE",
        [((4, 3), "FLOAT32"), _ints(2, 0), _ints(2, 3), _ints(1, 1)],
        [((0, 3), "FLOAT32")],
        "StridedSliceOptions",
    ),
    "edge_strided_neg_shrink": lambda: general(
        "STRIDED_SLICE",
        [((4, 3), "FLOAT32"), _ints(-1, -3), _ints(0, 3), _ints(1, 2)],
        [((2,), "FLOAT32")],
        "StridedSliceOptions",
        ShrinkAxisMask=1,
    ),
    "edge_strided_beyond": lambda: general(
        "STRIDED_SLICE",
        [((4, 3), "FLOAT32"), _ints(-9, -9), _ints(9, 9), _ints(1, 2)],
        [((4, 2), "FLOAT32")],
        "StridedSliceOptions",
    ),
    "edge_strided_back": lambda: general(
        "STRIDED_SLICE",
        [((4,), "FLOAT32"), _ints(9), _ints(-9), _ints(-3)],
        [((2,), "FLOAT32")],
        "StridedSliceOptions",
    ),
    "edge_strided_offset": lambda: general(
        "STRIDED_SLICE",
        [((6,), "FLOAT32"), _ints(2), _ints(3), _ints(1)],
        [((3,), "FLOAT32")],
        "StridedSliceOptions",
        Offset=True,
    ),
    "edge_sum_empty": lambda: general(
        "SUM", [((0, 3), "FLOAT32"), _ints(0)], [((3,), "FLOAT32")], "ReducerOptions"
    ),
    "edge_sum_scalar_axis": lambda: general(
        "SUM", [((2, 3), "FLOAT32"), _int(-1)], [((2,), "FLOAT32")], "ReducerOptions"
    ),
    "edge_sum_dup_axes": lambda: general(
        "SUM", [((2, 3), "FLOAT32"), _ints(-1, 1)], [((2,), "FLOAT32")], "ReducerOptions"
    ),
    "edge_sum_of_scalar": lambda: general(
        "SUM", [((), "FLOAT32"), _ints()], [((), "FLOAT32")], "ReducerOptions"
    ),
    "edge_mean_int": lambda: general(
        "MEAN", [((2, 3), "INT32"), _int(1)], [((2,), "INT32")], "ReducerOptions"
    ),
    "edge_max_empty": lambda: general(
        "REDUCE_MAX", [((0, 3), "FLOAT32"), _ints(0)], [((3,), "FLOAT32")], "ReducerOptions"
    ),
    "edge_min_empty_int": lambda: general(
        "REDUCE_MIN", [((0, 3), "INT32"), _ints(0)], [((3,), "INT32")], "ReducerOptions"
    ),
    "edge_prod_empty": lambda: general(
        "REDUCE_PROD", [((0, 3), "FLOAT32"), _ints(0)], [((3,), "FLOAT32")], "ReducerOptions"
    ),
    "edge_all_empty": lambda: general(
        "REDUCE_ALL", [((0, 3), "BOOL"), _ints(0)], [((3,), "BOOL")], "ReducerOptions"
    ),
    "edge_any_empty": lambda: general(
        "REDUCE_ANY", [((0, 3), "BOOL"), _ints(0)], [((3,), "BOOL")], "ReducerOptions"
    ),
    "edge_gather_none": lambda: general(
        "GATHER", [((4, 3), "FLOAT32"), _ints()], [((0, 3), "FLOAT32")], "GatherOptions"
    ),
    "edge_gather_scalar": lambda: general(
        "GATHER", [((4, 3), "FLOAT32"), _int(2)], [((3,), "FLOAT32")], "GatherOptions"
    ),
    "edge_gather_scalar_axis_1": lambda: general(
        "GATHER",
        [((4, 3), "FLOAT32"), _int(2)],
        [((4,), "FLOAT32")],
        "GatherOptions",
        Axis=-1,
    ),
    "edge_gather_batch_all": lambda: general(
        "GATHER",
        [((2, 3), "FLOAT32"), np.array([[0, 2], [1, 1]], np.int32)],
        [((2, 2), "FLOAT32")],
        "GatherOptions",
        Axis=-1,
        BatchDims=-1,
    ),
    "edge_gather_batch_vec": lambda: general(
        "GATHER",
        [((2, 3), "FLOAT32"), np.array([0, 2], np.int32)],
        [((2,), "FLOAT32")],
        "GatherOptions",
        Axis=1,
        BatchDims=1,
    ),
    "edge_gather_nd_one": lambda: general(
        "GATHER_ND", [((2, 3), "FLOAT32"), _ints(1, 2)], [((), "FLOAT32")], "GatherNdOptions"
    ),
    "edge_scatter_nd_scalar_rows": lambda: general(
        "SCATTER_ND",
        [np.array([[2], [0]], np.int32), ((2,), "FLOAT32"), _ints(4)],
        [((4,), "FLOAT32")],
        "ScatterNdOptions",
    ),
    "edge_softmax_1d": lambda: general(
        "SOFTMAX", [((5,), "FLOAT32")], [((5,), "FLOAT32")], "SoftmaxOptions", Beta=2.0
    ),
    "edge_softmax_3d": lambda: general(
        "SOFTMAX",
        [((2, 3, 5), "FLOAT32")],
        [((2, 3, 5), "FLOAT32")],
        "SoftmaxOptions",
        Beta=1.0,
    ),
    "edge_split_zero": lambda: general(
        "SPLIT_V",
        [((4,), "FLOAT32"), _ints(0, 4), _int(0)],
        [((0,), "FLOAT32"), ((4,), "FLOAT32")],
        "SplitVOptions",
        NumSplits=2,
    ),
    "edge_split_1": lambda: general(
        "SPLIT_V",
        [((4,), "FLOAT32"), _ints(1, -1), _int(-1)],
        [((1,), "FLOAT32"), ((3,), "FLOAT32")],
        "SplitVOptions",
        NumSplits=2,
    ),
    "edge_pad_scalar_less": lambda: general(
        "PAD",
        [((0, 2), "FLOAT32"), np.array([[1, 1], [0, 0]], np.int32)],
        [((2, 2), "FLOAT32")],
        "PadOptions",
    ),
    "edge_pad_5d": lambda: general(
        "PAD",
        [
            ((1, 1, 2, 1, 2), "FLOAT32"),
            np.array([[0, 0], [1, 0], [0, 0], [0, 1], [1, 1]], np.int32),
        ],
        [((1, 2, 2, 2, 4), "FLOAT32")],
        "PadOptions",
    ),
    "edge_pack_scalar": lambda: general(
        "PACK",
        [((), "FLOAT32"), ((), "FLOAT32")],
        [((2,), "FLOAT32")],
        "PackOptions",
        Axis=0,
        ValuesCount=2,
    ),
    "edge_pack_1": lambda: general(
        "PACK",
        [((3,), "FLOAT32"), ((3,), "FLOAT32")],
        [((3, 2), "FLOAT32")],
        "PackOptions",
        Axis=-1,
        ValuesCount=2,
    ),
    "edge_unpack_1d": lambda: general(
        "UNPACK",
        [((2,), "FLOAT32")],
        [((), "FLOAT32"), ((), "FLOAT32")],
        "UnpackOptions",
        Num=2,
        Axis=0,
    ),
    "edge_one_hot_scalar": lambda: general(
        "ONE_HOT",
        [((), "INT32"), _int(100), np.array(1, np.float32), np.array(0, np.float32)],
        [((100,), "FLOAT32")],
        "OneHotOptions",
        Axis=-1,
    ),
    "edge_one_hot_middle": lambda: general(
        "ONE_HOT",
        [((2, 3), "INT32"), _int(4), np.array(1, np.float32), np.array(0, np.float32)],
        [((2, 4, 3), "FLOAT32")],
        "OneHotOptions",
        Axis=1,
    ),
    "edge_topk_all": lambda: general(
        "TOPK_V2",
        [((4,), "FLOAT32"), _int(4)],
        [((4,), "FLOAT32"), ((4,), "INT32")],
        "TopKV2Options",
    ),
    "edge_topk_0": lambda: general(
        "TOPK_V2",
        [((4,), "FLOAT32"), _int(0)],
        [((0,), "FLOAT32"), ((0,), "INT32")],
        "TopKV2Options",
    ),
    "edge_cumsum": lambda: general(
        "CUMSUM",
        [((2, 4), "FLOAT32"), _int(-2)],
        [((2, 4), "FLOAT32")],
        "CumsumOptions",
        Exclusive=True,
    ),
    "edge_reverse_neg": lambda: general(
        "REVERSE_V2", [((2, 4), "FLOAT32"), _ints(-1)], [((2, 4), "FLOAT32")], "ReverseV2Options"
    ),
    "edge_fill_scalar": lambda: general(
        "FILL", [_ints(), ((), "FLOAT32")], [((), "FLOAT32")], "FillOptions"
    ),
    "edge_broadcast_scalar": lambda: general(
        "BROADCAST_TO", [((), "FLOAT32"), _ints(2, 2)], [((2, 2), "FLOAT32")], "BroadcastToOptions"
    ),
    "edge_broadcast_args_empty": lambda: general(
        "BROADCAST_ARGS", [_ints(), _ints(2, 3)], [((2,), "INT32")], ""
    ),
    "edge_broadcast_args_computed": lambda: general(
        "BROADCAST_ARGS", [((0,), "INT32"), ((2,), "INT32")], [((2,), "INT32")], ""
    ),
    "edge_batch_matmul_bcast": lambda: general(
        "BATCH_MATMUL",
        [((2, 1, 3, 4), "FLOAT32"), ((5, 4, 2), "FLOAT32")],
        [((2, 5, 3, 2), "FLOAT32")],
        "BatchMatMulOptions",
    ),
    "edge_batch_matmul_adj": lambda: general(
        "BATCH_MATMUL",
        [((2, 4, 3), "FLOAT32"), ((2, 2, 4), "FLOAT32")],
        [((2, 3, 2), "FLOAT32")],
        "BatchMatMulOptions",
        AdjX=True,
        AdjY=True,
    ),
    "edge_fc_3d_keep_relu": lambda: general(
        "FULLY_CONNECTED",
        [((2, 3, 4), "FLOAT32"), np.arange(8, dtype=np.float32).reshape(2, 4), None],
        [((2, 3, 2), "FLOAT32")],
        "FullyConnectedOptions",
        KeepNumDims=True,
        FusedActivationFunction=1,
    ),
    "edge_fc_computed_w": lambda: general(
        "FULLY_CONNECTED",
        [((2, 4), "FLOAT32"), ((3, 4), "FLOAT32"), ((3,), "FLOAT32")],
        [((2, 3), "FLOAT32")],
        "FullyConnectedOptions",
        FusedActivationFunction=3,
    ),
    "edge_matrix_diag_1d": lambda: general(
        "MATRIX_DIAG", [((3,), "FLOAT32")], [((3, 3), "FLOAT32")], "MatrixDiagOptions"
    ),
    "edge_set_diag_wide": lambda: general(
        "MATRIX_SET_DIAG",
        [((2, 5), "FLOAT32"), ((2,), "FLOAT32")],
        [((2, 5), "FLOAT32")],
        "MatrixSetDiagOptions",
    ),
    "edge_segment_one": lambda: general(
        "SEGMENT_SUM", [((3,), "FLOAT32"), _ints(0, 0, 0)], [((1,), "FLOAT32")], "SegmentSumOptions"
    ),
    "edge_unsorted_gap_max": lambda: general(
        "UNSORTED_SEGMENT_MAX",
        [((3, 2), "FLOAT32"), _ints(0, 2, 2), _int(4)],
        [((4, 2), "FLOAT32")],
        "UnsortedSegmentMaxOptions",
    ),
    "edge_sparse_scalar_idx": lambda: general(
        "SPARSE_TO_DENSE",
        [_int(3), _ints(5), ((), "FLOAT32"), np.array(1, np.float32)],
        [((5,), "FLOAT32")],
        "SparseToDenseOptions",
    ),
    "edge_l2pool_relu": lambda: general(
        "L2_POOL_2D",
        [((1, 4, 4, 2), "FLOAT32")],
        [((1, 2, 2, 2), "FLOAT32")],
        "Pool2DOptions",
        Padding=1,
        StrideH=2,
        StrideW=2,
        FilterHeight=2,
        FilterWidth=2,
        FusedActivationFunction=3,
    ),
    "edge_conv3d_noact_nobias": lambda: general(
        "CONV_3D",
        [((1, 3, 3, 3, 2), "FLOAT32"), np.ones((2, 2, 2, 2, 3), np.float32)],
        [((1, 2, 2, 2, 3), "FLOAT32")],
        "Conv3DOptions",
        Padding=1,
        StrideD=1,
        StrideH=1,
        StrideW=1,
        DilationDFactor=1,
        DilationHFactor=1,
        DilationWFactor=1,
    ),
    "edge_tconv_bias_act": lambda: general(
        "TRANSPOSE_CONV",
        [
            _ints(1, 7, 7, 3),
            np.ones((3, 3, 3, 2), np.float32),
            ((1, 3, 3, 2), "FLOAT32"),
            np.array([1, -1, 2], np.float32),
        ],
        [((1, 7, 7, 3), "FLOAT32")],
        "TransposeConvOptions",
        Padding=1,
        StrideH=2,
        StrideW=2,
        FusedActivationFunction=1,
    ),
    "edge_depthwise_dil": lambda: general(
        "DEPTHWISE_CONV_2D",
        [((1, 7, 7, 2), "FLOAT32"), np.ones((1, 3, 3, 4), np.float32), np.ones(4, np.float32)],
        [((1, 7, 7, 4), "FLOAT32")],
        "DepthwiseConv2DOptions",
        Padding=0,
        StrideH=1,
        StrideW=1,
        DepthMultiplier=2,
        DilationHFactor=2,
        DilationWFactor=2,
        FusedActivationFunction=3,
    ),
    "edge_select_scalar": lambda: general(
        "SELECT_V2",
        [((), "BOOL"), ((2, 3), "FLOAT32"), ((2, 3), "FLOAT32")],
        [((2, 3), "FLOAT32")],
        "SelectV2Options",
    ),
    "edge_select_scalar_cond": lambda: general(
        "SELECT",
        [((), "BOOL"), ((2, 3), "FLOAT32"), ((2, 3), "FLOAT32")],
        [((2, 3), "FLOAT32")],
        "SelectOptions",
    ),
    "edge_dus_big_start": lambda: general(
        "DYNAMIC_UPDATE_SLICE",
        [((4,), "FLOAT32"), ((2,), "FLOAT32"), ((1,), "INT32")],
        [((4,), "FLOAT32")],
        "DynamicUpdateSliceOptions",
    ),
    "edge_dus_scalar": lambda: general(
        "DYNAMIC_UPDATE_SLICE",
        [((), "FLOAT32"), ((), "FLOAT32"), _ints()],
        [((), "FLOAT32")],
        "DynamicUpdateSliceOptions",
    ),
    "edge_resize_corners_1": lambda: general(
        "RESIZE_BILINEAR",
        [((1, 7, 7, 2), "FLOAT32"), _ints(1, 1)],
        [((1, 1, 1, 2), "FLOAT32")],
        "ResizeBilinearOptions",
        AlignCorners=True,
    ),
    "edge_resize_nn_corners": lambda: general(
        "RESIZE_NEAREST_NEIGHBOR",
        [((1, 4, 4, 2), "FLOAT32"), _ints(7, 3)],
        [((1, 7, 3, 2), "FLOAT32")],
        "ResizeNearestNeighborOptions",
        AlignCorners=True,
    ),
    "edge_nms_none": lambda: general(
        "NON_MAX_SUPPRESSION_V4",
        [
            ((0, 4), "FLOAT32"),
            ((0,), "FLOAT32"),
            _int(3),
            np.array(0.5, np.float32),
            np.array(0, np.float32),
        ],
        [((3,), "INT32"), ((), "INT32")],
        "NonMaxSuppressionV4Options",
    ),
}
"""Edge cases: scalars, empty tensors, negative axes, omitted options, and fused activations of
several data types."""
CASES |= EDGES


def _quantised(dtype: str) -> dict[str, Callable[[], bytes]]:
    """Return operators of one quantised data type, with every fused activation they support."""
    x, other, y = {
        "INT8": ((0.05, -3), (0.03, 7), (0.06, 2)),
        "UINT8": ((0.05, 120), (0.03, 130), (0.06, 126)),
        "INT16": ((0.001, 0), (0.002, 0), (0.003, 0)),
    }[dtype]
    wide, shape, image = dtype == "INT16", (2, 3, 4, 2), (1, 5, 5, 4)
    numbers, last = dtype.lower(), (1, 5, 5, 3)
    weights = _weights("q", 3, 2, 2, 4)
    scales = _spread(3, 0.01)

    def bias(scale: Any) -> Stored:
        values = np.array([100, -200, 5], np.int64 if wide else np.int32)
        return Stored(values, np.float32(x[0]) * scale)

    one: dict[str, Any] = {"Padding": SAME, "StrideH": 1, "StrideW": 1}
    cases: dict[str, Callable[[], bytes]] = {}
    for number, name in ((0, "none"), (RELU, "relu"), (RELU6, "relu6")):
        fused = {"FusedActivationFunction": number}
        for kind in ("ADD", "SUB", "MUL"):
            cases[f"{kind.lower()}_{name}"] = partial(
                general, kind, [(shape, dtype, *x), ((1, 4, 1), dtype, *other)],
                [(shape, dtype, *y)], f"{kind.title()}Options",
                **fused, **({} if kind == "MUL" else {"PotScaleInt16": False}),
            )  # fmt: skip
        for kind in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
            cases[f"{kind.lower()}_{name}"] = partial(
                general, kind, [(image, dtype, *x)], [((1, 3, 3, 4), dtype, *x)], "Pool2DOptions",
                Padding=SAME, StrideH=2, StrideW=2, FilterHeight=2, FilterWidth=3, **fused,
            )  # fmt: skip
        if dtype == "UINT8":
            continue  # the runtime combines int8 weights only with int8 or int16 data
        cases |= {
            f"conv_{name}": partial(
                general, "CONV_2D", [(image, dtype, *x), Stored(weights, scales), bias(scales)],
                [(last, dtype, *y)], "Conv2DOptions", **one, **fused),
            f"depthwise_{name}": partial(
                general, "DEPTHWISE_CONV_2D",
                [((1, 5, 5, 3), dtype, *x), Stored(weights[:1, :, :, :3].copy(), scales, 0, 3),
                 bias(scales)],
                [(last, dtype, *y)], "DepthwiseConv2DOptions", DepthMultiplier=1, **one, **fused),
            f"dense_{name}": partial(
                general, "FULLY_CONNECTED",
                [((3, 16), dtype, *x), Stored(weights.reshape(3, 16), 0.01),
                 bias(np.float32(0.01))],
                [((3, 3), dtype, *y)], "FullyConnectedOptions", **fused),
            f"transposed_conv_{name}": partial(
                general, "TRANSPOSE_CONV",
                [np.array((1, 10, 10, 3), np.int32), Stored(weights, scales),
                 (image, dtype, *x), bias(scales)],
                [((1, 10, 10, 3), dtype, *y)], "TransposeConvOptions", Padding=SAME, StrideH=2,
                StrideW=2, **fused),
        }  # fmt: skip
    for kind, options, values, result in (
        ("LEAKY_RELU", "LeakyReluOptions", {"Alpha": 0.2}, y), ("RELU", "", {}, y),
        ("GELU", "GeluOptions", {}, y), ("ABS", "", {}, y),
        ("TRANSPOSE", "", {}, x), ("QUANTIZE", "", {}, y),
        ("MEAN", "ReducerOptions", {"KeepDims": True}, y),
        ("REDUCE_MAX", "ReducerOptions", {"KeepDims": True}, x),
    ):  # fmt: skip
        if dtype == "UINT8" and kind == "ABS":
            continue  # which the runtime does not have
        more = {
            "TRANSPOSE": [np.array((1, 0, 2, 3), np.int32)],
            "MEAN": [np.array((-1, 1), np.int32)], "REDUCE_MAX": [np.array(-2, np.int32)],
        }.get(kind, [])  # fmt: skip
        sizes = {
            "TRANSPOSE": (3, 2, 4, 2), "MEAN": (2, 1, 4, 1), "REDUCE_MAX": (2, 3, 1, 2),
        }.get(kind, shape)  # fmt: skip
        cases[kind.lower()] = partial(
            general, kind, [(shape, dtype, *x), *more], [(sizes, dtype, *result)], options,
            **values,
        )  # fmt: skip
    for kind in ("MAXIMUM", "MINIMUM"):
        cases[kind.lower()] = partial(
            general, kind, [(shape, dtype, *x), ((1, 4, 1), dtype, *x)], [(shape, dtype, *x)],
            "MaximumMinimumOptions",
        )  # fmt: skip
    cases["padv2"] = partial(
        general, "PADV2",
        [(shape, dtype, *x), np.array(((0, 0), (1, 2), (0, 1), (1, 0)), np.int32),
         Stored(np.array(9, numbers), *x)],
        [((2, 6, 5, 3), dtype, *x)], "PadV2Options",
    )  # fmt: skip
    if dtype == "INT8":
        cases["batch_matmul"] = partial(
            general, "BATCH_MATMUL", [((2, 3, 4), dtype, *x), ((4, 5), dtype, *other)],
            [((2, 3, 5), dtype, 0.5, 0)], "BatchMatMulOptions",
        )  # fmt: skip
    return {f"{numbers}_{name}": case for name, case in cases.items()}


for _dtype in ("INT8", "UINT8", "INT16"):
    CASES |= _quantised(_dtype)


def inputs_of(name: str, details: list[tuple[str, tuple[int, ...], str]]) -> dict[str, Any]:
    """Return reproducible arrays for the inputs (name, shape, NumPy dtype) of a case."""
    made = {}
    for tensor, shape, dtype in details:
        numbers = _numbers(f"{name}/{tensor}", shape, -128, 128)
        if dtype == "float32":
            made[tensor] = np.asarray(numbers / 32, np.float32)
        elif dtype == "bool":
            made[tensor] = np.asarray(numbers > 0)
        elif dtype == "int16":
            made[tensor] = np.asarray(numbers * 200, dtype)
        elif dtype in ("int32", "int64"):
            made[tensor] = np.asarray(numbers // 3, dtype)  # small, and some equal
        else:
            made[tensor] = (numbers + 128 * (dtype == "uint8")).astype(dtype)
    return made


def run(content: bytes, name: str, **options: Any) -> dict[str, NDArray[Any]]:
    """Run a case in the TensorFlow Lite runtime and return its outputs."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content, **options)
    interpreter.allocate_tensors()
    details = interpreter.get_input_details()
    arrays = inputs_of(
        name, [(d["name"], tuple(d["shape"]), np.dtype(d["dtype"]).name) for d in details]
    )
    for d in details:
        interpreter.set_tensor(d["index"], arrays[d["name"]])
    interpreter.invoke()
    return {d["name"]: interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()}


if __name__ == "__main__":
    recorded = {
        f"{case}/{name}": values
        for case, content in CASES.items()
        for name, values in run(content(), case).items()
    }
    for sample in range(SAMPLES):
        outputs = run(KEYWORDS.read_bytes(), f"keywords{sample}")
        recorded[f"keywords{sample}/Identity"] = outputs["Identity"]
    np.savez_compressed(RECORDED, **recorded)
    print(len(CASES), "cases in", RECORDED.stat().st_size, "bytes")
