"""Compares imported TensorFlow Lite files with recorded outputs of the TensorFlow Lite runtime.

There is one file per operator in `tests/data/tflite`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_graphs import session
from tflite_files import CASES, EDGES, KEYWORDS, RECORDED, SAMPLES, inputs_of

from tilewright.networks.tflite.convert import read_tflite

NOT_QUANTISED = ("hashtable_lookup", "bitwise_xor_bytes", "right_shift_bytes")
"""Cases whose results are plain bytes, not quantised values."""
DTYPES = {
    "tensor(int8)": "int8", "tensor(uint8)": "uint8", "tensor(float)": "float32",
    "tensor(bool)": "bool", "tensor(int16)": "int16", "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}  # fmt: skip


@pytest.fixture(scope="module")
def recorded() -> dict[str, NDArray[Any]]:
    with np.load(RECORDED) as arrays:
        return dict(arrays)


def computed(path: Path, seed: str) -> dict[str, NDArray[Any]]:
    run = session(read_tflite(path))
    inputs = [(i.name, tuple(i.shape), DTYPES[i.type]) for i in run.get_inputs()]
    names = [output.name for output in run.get_outputs()]
    return dict(zip(names, run.run(names, inputs_of(seed, inputs)), strict=True))


def allowed_step(case: str, values: NDArray[Any]) -> float:
    """Return the allowed difference of a result.

    The runtime multiplies quantised numbers by rounded factors, so a tie may be rounded to the
    other side.
    """
    if case in NOT_QUANTISED:
        return 0.0
    steps = {"int8": 1.0, "uint8": 1.0, "float32": 1e-5}
    if case.startswith("int16"):
        steps["int16"] = 1.0
    if case == "lstm_step_quantised":  # whose curves the runtime computes in fixed-point numbers
        steps["int16"] = 4.0
    return steps.get(values.dtype.name, 0.0)


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
        step = allowed_step(case, values)
        largest = np.abs(values[np.isfinite(values)].astype(float)).max(initial=32) / 32
        np.testing.assert_allclose(
            outputs[name].astype(float), values.astype(float), rtol=0,
            atol=step * (largest if step < 1 else 1),
        )  # fmt: skip
        if case not in EDGES and case != "fill":
            assert np.ptp(values.astype(float)) > 3 * step or values.size == 1


def test_a_reference_model_computes_what_its_runtime_does(
    recorded: dict[str, NDArray[Any]],
) -> None:
    for sample in range(SAMPLES):
        outputs = computed(KEYWORDS, f"keywords{sample}")
        np.testing.assert_array_equal(outputs["Identity"], recorded[f"keywords{sample}/Identity"])
