"""Compares imported StableHLO operators of TensorFlow Lite files with numpy.

The TensorFlow Lite runtime, whose recorded outputs serve in other tests, runs few of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from tflite_files import combining, composed, general, loop

from tilewright.networks.errors import UnsupportedOperatorError
from tilewright.networks.tflite.convert import read_tflite

FLOATS = ((2, 3), "FLOAT32")
LOW, HIGH = np.float32(-0.5), np.float32(0.5)
Case = tuple[list[Any], Any, Callable[..., NDArray[Any]], str, dict[str, Any]]
INTEGERS = ((2, 3), "INT32")


def shifted(x: NDArray[Any], bits: NDArray[Any]) -> NDArray[Any]:
    wide = x.astype(object) * 2 ** bits.astype(object)
    size = 8 * x.dtype.itemsize
    return ((wide + 2 ** (size - 1)) % 2**size - 2 ** (size - 1)).astype(x.dtype)


def gathered(
    data: NDArray[Any], indices: NDArray[Any], offsets: list[int], collapsed: list[int],
    starts: list[int], vector_axis: int, sizes: list[int],
) -> NDArray[Any]:  # fmt: skip
    """Compute StableHLO's gather from its specification, element by element."""
    vectors = np.moveaxis(indices, vector_axis, -1) if vector_axis < indices.ndim else (
        indices[..., None])  # fmt: skip
    stay = [axis for axis in range(data.ndim) if axis not in collapsed]
    batch, slices = vectors.shape[:-1], [sizes[axis] for axis in stay]
    total = len(batch) + len(slices)
    batched = [axis for axis in range(total) if axis not in offsets]
    shape = np.zeros(total, int)
    shape[batched], shape[offsets] = batch, slices
    result = np.zeros(shape, data.dtype)
    for at in np.ndindex(*shape):
        vector = vectors[tuple(at[axis] for axis in batched)]
        place = np.zeros(data.ndim, int)
        for number, axis in zip(vector, starts, strict=True):
            place[axis] = min(max(number, 0), data.shape[axis] - sizes[axis])
        place[stay] += np.array([at[axis] for axis in offsets], int)
        result[at] = data[tuple(place)]
    return result


def scattered(
    data: NDArray[Any], indices: NDArray[Any], updates: NDArray[Any], windows: list[int],
    inserted: list[int], axes: list[int], function: Callable[[Any, Any], Any],
) -> NDArray[Any]:  # fmt: skip
    """Compute StableHLO's scatter from its specification. Index vectors are on the last axis."""
    result = data.copy()
    stay = [axis for axis in range(data.ndim) if axis not in inserted]
    for at in np.ndindex(*updates.shape):
        vector = indices[tuple(at[axis] for axis in range(updates.ndim) if axis not in windows)]
        place = np.zeros(data.ndim, int)
        place[axes] = vector
        place[stay] += [at[axis] for axis in windows]
        if all(0 <= p < size for p, size in zip(place, data.shape, strict=True)):
            result[tuple(place)] = function(result[tuple(place)], updates[at])
    return result


def convolved(
    x: NDArray[Any], w: NDArray[Any], stride: int, base: int, dilation: int, low: int, high: int,
    groups: int,
) -> NDArray[Any]:  # fmt: skip
    """Convolve x (n, length, c) with w (taps, c / groups, o), one tap at a time."""
    n, length, c = x.shape
    taps, _, o = w.shape
    span = (length - 1) * base + 1
    wide = np.zeros((n, span + max(low, 0) + max(high, 0), c))
    wide[:, max(low, 0) : max(low, 0) + span : base] = x
    wide = wide[:, max(-low, 0) : wide.shape[1] - max(-high, 0)]
    count = (wide.shape[1] - dilation * (taps - 1) - 1) // stride + 1
    result = np.zeros((n, count, o))
    for group in range(groups):
        own, made = slice(group * c // groups, (group + 1) * c // groups), slice(
            group * o // groups, (group + 1) * o // groups)  # fmt: skip
        for step in range(count):
            for tap in range(taps):
                result[:, step, made] += wide[:, step * stride + tap * dilation, own] @ w[tap][
                    :, made]  # fmt: skip
    return result


def windowed(x: NDArray[Any]) -> NDArray[Any]:
    """Sum windows of two elements, two apart, over dilated and padded data."""
    wide = np.zeros(2 * (len(x) - 1) + 1 + 3) + 0.5
    wide[1 : 1 + 2 * len(x) : 2] = x
    return np.array([0.5 + wide[i] + wide[i + 2] for i in range(0, len(wide) - 2, 3)])


def convolution(
    x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], *, stride: int = 1, base: int = 1,
    dilation: int = 1, pads: tuple[int, int] = (0, 0), groups: int = 1, reversal: bool = False,
) -> Case:  # fmt: skip
    """Return a 1-D convolution with constant weights."""
    weights = np.random.default_rng(1).standard_normal(w).astype(np.float32)
    turned = weights[::-1] if reversal else weights
    return (
        [(x, "FLOAT32"), weights], (y, "FLOAT32"),
        lambda data: convolved(data, turned, stride, base, dilation, *pads, groups),
        "StablehloConvolutionOptions",
        {"WindowStrides": [stride], "Padding": list(pads), "LhsDilation": [base],
         "RhsDilation": [dilation], "WindowReversal": [reversal], "InputBatchDimension": 0,
         "InputFeatureDimension": 2, "InputSpatialDimensions": [1],
         "KernelInputFeatureDimension": 1, "KernelOutputFeatureDimension": 2,
         "KernelSpatialDimensions": [0], "OutputBatchDimension": 0, "OutputFeatureDimension": 2,
         "OutputSpatialDimensions": [1], "FeatureGroupCount": groups, "BatchGroupCount": 1},
    )  # fmt: skip


def reduction(kind: str, function: Callable[..., Any], dtype: str = "FLOAT32") -> Case:
    start = {"FLOAT32": np.float32(0.5), "INT32": np.int32(2), "BOOL": np.bool_(False)}[dtype]
    return (
        [((3, 4, 2), dtype), start], ((4,), dtype),
        lambda x: function(function.reduce(x, (0, 2)), start), "StablehloReduceOptions",
        {"Dimensions": [0, 2], "BodySubgraphIndex": 1,
         "graphs": [combining(f"STABLEHLO_{kind}", dtype)]},
    )  # fmt: skip


UNARY: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "LOGISTIC": lambda x: 1 / (1 + np.exp(-x)), "ABS": np.abs, "COSINE": np.cos,
    "EXPONENTIAL": np.exp, "FLOOR": np.floor, "NEGATE": np.negative, "TANH": np.tanh,
}  # fmt: skip
BINARY: dict[str, Callable[..., NDArray[Any]]] = {
    "ADD": np.add, "SUBTRACT": np.subtract, "MULTIPLY": np.multiply, "DIVIDE": np.divide,
    "MAXIMUM": np.maximum, "MINIMUM": np.minimum, "REMAINDER": np.fmod,
}  # fmt: skip
COMPARISONS = (np.equal, np.not_equal, np.greater_equal, np.greater, np.less_equal, np.less)
CASES: dict[str, Case] = {
    **{kind: ([FLOATS], FLOATS, f, "", {}) for kind, f in UNARY.items()},
    **{kind: ([FLOATS, FLOATS], FLOATS, f, "", {}) for kind, f in BINARY.items()},
    **{
        f"COMPARE {number}": (
            [((2, 3), "INT32"), ((2, 3), "INT32")], ((2, 3), "BOOL"), f,
            "StablehloCompareOptions", {"ComparisonDirection": number},
        )
        for number, f in enumerate(COMPARISONS)
    },
    "AND": ([((8,), "BOOL")] * 2, ((8,), "BOOL"), np.logical_and, "", {}),
    "OR": ([((8,), "BOOL")] * 2, ((8,), "BOOL"), np.logical_or, "", {}),
    "SELECT": ([((2, 3), "BOOL"), FLOATS, FLOATS], FLOATS, np.where, "", {}),
    "CONVERT": ([FLOATS], ((2, 3), "INT32"), lambda x: x.astype(np.int32), "", {}),
    "RESHAPE": ([FLOATS], ((3, 2), "FLOAT32"), lambda x: x.reshape(3, 2), "", {}),
    "CONCATENATE": ([FLOATS, FLOATS], ((2, 6), "FLOAT32"),
                    lambda x, y: np.concatenate([x, y], 1), "StablehloConcatenateOptions",
                    {"Dimension": 1}),
    "TRANSPOSE": ([FLOATS], ((3, 2), "FLOAT32"), np.transpose, "StablehloTransposeOptions",
                  {"Permutation": [1, 0]}),
    "SLICE": ([((4, 6), "FLOAT32")], ((2, 3), "FLOAT32"), lambda x: x[1:3, 0:6:2],
              "StablehloSliceOptions",
              {"StartIndices": [1, 0], "LimitIndices": [3, 6], "Strides": [1, 2]}),
    "PAD": ([FLOATS, HIGH], ((3, 4), "FLOAT32"),
            lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=0.5)[:, 1:],
            "StablehloPadOptions",
            {"EdgePaddingLow": [1, -1], "EdgePaddingHigh": [0, 2], "InteriorPadding": [0, 0]}),
    "BROADCAST_IN_DIM": ([((3,), "FLOAT32")], ((2, 3, 4), "FLOAT32"),
                         lambda x: np.broadcast_to(x[:, None], (2, 3, 4)),
                         "StablehloBroadcastInDimOptions", {"BroadcastDimensions": [1]}),
    "CLAMP": ([LOW, FLOATS, HIGH], FLOATS, lambda x: np.clip(x, -0.5, 0.5), "", {}),
    "IOTA": ([], ((2, 3), "INT32"), lambda: np.broadcast_to(np.arange(3), (2, 3)),
             "StablehloIotaOptions", {"IotaDimension": 1}),
    "SHIFT_LEFT": ([((40,), "INT32"), np.arange(40, dtype=np.int32)], ((40,), "INT32"),
                   lambda x: shifted(x, np.arange(40)), "StablehloShiftLeftOptions", {}),
    "SHIFT_LEFT bytes": ([((9,), "INT32"), np.arange(9, dtype=np.int32)], ((9,), "INT32"),
                         lambda x: shifted(x, np.arange(9)), "", {}),
    "CBRT": ([FLOATS], FLOATS, np.cbrt, "", {}),
    "PAD between": (
        [FLOATS, HIGH], ((3, 6), "FLOAT32"),
        lambda x: np.pad(np.insert(x, [1, 1, 2, 2], 0.5, axis=1), ((1, 0), (0, 1)),
                         constant_values=0.5)[:, 2:],
        "StablehloPadOptions", {"EdgePaddingLow": [1, -2], "EdgePaddingHigh": [0, 1],
                                "InteriorPadding": [0, 2]}),
    "DOT_GENERAL": (
        [((2, 3, 4, 5), "FLOAT32"), ((5, 4, 6), "FLOAT32")], ((4, 2, 3, 6), "FLOAT32"),
        lambda x, y: np.einsum("abcd,dce->cabe", x, y), "StablehloDotGeneralOptions",
        {"LhsBatchingDimensions": [2], "RhsBatchingDimensions": [1],
         "LhsContractingDimensions": [3], "RhsContractingDimensions": [0]}),
    "DOT_GENERAL outer": (
        [((2,), "INT32"), ((3,), "INT32")], ((2, 3), "INT32"), np.outer,
        "StablehloDotGeneralOptions", {}),
    "DOT_GENERAL inner": (
        [((2, 3), "INT32"), ((2, 3), "INT32")], ((), "INT32"), lambda x, y: (x * y).sum(),
        "StablehloDotGeneralOptions",
        {"LhsContractingDimensions": [1, 0], "RhsContractingDimensions": [1, 0]}),
    "CONVOLUTION": convolution((2, 9, 3), (3, 3, 4), (2, 4, 4), stride=2, dilation=2,
                               pads=(2, 1)),
    "CONVOLUTION dilated": convolution((1, 5, 4), (3, 2, 6), (1, 13, 6), base=3, groups=2,
                                       pads=(3, -1), reversal=True),
    "REDUCE sum": reduction("ADD", np.add),
    "REDUCE product": reduction("MULTIPLY", np.multiply, "INT32"),
    "REDUCE maximum": reduction("MAXIMUM", np.maximum),
    "REDUCE any": reduction("OR", np.logical_or, "BOOL"),
    "REDUCE_WINDOW": (
        [((5,), "FLOAT32"), HIGH], ((4,), "FLOAT32"), windowed, "StablehloReduceWindowOptions",
        {"WindowDimensions": [2], "WindowStrides": [3], "BaseDilations": [2],
         "WindowDilations": [2], "Padding": [1, 2], "BodySubgraphIndex": 1,
         "graphs": [combining("ADD", "FLOAT32", "AddOptions")]}),
    "DYNAMIC_SLICE": (
        [((5, 6), "FLOAT32"), np.int32(7), np.int32(-1)], ((2, 3), "FLOAT32"),
        lambda x: x[3:5, 0:3], "StablehloDynamicSliceOptions", {"SliceSizes": [2, 3]}),
    "DYNAMIC_SLICE computed": (
        [((5, 6), "FLOAT32"), ((), "INT32"), ((), "INT32")], ((2, 3), "FLOAT32"),
        lambda x, i, j: x[np.clip(i, 0, 3) :, np.clip(j, 0, 3) :][:2, :3],
        "StablehloDynamicSliceOptions", {"SliceSizes": [2, 3]}),
    "DYNAMIC_UPDATE_SLICE": (
        [((5, 6), "FLOAT32"), ((2, 3), "FLOAT32"), np.int32(7), np.int32(1)],
        ((5, 6), "FLOAT32"),
        lambda x, y: np.vstack([x[:3], np.hstack([x[3:, :1], y, x[3:, 4:]])]), "", {}),
    "GATHER": (
        [((4, 5, 3), "FLOAT32"), ((2, 3, 2), "INT32")], ((2, 2, 2, 3), "FLOAT32"),
        lambda x, i: gathered(x, i, [1, 3], [1], [2, 1, 0], 1, [2, 1, 3]),
        "StablehloGatherOptions",
        {"OffsetDims": [1, 3], "CollapsedSliceDims": [1], "StartIndexMap": [2, 1, 0],
         "IndexVectorDim": 1, "SliceSizes": [2, 1, 3]}),
    "GATHER numbers": (
        [((6,), "FLOAT32"), ((2, 3), "INT32")], ((2, 3), "FLOAT32"),
        lambda x, i: gathered(x, i, [], [0], [0], 2, [1]), "StablehloGatherOptions",
        {"CollapsedSliceDims": [0], "StartIndexMap": [0], "IndexVectorDim": 2,
         "SliceSizes": [1]}),
    **{
        f"SCATTER {kind.lower() or 'last'}": (
            [((4, 5, 3), "FLOAT32"), ((6, 2), "INT32"), ((2, 6, 3), "FLOAT32")],
            ((4, 5, 3), "FLOAT32"),
            lambda x, i, y, f=f: scattered(x, i, y, [0, 2], [0], [0, 1], f),
            "StablehloScatterOptions",
            {"UpdateWindowDims": [0, 2], "InsertedWindowDims": [0],
             "ScatterDimsToOperandDims": [0, 1], "IndexVectorDim": 1,
             "UpdateComputationSubgraphIndex": 1,
             "graphs": [combining(kind and f"STABLEHLO_{kind}", "FLOAT32")]},
        )
        for kind, f in {"ADD": np.add, "MULTIPLY": np.multiply, "MAXIMUM": np.maximum,
                        "MINIMUM": np.minimum, "": lambda old, new: new}.items()
    },
    "SORT": (
        [((3, 7), "FLOAT32")], ((3, 7), "FLOAT32"), lambda x: -np.sort(-x, 0),
        "StablehloSortOptions",
        {"Dimension": 0, "IsStable": False, "ComparatorSubgraphIndex": 1,
         "graphs": [combining("STABLEHLO_COMPARE", "FLOAT32", "StablehloCompareOptions",
                              ComparisonDirection=3)]}),
    "COMPOSITE": ([FLOATS, FLOATS], FLOATS, lambda x, y: np.maximum(x - y, 0),
                  "StableHLOCompositeOptions",
                  {"DecompositionSubgraphIndex": 1, "graphs": [composed()]}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_operator_computes_what_numpy_does(case: str, tmp_path: Path) -> None:
    inputs, result, expected, options, values = CASES[case]
    kind = f"STABLEHLO_{case.partition(' ')[0]}"
    path = tmp_path / "one.tflite"
    path.write_bytes(general(kind, inputs, [result], options, **values))
    session = onnxruntime.InferenceSession(read_tflite(path).SerializeToString())
    rng, feeds = np.random.default_rng(0), {}
    for info in session.get_inputs():
        drawn = np.asarray(rng.standard_normal(info.shape), np.float32)
        kinds = {"tensor(bool)": drawn > 0, "tensor(int32)": (2 * drawn).astype(np.int32)}
        feeds[info.name] = np.asarray(kinds.get(info.type, drawn))
    (actual,) = session.run(None, feeds)
    wanted = expected(*feeds.values())
    assert actual.shape == wanted.shape
    np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)


def test_sorting_moves_other_tensors_and_keeps_the_order_of_equal_keys(tmp_path: Path) -> None:
    path = tmp_path / "one.tflite"
    graph = combining("LESS", "INT32", "LessOptions", pairs=2, first=(3, 2))
    path.write_bytes(
        general(
            "STABLEHLO_SORT", [((9,), "FLOAT32"), ((9,), "INT32")],
            [((9,), "FLOAT32"), ((9,), "INT32")], "StablehloSortOptions", [graph], Dimension=0,
            IsStable=True, ComparatorSubgraphIndex=1,
        )
    )  # fmt: skip
    session = onnxruntime.InferenceSession(read_tflite(path).SerializeToString())
    keys = np.array([1, 0, 2, 1, 1, 0, 2, 2, 1], np.int32)
    data = np.arange(9, dtype=np.float32)
    sorted_data, sorted_keys = session.run(None, {"x0": data, "x1": keys})
    order = np.argsort(-keys, kind="stable")
    np.testing.assert_array_equal(sorted_data, data[order])
    np.testing.assert_array_equal(sorted_keys, keys[order])


def test_a_loop_computes_what_python_does(tmp_path: Path) -> None:
    path = tmp_path / "one.tflite"
    path.write_bytes(loop("STABLEHLO_WHILE"))
    session = onnxruntime.InferenceSession(read_tflite(path).SerializeToString())
    total = np.arange(6, dtype=np.float32).reshape(2, 3)
    for limit in (-5, -2, 3):
        i, expected = -2, total
        while i < limit:
            i, expected = i + 1, expected * 0.5 + np.float32([1, -0.5, 2])
        result = session.run(None, {"limit": np.array(limit, np.int32), "total": total})
        assert result[0] == i
        assert result[1] == limit
        np.testing.assert_array_equal(result[2], expected)


@pytest.mark.parametrize(
    ("kind", "options", "values", "reason"),
    [
        ("REDUCE", "StablehloReduceOptions",
         {"Dimensions": [0], "BodySubgraphIndex": 1,
          "graphs": [combining("STABLEHLO_SUBTRACT", "FLOAT32")]}, "not a single sum"),
        ("REDUCE", "StablehloReduceOptions",
         {"Dimensions": [0], "BodySubgraphIndex": 1,
          "graphs": [combining("STABLEHLO_ADD", "FLOAT32", first=(0, 0))]},
         "not a single sum"),
        ("REDUCE", "StablehloReduceOptions",
         {"Dimensions": [2], "BodySubgraphIndex": 1,
          "graphs": [combining("STABLEHLO_ADD", "FLOAT32")]}, "reduces the axes"),
    ],
)  # fmt: skip
def test_what_a_graph_may_not_do_is_named(
    kind: str, options: str, values: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "one.tflite"
    inputs = [((2, 3), "FLOAT32"), HIGH]
    path.write_bytes(general(f"STABLEHLO_{kind}", inputs, [((3,), "FLOAT32")], options, **values))
    with pytest.raises(UnsupportedOperatorError, match=reason):
        read_tflite(path)
