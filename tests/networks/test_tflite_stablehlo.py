"""Compares imported StableHLO operators of TensorFlow Lite files with numpy.

The runtime of TensorFlow Lite, whose outputs other tests use, executes few of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from tflite_files import general

from tilewright.networks.errors import UnsupportedOperatorError
from tilewright.networks.tflite.convert import read_tflite

FLOATS = ((2, 3), "FLOAT32")
LOW, HIGH = np.float32(-0.5), np.float32(0.5)
Case = tuple[list[Any], Any, Callable[..., NDArray[Any]], str, dict[str, Any]]

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
        drawn = rng.standard_normal(info.shape).astype(np.float32)
        kinds = {"tensor(bool)": drawn > 0, "tensor(int32)": (2 * drawn).astype(np.int32)}
        feeds[info.name] = kinds.get(info.type, drawn)
    (found,) = session.run(None, feeds)
    wanted = expected(*feeds.values())
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_padding_between_elements_is_named(tmp_path: Path) -> None:
    path = tmp_path / "one.tflite"
    path.write_bytes(
        general(
            "STABLEHLO_PAD",
            [FLOATS, HIGH],
            [((3, 3), "FLOAT32")],
            "StablehloPadOptions",
            EdgePaddingLow=[0, 0],
            EdgePaddingHigh=[0, 0],
            InteriorPadding=[1, 0],
        )
    )
    with pytest.raises(UnsupportedOperatorError, match="padding between elements"):
        read_tflite(path)
