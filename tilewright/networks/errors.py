"""Exceptions about model files, networks and artifacts.

Each message states the cause and the next step.
"""

from __future__ import annotations

import re

from tilewright.core.errors import TilewrightError


class ModelFileError(TilewrightError):
    """Raised if a file is missing, damaged or not a model, or refers to forbidden data."""


class DynamicShapeError(TilewrightError):
    """Raised if the size of an input is unknown before inference, or if a given shape is wrong."""


class InputError(TilewrightError):
    """Raised if the arrays that are passed to a network do not fit its inputs.

    This includes values on which the network cannot run, such as an index outside its tensor.
    """


REFUSED_INPUTS = "the network rejects its inputs: "
"""Beginning of the message of compiled code if an index is out of range or an integer is divided by
zero."""


def refused_inputs(error: Exception) -> Exception:
    """Convert an exception of compiled code about input values to an `InputError`.

    Args:
        error: an exception that was raised while compiled code ran.

    Returns:
        An `InputError` if the message contains `REFUSED_INPUTS`, otherwise `error` itself.
    """
    message = last_line(error)
    if REFUSED_INPUTS not in message:
        return error
    return InputError(f"{message[message.index(REFUSED_INPUTS) :]}; check the values of the inputs")


class UnsupportedOperatorError(TilewrightError):
    """Raised if an operator cannot be imported, or if a model has no operator to compile."""


class NothingToOffload(TilewrightError):
    """Raised if a model is valid, but the accelerator can compute none of its operators."""


class QuantisationError(TilewrightError):
    """Raised if a model cannot be quantised, or if an accelerator cannot run a quantised model.

    Possible causes are options that contradict each other, and scales that an accelerator cannot
    represent because it can only multiply by powers of two.
    """


class NothingToQuantise(QuantisationError):
    """Raised if a model has no operator that can be computed in int8."""


class ImportFailedError(TilewrightError):
    """Raised if a valid model cannot be imported or compiled."""


class OperatorImportError(ImportFailedError):
    """Raised if the importer cannot convert an operator.

    Attributes:
        operator: name of the operator; "" if it is not known.
    """

    def __init__(self, message: str, operator: str) -> None:
        super().__init__(message)
        self.operator = operator


class UncompilableError(ImportFailedError):
    """Raised if the compiler cannot compile a network.

    Attributes:
        operators: names of the operators that fail to compile by themselves; empty if not known.
    """

    def __init__(self, message: str, operators: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.operators = operators


BUILD_AGAIN = "copy the artifact again, or build it again from its model"
"""Advice in messages about a damaged artifact."""


class ArtifactError(TilewrightError):
    """Raised if a folder is not an artifact, is damaged or outdated, or cannot be created.

    An artifact is the folder that `tilewright build` writes.
    """


class InaccurateError(ArtifactError):
    """Raised if an artifact's outputs differ from the source model's by more than the tolerance."""


def first_line(error: Exception) -> str:
    """Return the first line of a library's error message, without onnxruntime's error code.

    Args:
        error: the exception.

    Returns:
        The line. If the message is empty, the name of the exception class.
    """
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", line)


def last_line(error: Exception) -> str:
    """Return the last line of a library's error message, in which TVM and ONNX state the cause.

    Args:
        error: the exception.

    Returns:
        The line. If the message is empty, the name of the exception class.
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
