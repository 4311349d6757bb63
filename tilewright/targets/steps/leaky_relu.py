"""Leaky ReLU with a slope that is a power of two: negative values are shifted right.

An arithmetic right shift keeps negative numbers negative and never increases a non-negative number.
The step is therefore computed as the maximum of an accumulator and the shifted accumulator.

The step does not round. The rounding constant is added once, before the right shift that follows in
the epilogue: ((x >> a) + half) >> b equals x / 2^(a+b), rounded half up.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.core.errors import WorkloadError
from tilewright.targets.steps.step import Activation, AluOperation, StepKind

USUAL, MOST = 3, 15


def _check(item: str, value: int) -> None:
    if not 1 <= value <= MOST:
        raise WorkloadError(f"'{item}': negative values can be shifted by 1 to {MOST} bits")


def _shift_of(slope: float) -> int | None:
    mantissa, exponent = math.frexp(slope)
    return 1 - exponent if mantissa == 0.5 and 1 <= 1 - exponent <= MOST else None


LEAKY_RELU = StepKind(
    kind="leaky",
    title="leaky",
    sign="leaky",
    apply=lambda total, value, _: np.where(total < 0, total >> value, total),
    check=_check,
    usual=lambda _: ("leaky", USUAL),
    operations=lambda value: (
        AluOperation("take"),
        AluOperation("aside", "shr", value),
        AluOperation("back", "max"),
    ),
    activation=Activation("LeakyRelu", "relax.nn.leakyrelu", "alpha", _shift_of),
)
