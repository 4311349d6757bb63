"""Exceptions about model files and networks. Each message states the cause and the next step."""

from __future__ import annotations

import re

from tilewright.core.errors import TilewrightError


class ModelFileError(TilewrightError):
    """Raised if a model file is missing, damaged or not a model, or refers to forbidden data."""


class DynamicShapeError(TilewrightError):
    """Raised if an input's size is unknown before inference, or if a given shape is wrong."""


class InputError(TilewrightError):
    """Raised if the arrays passed to a network do not fit its inputs."""


REFUSED_INPUTS = "the network rejects its inputs: "
"""Start of the message that compiled code raises for an out-of-range index or a division by
zero."""


def refused_inputs(error: Exception) -> Exception:
    """Translate an exception of compiled code about input values into an `InputError`.

    Args:
        error: an exception from running compiled code.

    Returns:
        An `InputError` if the message contains `REFUSED_INPUTS`, otherwise `error` itself.
    """
    message = last_line(error)
    if REFUSED_INPUTS not in message:
        return error
    return InputError(f"{message[message.index(REFUSED_INPUTS) :]}; check the values of the inputs")


class UnsupportedOperatorError(TilewrightError):
    """Raised if the importer cannot express an operator."""


class NothingToOffload(TilewrightError):
    """Raised if no operator of a valid model suits the accelerator."""


class QuantisationError(TilewrightError):
    """Raised if a model cannot be quantised, or a quantised model cannot run on the accelerator.

    Possible causes are options that contradict each other, and scales that an accelerator cannot
    represent because it only shifts.
    """


class NothingToQuantise(QuantisationError):
    """Raised if a model has no operator that can run in int8."""


class ImportFailedError(TilewrightError):
    """Raised if the importer cannot translate or the compiler cannot build a valid model."""


class OperatorImportError(ImportFailedError):
    """Raised if the importer cannot translate one operator.

    Attributes:
        operator: name of the operator, "" if it is not known.
    """

    def __init__(self, message: str, operator: str) -> None:
        super().__init__(message)
        self.operator = operator


class UncompilableError(ImportFailedError):
    """Raised if the compiler cannot build a network.

    Attributes:
        operators: names of the operators that fail to compile by themselves; empty if not known.
    """

    def __init__(self, message: str, operators: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.operators = operators


BUILD_AGAIN = "copy the artifact again, or build it again from its model"
"""Next step that is suggested for a damaged artifact."""


class ArtifactError(TilewrightError):
    """Raised if a folder is not an artifact, is damaged or outdated, or cannot be created."""


class InaccurateError(ArtifactError):
    """Raised if outputs differ from those of the source model by more than the tolerance."""


def first_line(error: Exception) -> str:
    """Return the first line of a library's error message.

    The error-code prefix of onnxruntime is removed. If the message is empty, return the name of the
    exception class.
    """
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", line)


def last_line(error: Exception) -> str:
    """Return the last line of a library's error message, where TVM and ONNX state the cause.

    If the message is empty, return the name of the exception class.
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
