"""Reads the models that the `onnx` package ships, each with its expected outputs.

The kinds of models are `node` (a single operator; a variant `_expanded` is written with simpler
operators), `simple` (a few operators), `light` (published networks without trained weights) and
`pytorch-*` (layers that PyTorch exported in 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from benchmarks.artifacts.forms import data_inputs

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
KINDS = ("light", "simple", "pytorch-converted", "pytorch-operator", "node")
Arrays = list[NDArray[Any]]


@dataclass(frozen=True)
class ModelCase:
    """A model file of the `onnx` package.

    `data` is the folder with the tensors of one inference in `input_<i>.pb` and `output_<i>.pb`;
    None if the package has no tensors for the model.
    """

    kind: str
    name: str
    path: Path
    data: Path | None

    @property
    def title(self) -> str:
        """Name of the case, which is unique among all cases."""
        return f"{self.kind}/{self.name}"


def cases(kinds: Sequence[str], folder: Path) -> list[ModelCase]:
    """Return all models of the given kinds.

    Models that the package defines in Python are written to `folder`.
    """
    cases: list[ModelCase] = []
    for kind in kinds:
        cases += _write_models(folder) if kind == "node" else _shipped_models(kind)
    return cases


def _shipped_models(kind: str) -> list[ModelCase]:
    if kind == "light":
        return [
            ModelCase(kind, path.stem, path, None) for path in sorted((DATA / kind).glob("*.onnx"))
        ]
    return [
        ModelCase(kind, path.parent.name, path, path.parent / "test_data_set_0")
        for path in sorted((DATA / kind).glob("*/model.onnx"))
    ]


def _write_models(folder: Path) -> list[ModelCase]:
    """Write the single-operator models of the `onnx` package to a folder.

    The package generates them on demand, which takes about 20 s.
    """
    from onnx.backend.test.loader import load_model_tests

    results = []
    for test in sorted(load_model_tests(kind="node"), key=lambda test: test.name):
        if test.model is None:
            continue
        place = folder / test.name
        place.mkdir(parents=True, exist_ok=True)
        path = place / "model.onnx"
        onnx.save(test.model, path)
        inputs, outputs = test.data_sets[0] if test.data_sets else ((), ())
        whole = _write(inputs, place, "input") and _write(outputs, place, "output")
        results.append(ModelCase("node", test.name, path, place if whole else None))
    return results


def _write(values: Sequence[Any], place: Path, role: str) -> bool:
    """Write tensors to files. Return False if a value is a sequence, a map or missing."""
    for i, value in enumerate(values):
        if not isinstance(value, (np.ndarray, np.generic, onnx.TensorProto)):
            return False
        tensor = (
            value
            if isinstance(value, onnx.TensorProto)
            else numpy_helper.from_array(np.asarray(value))
        )
        (place / f"{role}_{i}.pb").write_bytes(tensor.SerializeToString())
    return True


def numbers(case: ModelCase, model: onnx.ModelProto) -> tuple[Arrays, Arrays] | None:
    """Return inputs and expected outputs of a case, in the shapes and the order of the graph.

    Returns:
        None if the package has no data for the model, or data that is not a tensor.
    """
    if case.kind == "light":
        # as the package's own runner makes them
        (data,) = data_inputs(model)
        shape = [dim.dim_value for dim in data.type.tensor_type.shape.dim]
        size = int(np.prod(shape))
        ramp = (np.arange(size).reshape(shape) / size).astype(np.float32)
        return [ramp], [_read(case.path.with_name(f"{case.name}_output_0.pb"))]
    if case.data is None:
        return None
    plain = all(v.type.HasField("tensor_type") for v in (*data_inputs(model), *model.graph.output))
    if not plain:
        return None
    inputs = [_read(case.data / f"input_{i}.pb") for i in range(len(data_inputs(model)))]
    return inputs, [_read(case.data / f"output_{i}.pb") for i in range(len(model.graph.output))]


def _read(path: Path) -> NDArray[Any]:
    array: NDArray[Any] = numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))
    return array
