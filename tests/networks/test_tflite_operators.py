"""Compares imported TensorFlow Lite files with outputs recorded of its runtime.

There is one file for each operator (`tests/data/tflite`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from tflite_files import CASES, KEYWORDS, RECORDED, SAMPLES, inputs_of

from tilewright.networks.tflite.convert import read_tflite

NOT_QUANTISED = ("hashtable_lookup", "bitwise_xor_bytes", "right_shift_bytes")
"""Cases with results that are bytes, and not quantised numbers."""
DTYPES = {
    "tensor(int8)": "int8", "tensor(uint8)": "uint8", "tensor(float)": "float32",
    "tensor(bool)": "bool", "tensor(int16)": "int16", "tensor(int32)": "int32",
}  # fmt: skip


@pytest.fixture(scope="module")
def recorded() -> dict[str, NDArray[Any]]:
    with np.load(RECORDED) as arrays:
        return dict(arrays)


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Without optimisation: each operator as the standard says."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def computed(path: Path, seed: str) -> dict[str, NDArray[Any]]:
    run = session(read_tflite(path))
    inputs = [(i.name, tuple(i.shape), DTYPES[i.type]) for i in run.get_inputs()]
    names = [output.name for output in run.get_outputs()]
    return dict(zip(names, run.run(names, inputs_of(seed, inputs)), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_an_operator_computes_what_its_runtime_does(
    case: str, tmp_path: Path, recorded: dict[str, NDArray[Any]]
) -> None:
    path = tmp_path / "one.tflite"
    path.write_bytes(CASES[case]())
    expected = {n.partition("/")[2]: v for n, v in recorded.items() if n.startswith(f"{case}/")}
    outputs = computed(path, case)
    assert outputs.keys() == expected.keys()
    for name, values in expected.items():
        assert outputs[name].dtype == values.dtype
        assert outputs[name].shape == values.shape
        # the runtime multiplies by rounded factors, so a tie may fall to the other side
        known = {"int8": 1.0, "uint8": 1.0, "float32": 1e-5}
        step = 0.0 if case in NOT_QUANTISED else known.get(values.dtype.name, 0.0)
        largest = max(1.0, np.abs(values.astype(float)).max() / 32)
        assert np.abs(outputs[name].astype(float) - values.astype(float)).max() <= step * largest
        assert np.ptp(values.astype(float)) > 3 * step or values.size == 1 or case == "fill"


def test_a_reference_model_computes_what_its_runtime_does(
    recorded: dict[str, NDArray[Any]],
) -> None:
    for sample in range(SAMPLES):
        outputs = computed(KEYWORDS, f"keywords{sample}")
        np.testing.assert_array_equal(outputs["Identity"], recorded[f"keywords{sample}/Identity"])
