"""Defines what can be wrong with a model file. Each message names the cause and the next step."""

from __future__ import annotations

import re

from tilewright.core.errors import TilewrightError


class ModelFileError(TilewrightError):
    """A file that is missing, is no model, is damaged, or asks for data it must not have."""


class DynamicShapeError(TilewrightError):
    """An input whose size is unknown before the model runs, or a wrong shape given for it."""


class InputError(TilewrightError):
    """Arrays that do not fit the inputs of the network they are given to."""


REFUSED_INPUTS = "the network refuses its inputs: "
"""Begins the message of an error that compiled code raises for an index that lies outside its
tensor, or a divisor of zero."""


def refused_inputs(error: Exception) -> Exception:
    """Return the `InputError` that an exception of compiled code stands for, or the exception."""
    said = last_line(error)
    if REFUSED_INPUTS not in said:
        return error
    return InputError(f"{said[said.index(REFUSED_INPUTS) :]}; check their values")


class UnsupportedOperatorError(TilewrightError):
    """An operator that the importer cannot express."""


class NothingToOffload(TilewrightError):
    """A model that runs, but of which no operator suits the accelerator."""


class QuantisationError(TilewrightError):
    """A model that cannot be quantised, options of quantising that make no sense, or a quantised
    model whose scales an accelerator that shifts cannot represent."""


class NothingToQuantise(QuantisationError):
    """A model without any operator that can run in int8."""


class ImportFailedError(TilewrightError):
    """A well-formed model that the importer could not translate or the compiler could not build."""


class OperatorImportError(ImportFailedError):
    """One operator that the importer could not translate; `operator` is its name, "" where nobody
    knows which it was."""

    def __init__(self, message: str, operator: str) -> None:
        super().__init__(message)
        self.operator = operator


class UncompilableError(ImportFailedError):
    """A network that the compiler could not build; `operators` names those that fail alone, none
    where nobody knows which do."""

    def __init__(self, message: str, operators: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.operators = operators


BUILD_AGAIN = "copy the artifact again, or build it again from its model"
"""Next step after an artifact turned out to be damaged."""


class ArtifactError(TilewrightError):
    """A folder that is no artifact, is damaged or of another version, or cannot be made."""


class InaccurateError(ArtifactError):
    """Outputs are further from the source model's than the tolerance allows."""


def first_line(error: Exception) -> str:
    """The first line of what a library says, without onnxruntime's numbers of errors, or the kind
    of error where it says nothing."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", line)


def last_line(error: Exception) -> str:
    """The last line of what a library says, where TVM and ONNX put the cause."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
