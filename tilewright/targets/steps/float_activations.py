"""Activations of float layers, such as `sigmoid`, which only floating-point targets compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.core.lazy_module import lazy_module
from tilewright.targets.steps.step import Integers, StepKind

special = lazy_module("scipy.special")

Floats = NDArray[np.float64]


def _sigmoid(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def erf(x: Floats) -> Floats:
    """Return the Gauss error function of each element, float64."""
    return np.asarray(special.erf(x))


FUNCTIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "sigmoid": _sigmoid,
    "tanh": lambda x: np.asarray(np.tanh(x)),
    "swish": lambda x: x * _sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + erf(x * np.sqrt(0.5))),
    "gelu_tanh": lambda x: x * _sigmoid(np.sqrt(8 / np.pi) * x * (1 + 0.044715 * x * x)),
    "hard_sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
}
"""Reference implementations of the activation functions in NumPy, by the kind of step. They are
also used to recognise activations that a network composes from several operators."""


def _refused(total: Integers, value: int, tensors: Mapping[str, NDArray[Any]]) -> Integers:
    raise WorkloadError(
        "this activation is only defined for floating-point numbers; write dtype=float32"
    )


FLOAT_ACTIVATIONS = tuple(
    StepKind(kind=name, sign=name, apply=_refused, names={name: 0}, is_numbered=False, title=name)
    for name in FUNCTIONS
)
