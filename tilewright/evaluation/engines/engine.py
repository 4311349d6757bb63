"""Loads a network into an inference engine: Tilewright's library, onnxruntime or OpenVINO."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError, UnknownName
from tilewright.networks.artifact.session import open_session

Arrays = Mapping[str, NDArray[Any]]
Infer = Callable[[], list[NDArray[Any]]]
"""Function that runs one inference on the inputs with which an engine was opened. It returns the
outputs in the model's order."""

OWN = "tilewright"
PACKAGES = {
    "onnxruntime": "onnxruntime", "openvino": "openvino", "openvino-default": "openvino",
}  # fmt: skip
"""Python package of each engine. `openvino` computes in float32; `openvino-default` lets OpenVINO
choose the precision, which is bfloat16 if the processor supports it."""
INSTALL = {"openvino": "pip install openvino"}


class EngineError(TilewrightError):
    """Error for an engine that is not installed or does not support the network."""


def check_engines(names: tuple[str, ...]) -> None:
    """Check that all requested engines exist and are installed.

    Args:
        names: names of engines, keys of `PACKAGES`.

    Raises:
        UnknownName: an engine does not exist.
        EngineError: an engine is not installed.
    """
    for name in names:
        if name not in PACKAGES:
            raise UnknownName("engine", name, sorted(PACKAGES))
        package = PACKAGES[name]
        if find_spec(package) is None:
            raise EngineError(
                f"{name} needs the package {package}, which is not installed; "
                f"{INSTALL.get(package, f'pip install {package}')}, or leave {name} out of "
                "--against"
            )


def version_of(name: str) -> str:
    """Return the version of an engine's package."""
    return version(PACKAGES.get(name, OWN))


def open_engine(name: str, source: Path, threads: int, inputs: Arrays) -> Infer:
    """Load a network into an inference engine, and return a function that runs one inference.

    Exceptions of the engine propagate unchanged.

    Args:
        name: name of the engine.
        source: an artifact for `tilewright`, an ONNX file for the other engines.
        threads: number of threads.
        inputs: arrays by input name, in the shapes of the network.

    Returns:
        A function without arguments that runs the network on `inputs`.
    """
    if name == OWN:
        return _tilewright(source, threads, inputs)
    if name == "onnxruntime":
        return _onnxruntime(source, threads, inputs)
    return _openvino(source, threads, inputs, chooses=name == "openvino-default")


def _tilewright(source: Path, threads: int, inputs: Arrays) -> Infer:
    session = open_session(source, threads, allow_code=True)
    placed = {value.name: session.empty(value.name) for value in session.get_inputs()}
    for name, array in placed.items():
        array[...] = inputs[name]
    return lambda: session.run(None, placed)


def _onnxruntime(source: Path, threads: int, inputs: Arrays) -> Infer:
    """Load a network into onnxruntime, and return a function that runs one inference.

    The graph optimisations are those of onnxruntime's defaults.

    Args:
        source: ONNX file of the network.
        threads: number of threads within an operator.
        inputs: arrays by input name.
    """
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    given = dict(inputs)
    return lambda: list(session.run(None, given))


def _openvino(source: Path, threads: int, inputs: Arrays, *, chooses: bool) -> Infer:
    openvino = importlib.import_module("openvino")
    wanted: dict[str, object] = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    if not chooses:
        wanted["INFERENCE_PRECISION_HINT"] = "f32"
    model = openvino.Core().read_model(str(source))
    model.reshape({name: list(array.shape) for name, array in inputs.items()})
    request = openvino.Core().compile_model(model, "CPU", wanted).create_infer_request()
    for port in model.inputs:
        request.set_tensor(port.get_any_name(), openvino.Tensor(_input_of_port(port, inputs)))
    outputs = range(len(model.outputs))

    def infer() -> list[NDArray[Any]]:
        request.infer()
        return [request.get_output_tensor(place).data for place in outputs]

    return infer


def _input_of_port(port: Any, inputs: Arrays) -> NDArray[Any]:
    name = next(item for item in port.get_names() if item in inputs)
    return np.ascontiguousarray(inputs[name])
