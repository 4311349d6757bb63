"""Basic element-wise steps, which targets implement by name: constants, vectors and tensors.

A vector has one value per output channel, such as a bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.steps.step import Apply, Integers, StepKind

RESIDUALS = ("residual", "weighted")
"""Kinds of steps that add an int8 tensor of the output's shape. An epilogue has at most one of
these steps."""
CONSTANTS = ("offset", "shr", "shr_even", "shl", "min", "max")
"""Kinds of steps that read no tensor."""
MAX_WEIGHT = 127
"""Maximum factor of a `weighted` residual that fits into an int8 weight. A larger factor is written
as a weight and a left shift; see `weight_and_shift`."""
NEAR_BIAS = 1 << 19
"""Exclusive upper limit of the magnitudes of a `bias` step with value 0."""
NEAR_SHIFTS = 5, 20
"""Smallest and largest right shift in bits at which every bias below `NEAR_BIAS` can be lifted (see
`targets.vta.lowering.bias_lifting`). With a smaller shift, the necessary constants exceed a 16-bit
immediate. With a larger shift, the lift exceeds the accumulators."""
CHANNEL_SPREAD = 8
"""Maximum difference in bits between the right shifts of a layer's channels. With a larger
difference, not every bias below `NEAR_BIAS` could be lifted."""
_IDENTITY_BITS = 6  # log2 of the largest power of two that fits into an int8 weight


def weight_and_shift(factor: int) -> tuple[int, int]:
    """Split the factor of a `weighted` residual into an int8 weight and a left shift.

    Args:
        factor: the factor, at least 1.

    Returns:
        The weight, 1 to `MAX_WEIGHT`, and the left shift in bits; weight << shift equals the
        factor.
    """
    shift = max(0, factor.bit_length() - MAX_WEIGHT.bit_length())
    return factor >> shift, shift


def check_shift(item: str, value: int) -> None:
    """Raise `WorkloadError` if a shift amount is not between 0 and 31 bits.

    Args:
        item: text of the step, for the message.
        value: the shift amount.
    """
    if not 0 <= value <= 31:
        raise WorkloadError(f"'{item}': a shift amount must be between 0 and 31")


def _check_weight(item: str, value: int) -> None:
    if value < 1 or value % (1 << weight_and_shift(value)[1]):
        raise WorkloadError(
            f"'{item}': a weight must be 1 to {MAX_WEIGHT}, or such a number times a power of 2"
        )


def _check_channel_shift(item: str, value: int) -> None:
    if not NEAR_SHIFTS[0] <= value <= NEAR_SHIFTS[1]:
        raise WorkloadError(
            f"'{item}': the smallest amount must be between {NEAR_SHIFTS[0]} and "
            f"{NEAR_SHIFTS[1]}; write '>> channel' for any amount"
        )


def _usual_shift(value: int) -> tuple[str, int]:
    least, most = NEAR_SHIFTS
    return "shr", least - 1 if value < least else most + 1 if value > most else 8


def _usual_residual(value: int) -> tuple[str, int]:
    return "residual", 0 if value <= _IDENTITY_BITS else min(value, _IDENTITY_BITS + 2)


def _usual_weighted(value: int) -> tuple[str, int]:
    return _usual_residual(_IDENTITY_BITS + weight_and_shift(value)[1])


def _to_nearest(total: Integers, value: int, tensors: Mapping[str, NDArray[Any]]) -> Integers:
    """Divide accumulators by 2^value in float32 and round to nearest, ties to even.

    The hardware does the same. The conversion to float32 rounds accumulators of more than 24 bits,
    so these are rounded twice.

    Args:
        total: accumulators of any shape.
        value: base-2 logarithm of the divisor.
        tensors: not used.
    """
    scaled = np.rint(total.astype(np.float32) * np.float32(2.0**-value))
    return np.asarray(scaled, np.int64)


def _adds_tensor(name: str, a_channel: bool) -> Apply:
    def apply(total: Integers, value: int, tensors: Mapping[str, NDArray[Any]]) -> Integers:
        return total + (_each_channel(tensors[name]) if a_channel else tensors[name])

    return apply


def _each_channel(values: NDArray[Any]) -> Integers:
    return values[None, :, None, None].astype(np.int64)


BASIC: tuple[StepKind, ...] = (
    StepKind(
        "shr", ">>", lambda total, value, _: total >> value, check=check_shift, usual=_usual_shift
    ),
    StepKind(
        "shr_even", ">> even", _to_nearest, check=check_shift, usual=lambda _: ("shr_even", 8)
    ),
    StepKind(
        "shl", "<<", lambda total, value, _: total << value, check=check_shift,
        usual=lambda _: ("shr", 4),
    ),
    StepKind(
        "min", "min", lambda total, value, _: np.minimum(total, value),
        usual=lambda _: ("min", 127),
    ),
    StepKind(
        "max", "max", lambda total, value, _: np.maximum(total, value), {"relu": 0},
        usual=lambda _: ("max", 0),
    ),
    StepKind("bias", "bias", _adds_tensor("bias", True), {"bias": 0, "bias 32": 32}, False),
    StepKind("add", "add", _adds_tensor("add", False), {"add": 0}, False, title="add"),
    StepKind(
        "residual", "residual",
        lambda total, value, tensors: total + (tensors["residual"].astype(np.int64) << value),
        check=check_shift, usual=_usual_residual, title="residual",
    ),
    StepKind(
        "weighted", "weighted",
        lambda total, value, tensors: total + tensors["residual"].astype(np.int64) * value,
        check=_check_weight, usual=_usual_weighted, title="residual",
    ),
    StepKind(
        "offset", "+", lambda total, value, _: total + value, usual=lambda _: ("offset", 128)
    ),
    StepKind(
        "shr_channel", ">> channel",
        lambda total, _, tensors: total >> _each_channel(tensors["shr_channel"]),
        {">> channel": 0}, check=_check_channel_shift,
        usual=lambda value: ("shr_channel", 8 if value else 0),
    ),
)  # fmt: skip
