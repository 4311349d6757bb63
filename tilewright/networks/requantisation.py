"""Compute the constants of integer layers: shifts, multipliers, bounds and biases.

The step of a tensor is the real value of one integer unit. The step of an int8 tensor is its scale.
The step of an int32 accumulator is the step of the data times the step of the weights.

An accelerator converts accumulators to int8 outputs with a right shift that rounds half up. This is
exact if the ratio of the accumulator's step to the output's step is a power of two. Otherwise,
`scale_weights` multiplies the weights by the ratio. Rounding these products to int8 gives the
coarse weights. The rounding errors, scaled up, are the fine weights. A layer can correct the
rounding by running in two passes: the first pass computes the sums of the fine weights, and the
second pass adds them to the sums of the coarse weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.networks.errors import QuantisationError
from tilewright.networks.fused_calls import Quantisation
from tilewright.targets.epilogue import (
    CHANNEL_SPREAD,
    NEAR_BIAS,
    NEAR_SHIFTS,
    RESIDUALS,
    EpilogueOp,
)
from tilewright.targets.layer import Scale

MAX_RESIDUAL_SHIFT = 21
"""Maximum left shift in bits by which a residual is scaled."""
MAX_SHIFT = 31
"""Maximum shift of an accumulator in bits."""
MAX_OFFSET_SHIFT = 15
"""Largest right shift in bits whose rounding constant (half of 2 to the power of the shift) fits
into a signed 16-bit immediate."""
INT8 = (-128, 127)
"""Smallest and largest value of int8."""
ALMOST = 1e-4
"""Maximum relative difference between a ratio and a power of two at which the ratio counts as this
power of two. The largest int8 value, 127, is then off by at most 1/79 of a quantisation step."""

Real = NDArray[np.float64]
Integers = NDArray[np.int64]


class SumsOverflow(Exception):
    """Raised if a value in the epilogue or the accumulator of a layer could exceed 32 bits."""


def scale_of(tensor: str, quantisation: Quantisation) -> Scale:
    """Return the scale and zero point of a tensor in int8.

    128 is subtracted from the zero point of a uint8 tensor.

    Args:
        tensor: name of the tensor for messages.
        quantisation: its quantisation.

    Raises:
        QuantisationError: the tensor has one scale per channel, its scale is computed at run time
            or is not positive, or its type is neither int8 nor uint8.
    """
    q = quantisation
    if len(set(q.scale)) > 1 or len(set(q.zero_point)) > 1:
        raise QuantisationError(
            f"the tensor '{tensor}' has one scale per channel, from {min(q.scale):g} to "
            f"{max(q.scale):g}, but only weights may have several scales: {_WAY_OUT}"
        )
    steps, zeros = steps_of(tensor, q)
    return Scale(float(steps[0]), int(zeros[0]))


_WAY_OUT = (
    "quantise the float model with Tilewright, or run the operators that read it on the CPU "
    "with --keep-float"
)


def steps_of(tensor: str, quantisation: Quantisation) -> tuple[Real, Integers]:
    """Return the scales and zero points of a tensor in int8.

    128 is subtracted from the zero points of a uint8 tensor.

    Args:
        tensor: name of the tensor for messages.
        quantisation: its quantisation.

    Returns:
        The scales (float64) and the zero points (int64), each of shape (1,), or (channels,) if the
        tensor has one per channel.

    Raises:
        QuantisationError: a scale is computed at run time or is not positive, or the type is
            neither int8 nor uint8.
    """
    q = quantisation
    if q.dtype not in ("int8", "uint8"):
        raise QuantisationError(
            f"the tensor '{tensor}' has type {q.dtype} instead of int8; {_WAY_OUT}"
        )
    if not q.scale:
        raise QuantisationError(
            f"the scale of the tensor '{tensor}' is computed at run time; {_WAY_OUT}"
        )
    steps = np.array(q.scale, np.float64)
    if not (np.isfinite(steps).all() and (steps > 0).all()):
        odd = steps[~(np.isfinite(steps) & (steps > 0))][0]
        raise QuantisationError(
            f"the scale {odd:.9g} of the tensor '{tensor}' is not a positive number; "
            "quantise the model again"
        )
    zeros = np.array(q.zero_point or (0,), np.int64) - (128 if q.dtype == "uint8" else 0)
    return steps, zeros


def nearest_shifts(ratios: Real) -> tuple[Integers, bool]:
    """Return the right shifts that approximate multiplications by `ratios` best.

    Args:
        ratios: positive numbers of any shape.

    Returns:
        shifts: −log2 of the ratios, rounded to integers, in the same shape.
        exact: whether every ratio is a power of two, within the relative tolerance `ALMOST`.
    """
    shifts = np.rint(-np.log2(ratios))
    exact = (np.abs(ratios * np.exp2(shifts) - 1) <= ALMOST).all()
    return shifts.astype(np.int64), bool(exact)


def shifts_of(ratios: Real) -> Integers | None:
    """Return the right shifts that are equivalent to multiplications by `ratios`.

    Args:
        ratios: positive numbers of any shape.

    Returns:
        Shifts in the same shape; None if a ratio is not a power of two.
    """
    shifts, exact = nearest_shifts(ratios)
    return shifts if exact else None


@dataclass(frozen=True, eq=False)
class Requantisation:
    """Conversion of an int32 accumulator to int8.

    Attributes:
        shifts: right shifts in bits, of shape (1,) or (channels,).
        residual: the operation that adds a second int8 tensor before the shift, if there is one.
        bounds: smallest and largest int8 value that is written.
    """

    shifts: Integers
    residual: EpilogueOp | None = None
    bounds: tuple[int, int] = INT8

    @property
    def by_channel(self) -> bool:
        """True if channels have different shifts."""
        return len(set(self.shifts.tolist())) > 1

    @property
    def is_possible(self) -> bool:
        """True if the shifts are within the limits of 32-bit accumulators."""
        if self.by_channel:
            return bool(0 <= self.shifts.min() <= self.shifts.max() <= MAX_SHIFT)
        left = self.residual.value if self.residual and self.residual.kind == "residual" else 0
        return 0 <= left <= MAX_RESIDUAL_SHIFT and abs(int(self.shifts[0])) <= MAX_SHIFT


def bounds_of(scale: Scale, relu: bool, upper: float | None) -> tuple[int, int]:
    """Return the smallest and largest int8 value of a tensor after its activation.

    Args:
        scale: scale and zero point of the tensor.
        relu: whether values below 0 are clipped.
        upper: upper clipping bound as a real number, None if there is none.
    """
    low, high = INT8
    if upper is not None:
        high = max(low, min(high, round(upper / scale.step) + scale.zero_point))
    return (min(max(low, scale.zero_point), high) if relu else low), high


@dataclass(frozen=True, eq=False)
class Finished:
    """Epilogue of a layer with its constants.

    Attributes:
        epilogue: the operations in execution order.
        bias: int32 bias of shape (o,), None if the layer needs none or uses an immediate.
        add: int32 constant tensor of shape (1, o, oh, ow), or None.
        shifts: int32 right shifts of shape (o,), None if all channels share one shift.
    """

    epilogue: tuple[EpilogueOp, ...]
    bias: NDArray[np.int32] | None = None
    add: NDArray[np.int32] | None = None
    shifts: NDArray[np.int32] | None = None


def finish_epilogue(
    r: Requantisation, constants: Sequence[Real], channels: int, *, has_bias: bool = False,
    activation: EpilogueOp | None = None, zero: int = 0,
) -> Finished:  # fmt: skip
    """Build the epilogue that adds constants to the accumulator and requantises it.

    Args:
        r: shifts, residual and bounds.
        constants: constants to add, in units of the accumulator, each of shape (o,) or (1, o, oh,
            ow). The rounding constant of the shift is added automatically.
        channels: number of output channels, o.
        has_bias: add a bias even if all its values are 0.
        activation: operation after the constants.
        zero: constant that is added after the activation, together with the rounding constant. It
            is ignored if there is no activation.

    Returns:
        The epilogue with its constants.

    Raises:
        SumsOverflow: a constant does not fit into 32 bits.
    """
    steps: list[EpilogueOp] = []
    shifts = r.shifts if r.by_channel else r.shifts[:1]
    half = np.where(shifts > 0, 1 << np.maximum(shifts - 1, 0), 0)
    by_pixel = any(constant.ndim == 4 for constant in constants)
    bias = add = None
    after = zero + int(half[0])
    if activation is not None:
        half = np.zeros_like(half)
    if constants or has_bias or r.by_channel or int(half.max()) >= 1 << MAX_OFFSET_SHIFT:
        total = np.zeros(channels)[_AS_IMAGE] if by_pixel else np.zeros(channels)
        for constant in constants:
            total = total + (constant[_AS_IMAGE] if by_pixel and constant.ndim == 1 else constant)
        integers = np.rint(total) + (half[_AS_IMAGE] if by_pixel and half.size > 1 else half)
        info = np.iinfo(np.int32)
        if integers.min() < info.min or integers.max() > info.max:
            raise SumsOverflow
        if by_pixel:
            add = integers.astype(np.int32)
            steps.append(EpilogueOp("add"))
        else:
            bias = integers.astype(np.int32)
            near = int(np.abs(bias.astype(np.int64)).max(initial=0)) < NEAR_BIAS
            steps.append(EpilogueOp("bias", 0 if near else 32))
    if r.residual is not None:
        steps.append(r.residual)
    if activation is not None:
        steps += [activation, *([EpilogueOp("offset", after)] if after else [])]
    elif bias is None and add is None and int(half[0]):
        steps.append(EpilogueOp("offset", int(half[0])))
    if r.by_channel:
        steps.append(shift_of_channels(r.shifts))
    elif shift := int(shifts[0]):
        steps.append(EpilogueOp("shr", shift) if shift > 0 else EpilogueOp("shl", -shift))
    low, high = r.bounds
    steps += [EpilogueOp("min", high), EpilogueOp("max", low)]
    channel_shifts = r.shifts.astype(np.int32) if r.by_channel else None
    return Finished(tuple(steps), bias, add, channel_shifts)


_AS_IMAGE = (None, slice(None), None, None)
"""Index expression that reshapes an array from (o,) to (1, o, 1, 1)."""


def check_sums(weight: NDArray[np.int8] | None, products: int, finished: Finished) -> None:
    """Check that the int32 accumulators of a layer cannot overflow, whatever the int8 data are.

    Args:
        weight: int8 weights of shape (o, c, kh, kw), or None if the second operand is an
            activation, which may have any value.
        products: number of products per sum, used if `weight` is None.
        finished: the epilogue. Its constants and residual are included in the check.

    Raises:
        SumsOverflow: an accumulator could exceed 32 bits.
    """
    if weight is None:
        # The largest product of two int8 values is (−128)² = 2^14.
        most = np.array([products << 14])
    else:
        most = 128 * np.abs(weight.astype(np.int64)).sum(axis=(1, 2, 3))
    if finished.bias is not None:
        most = most + np.abs(finished.bias.astype(np.int64))
    if finished.add is not None:
        most = most + np.abs(finished.add.astype(np.int64)).max(axis=(0, 2, 3))
    for op in finished.epilogue:
        if op.kind in RESIDUALS:
            most = most + 128 * (op.value if op.kind == "weighted" else 1 << op.value)
    if int(most.max(initial=0)) >= 1 << 31:
        raise SumsOverflow


def shift_of_channels(shifts: NDArray[np.integer]) -> EpilogueOp:
    """Return the epilogue operation that shifts each channel by its own number of bits.

    The operation does not hold the shifts. Its value states their range (`EpilogueOp.shift_range`):
    a narrow range that starts at the value, or any shifts if the value is 0.

    Args:
        shifts: right shifts of shape (channels,).
    """
    least, most = int(shifts.min()), int(shifts.max())
    near = EpilogueOp("shr_channel", max(least, NEAR_SHIFTS[0]))
    return (
        near
        if near.shift_range[0] <= least and most <= near.shift_range[1]
        else replace(near, value=0)
    )


FINE_BITS = 7
"""Number of bits by which the rounding errors of the coarse weights are scaled up to become the
fine weights. They then use the range of int8."""
LARGEST = 127
"""Largest magnitude of an int8 weight."""
WORTH = 1.0
"""Minimum mean gain in bits for which each channel gets a shift of its own. With a smaller gain,
separate shifts are not worth their cost."""
_SPREAD = 74.0
"""Assumed standard deviation of int8 data: the standard deviation of a uniform distribution over
the whole range, 256 / √12."""
_SIGMAS = 6.0
"""Number of standard deviations of a sum that its int8 result must be able to represent."""


@dataclass(frozen=True, eq=False)
class Scaled:
    """Weights multiplied by a factor, as int8 arrays of the same shape.

    Attributes:
        coarse: the products, scaled up by 2^`shifts` and rounded. The sums of `coarse` are shifted
            right by `shifts`.
        shifts: right shifts of shape (o,).
        fine: the rounding errors of `coarse`, scaled up; None if there are none. The sums of
            `fine`, shifted right by `fine_shift`, form an int8 tensor whose step is 2^`residual`
            times the step of the sums of `coarse`.
        fine_shift: right shift of the sums of `fine`.
        residual: left shift of that int8 tensor when it is added to the sums of `coarse`.
        decibels: signal-to-noise ratio of `coarse` alone; None if rounding causes no error.
    """

    coarse: NDArray[np.int8]
    shifts: Integers
    fine: NDArray[np.int8] | None = None
    fine_shift: int = 0
    residual: int = 0
    decibels: float | None = None


def scale_weights(weight: Integers | Real, factors: Real) -> Scaled | None:
    """Multiply weights by factors, and represent the products as int8 arrays and right shifts.

    The products of each channel are scaled up by a power of two, as far as int8 allows. The shifts
    undo this scaling.

    Args:
        weight: weights of shape (o, …).
        factors: factors of shape (1,) or (o,).

    Returns:
        The scaled weights, or None if a shift is negative or too large.
    """
    along = factors.reshape(-1, *[1] * (weight.ndim - 1))
    exact = weight * along
    shifts = _shifts(exact.reshape(len(exact), -1))
    if shifts.min() < 0:
        return None
    exact = exact * np.exp2(shifts).reshape(-1, *[1] * (weight.ndim - 1))
    coarse = _balanced(exact)
    left = exact - coarse
    fine = np.clip(np.rint(left * (1 << FINE_BITS)), -128, 127)
    if not fine.any():
        return Scaled(coarse.astype(np.int8), shifts)
    k = _residual_shift(fine.reshape(len(fine), -1))
    if k > MAX_RESIDUAL_SHIFT:
        return None
    return Scaled(
        coarse.astype(np.int8), shifts, fine.astype(np.int8), FINE_BITS + k, k,
        10 * math.log10(float(np.sum(exact**2)) / float(np.sum(left**2))),
    )  # fmt: skip


def _shifts(exact: Real) -> Integers:
    """Return by how many bits the weights of each channel are scaled up.

    The weights of a channel are scaled up as far as int8 holds them, and at most `CHANNEL_SPREAD`
    bits more than the weights of any other channel. Separate shifts cost one more cycle per
    accumulator, so all channels get the same shift if separate ones gain less than `WORTH` bits on
    average.

    Args:
        exact: unrounded weights of shape (o, n).

    Returns:
        Shifts in bits, of shape (o,).
    """
    largest = np.abs(exact).max(axis=1)
    known = largest > 0
    shifts = np.full(len(exact), MAX_SHIFT, np.int64)
    shifts[known] = np.floor(np.log2(LARGEST / largest[known])).astype(np.int64)
    least = int(shifts.min())
    limited = np.minimum(shifts, min(MAX_SHIFT, least + CHANNEL_SPREAD))
    return limited if (limited - least).mean() >= WORTH else np.full_like(limited, least)


def _balanced(exact: Real) -> Real:
    """Round weights to int8 so that the rounding errors of each channel nearly cancel.

    Then the mean of the data contributes little to the sums of the fine weights (the scaled
    rounding errors). The sums are smaller, and the int8 tensor that holds them can have a finer
    step.

    Args:
        exact: unrounded weights of shape (o, …).
    """
    coarse = np.rint(exact)
    for weights, rounded in zip(
        exact.reshape(len(exact), -1), coarse.reshape(len(exact), -1), strict=True
    ):
        left = weights - rounded
        excess = int(np.rint(left.sum()))
        if excess:
            order = np.argsort(-np.sign(excess) * left, kind="stable")[: abs(excess)]
            rounded[order] += np.sign(excess)
    return np.clip(coarse, -LARGEST, LARGEST)


def _residual_shift(fine: Real) -> int:
    """Return the shift between the fine weights' int8 result and the coarse weights' sums.

    The int8 result has to hold the worst case of the sums of the fine weights, or six standard
    deviations of these sums if that is less.

    Args:
        fine: fine weights of shape (o, n).

    Returns:
        k, where the step of the int8 result is 2^k times the step of the sums of the coarse
        weights.
    """
    worst = 128 * np.abs(fine).sum(axis=1)
    likely = _SIGMAS * _SPREAD * np.sqrt((fine**2).sum(axis=1)) + 128 * np.abs(fine.sum(axis=1))
    reach = float(np.minimum(worst, likely).max()) / (1 << FINE_BITS)
    return max(0, math.ceil(math.log2(reach / LARGEST))) if reach > 0 else 0


def weighted_pair(one: float, two: float) -> tuple[int, int, int] | None:
    """Approximate two factors by integers divided by a common power of two.

    Args:
        one: the smaller factor.
        two: the larger factor.

    Returns:
        (integer for `one`, integer for `two`, right shift). Each integer has up to seven
        significant bits; the second one may in addition be multiplied by a power of two. The result
        is None if no right shift reaches the factors.
    """
    shift = min(MAX_SHIFT, math.floor(math.log2((LARGEST + 0.49) / one)))
    left = max(0, math.ceil(math.log2(math.ldexp(two, shift) / (LARGEST + 0.49))))
    if shift < 0 or left > MAX_RESIDUAL_SHIFT:
        return None
    first, second = round(math.ldexp(one, shift)), round(math.ldexp(two, shift - left))
    return (first, second << left, shift) if min(first, second) > 0 else None


def spread_taps(factor: float, height: int, width: int) -> tuple[NDArray[np.int8], int] | None:
    """Return integer weights that average a window and multiply the average by a factor.

    The sum of the weights is factor · 2^shift. The weights differ by at most 1, and the larger ones
    are spread evenly.

    Args:
        factor: the factor.
        height: height of the window.
        width: width of the window.

    Returns:
        The int8 weights of shape (height, width) and the right shift, or None if no right shift
        reaches the factor.
    """
    taps = height * width
    shift = min(MAX_SHIFT, math.floor(math.log2(LARGEST * taps / factor)))
    if shift < 0:
        return None
    total = round(math.ldexp(factor, shift))
    cumulative = np.arange(taps + 1, dtype=np.int64) * total // taps
    return np.diff(cumulative).astype(np.int8).reshape(height, width), shift
