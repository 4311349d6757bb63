"""Checks what the front end answers for a model file, and that the answer is true.

The check is independent of the code that it checks: it has its own list of internal words that a
message must not contain, and reads the model file itself. `python -m
benchmarks.coverage.model_answers` runs this module as a process that checks cases for
`benchmarks.coverage.model_files`.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.coverage.onnx_models import ModelCase, numbers
from tilewright import networks
from tilewright.core.child_process import Header, arguments, serve
from tilewright.core.errors import TilewrightError
from tilewright.core.files import as_text
from tilewright.networks.network import Network

Verdict = Literal["right", "loads", "refused", "false"]

INNER_WORDS = re.compile(
    r"object of type|NoneType|has no attribute|not subscriptable|Check failed|ErrorContext"
    r"|Traceback|<class|\btvm\.\w|\btirx?\b|relax\.|\bR\.\w|\bT\.\w|\w+Error\b|\w\.(cc|cpp|h|py)\b"
    r"|0x[0-9a-f]{6}|^'[^']*'$|cannot be imported: '\w+'|Metadata omitted|Call\b|Expr\b|_impl"
)
"""Matches internal words of Python and TVM, which must not appear in messages."""

RELATIVE_TOLERANCE = {"float16": 1e-2, "bfloat16": 2e-2}
"""Relative tolerance of sums in a different order, by element type. It is 1e-3 for all other types,
as in the test runner of the `onnx` package."""


@dataclass(frozen=True)
class Answer:
    """The verdict on a case, with an explanation in `said`.

    The verdicts are `right` (the model loads and computes the expected values), `loads` (it can be
    tuned, and `said` explains why no values were compared), `refused` (it is rejected with a
    message that is clear and true) and `false` (anything else).
    """

    title: str
    verdict: Verdict
    said: str = ""


def judge(case: ModelCase, run: bool = True) -> Answer:
    """Load a model and report on it; with `run`, also run it and compare the outputs.

    Never raises an exception.
    """
    try:
        network = networks.load(case.path)
        network.report(16, 16)
        network.workloads(16, 16)
    except TilewrightError as error:
        return _refusal(case, str(error))
    except Exception as error:
        return Answer(case.title, "false", f"{type(error).__name__} escaped: {error}")
    return _compare_outputs(case, network) if run else Answer(case.title, "loads", "not run")


def refusal_flaw(message: str, path: Path) -> str:
    """Return what is false or unclear in the message of a rejection; "" if nothing is.

    The message is checked against the model file.
    """
    text = message.replace(str(path), "the file")
    if match := INNER_WORDS.search(text):
        return f"contains an internal name: {match[0]}"
    if ";" not in text:
        return "suggests no next step"
    model = onnx.load(path)
    inputs = [info for info in model.graph.input if info.type.HasField("tensor_type")]
    static = all(
        info.type.tensor_type.HasField("shape")
        and all(dim.HasField("dim_value") for dim in info.type.tensor_type.shape.dim)
        for info in inputs
    )
    if "dynamic" in text and static:
        return "states that sizes are dynamic, but all are static"
    if re.search(r"not valid|SSA|contradict|damaged|truncated", text) and _is_valid(model):
        return (
            "states that the file is invalid, but ONNX's checker and strict shape inference "
            "find no problem"
        )
    if "no elements" in text and not any(
        dim.HasField("dim_value") and dim.dim_value == 0
        for info in inputs
        for dim in info.type.tensor_type.shape.dim
    ):
        return "states that an input is empty, but none is"
    if "cannot be imported" in text and not any(
        node.op_type in text for node in _nodes(model) if not node.name or node.name in text
    ):
        return "names no operator of the file"
    return ""


def _refusal(case: ModelCase, message: str) -> Answer:
    problem = refusal_flaw(message, case.path)
    if problem:
        return Answer(case.title, "false", f"{problem}: {message}")
    return Answer(case.title, "refused", message)


def _compare_outputs(case: ModelCase, network: Network) -> Answer:
    try:
        known = numbers(case, onnx.load(case.path))
        if known is None:
            return Answer(case.title, "loads", "the package contains no tensors for this model")
        inputs, wanted = known
        names = network.examined.inputs
        result = network.run(dict(zip(names, inputs, strict=True)))
    except TilewrightError as error:
        answer = _refusal(case, str(error))
        return answer if answer.verdict == "false" else Answer(case.title, "loads", answer.said)
    except Exception as error:
        return Answer(case.title, "false", f"{type(error).__name__} escaped: {error}")
    for (name, got), want in zip(result.items(), wanted, strict=True):
        if problem := difference(got, want):
            return Answer(case.title, "false", f"wrong numbers in '{name}': {problem}")
    return Answer(case.title, "right")


def difference(got: NDArray[Any], want: NDArray[Any]) -> str:
    """Describe how an array differs from the expected array; "" if it does not."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{got.dtype} {got.shape} instead of {want.dtype} {want.shape}"
    if want.dtype.kind in "biu":
        wrong = got != want
    else:
        relative = RELATIVE_TOLERANCE.get(want.dtype.name, 1e-3)
        a, b = got.astype(np.float64), want.astype(np.float64)
        wrong = ~np.isclose(a, b, rtol=relative, atol=1e-5 if relative < 1e-2 else relative / 10,
                            equal_nan=True)  # fmt: skip
    return f"{int(wrong.sum())} of {want.size} values" if wrong.any() else ""


def _is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    functions = [node for function in model.functions for node in function.node]
    return [*model.graph.node, *functions]


def _answer(header: Header, _: object) -> tuple[Header, dict[str, NDArray[Any]]]:
    data = as_text(header["data"])
    case = ModelCase(
        as_text(header["kind"]), as_text(header["name"]), Path(as_text(header["path"])),
        Path(data) if data else None,
    )  # fmt: skip
    return asdict(judge(case, bool(header["run"]))), {}


if __name__ == "__main__":
    arguments()
    serve(_answer)
