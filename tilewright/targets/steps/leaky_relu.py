"""Defines the leaky relu: what is negative is divided by a power of two.

An arithmetic shift leaves numbers below 0 below 0 and makes none above larger. So the step is the
larger of a sum and the shifted sum. Rounding is that of the right shift behind it: (x >> a) + half
>> b is x over 2^(a+b) rounded half up.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.core.errors import WorkloadError
from tilewright.targets.steps.step import Activation, AluOperation, StepKind

USUAL, MOST = 3, 15


def _check(item: str, value: int) -> None:
    if not 1 <= value <= MOST:
        raise WorkloadError(f"'{item}': what is negative is shifted by 1 to {MOST} bits")


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
