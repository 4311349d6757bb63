"""Computes the numbers of integer layers: how a scale becomes a shift or a multiplier, bounds, and
constants.

The scale of an int8 tensor is its step. The scale of a sum of products is the step of the data
times that of the weights. If the ratio of this scale to the output's scale is a power of two, a
right shift that rounds half up brings the sums to the output's scale. If it is another number, the
weights are multiplied by it.
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
MAX_SHIFT = 31
MAX_OFFSET_SHIFT = 15
"""Half of 2^15 is the largest rounding constant that an immediate of 16 bits holds."""
INT8 = (-128, 127)
ALMOST = 1e-4
"""Largest relative difference from a power of two at which a ratio counts as that power of two. The
largest int8, 127, is then wrong by a 79th of a step."""

Real = NDArray[np.float64]
Integers = NDArray[np.int64]


class SumsOverflow(Exception):
    """A layer whose sums could leave 32 bits."""


def scale_of(tensor: str, quantisation: Quantisation) -> Scale:
    """Return the scale of an int8 tensor, or of a uint8 tensor after 128 is subtracted from its
    values. Raises `QuantisationError` for a tensor with one scale per channel, with a scale that is
    computed at run time, or of another type."""
    q = quantisation
    if len(set(q.scale)) > 1 or len(set(q.zero_point)) > 1:
        raise QuantisationError(
            f"tensor '{tensor}' has a scale a channel, from {min(q.scale):g} to {max(q.scale):g}; "
            f"only weights may: {_WAY_OUT}"
        )
    steps, zeros = steps_of(tensor, q)
    return Scale(float(steps[0]), int(zeros[0]))


_WAY_OUT = (
    "quantise the float model with Tilewright, or leave the operators that read it to the CPU "
    "with --keep-float"
)


def steps_of(tensor: str, quantisation: Quantisation) -> tuple[Real, Integers]:
    """Return the steps and the zero points of a tensor as int8: one, (1,), or one per channel,
    (channels,). Raises `QuantisationError` for a scale that is computed at run time or is not a
    positive number, and for other types than int8 and uint8."""
    q = quantisation
    if q.dtype not in ("int8", "uint8"):
        raise QuantisationError(f"tensor '{tensor}' is {q.dtype}, not int8; {_WAY_OUT}")
    if not q.scale:
        raise QuantisationError(
            f"the scale of tensor '{tensor}' is computed at run time; {_WAY_OUT}"
        )
    steps = np.array(q.scale, np.float64)
    if not (np.isfinite(steps).all() and (steps > 0).all()):
        odd = steps[~(np.isfinite(steps) & (steps > 0))][0]
        raise QuantisationError(
            f"the scale {odd:.9g} of tensor '{tensor}' is no positive number; quantise it again"
        )
    zeros = np.array(q.zero_point or (0,), np.int64) - (128 if q.dtype == "uint8" else 0)
    return steps, zeros


def nearest_shifts(ratios: Real) -> tuple[Integers, bool]:
    """Return the right shifts nearest to multiplications by `ratios`, positive numbers of any
    shape: −log2 of each, rounded; and whether each ratio is `ALMOST` the power of two that its
    shift stands for."""
    shifts = np.rint(-np.log2(ratios))
    exact = (np.abs(ratios * np.exp2(shifts) - 1) <= ALMOST).all()
    return shifts.astype(np.int64), bool(exact)


def shifts_of(ratios: Real) -> Integers | None:
    """Return the right shifts that stand for multiplications by `ratios`, positive numbers of any
    shape; None if one of them is not a power of two."""
    shifts, exact = nearest_shifts(ratios)
    return shifts if exact else None


@dataclass(frozen=True, eq=False)
class Requantisation:
    """The way from sums to int8.

    Attributes:
        shifts: right shifts: one, (1,), or one per channel, (channels,).
        residual: how an int8 tensor is weighted that is added before the shift, if there is one.
        bounds: the least and the largest int8 that is written.
    """

    shifts: Integers
    residual: EpilogueOp | None = None
    bounds: tuple[int, int] = INT8

    @property
    def by_channel(self) -> bool:
        """Whether channels have different shifts."""
        return len(set(self.shifts.tolist())) > 1

    @property
    def is_possible(self) -> bool:
        """Whether shifts of 32-bit integers reach the output's scale."""
        if self.by_channel:
            return bool(0 <= self.shifts.min() <= self.shifts.max() <= MAX_SHIFT)
        left = self.residual.value if self.residual and self.residual.kind == "residual" else 0
        return 0 <= left <= MAX_RESIDUAL_SHIFT and abs(int(self.shifts[0])) <= MAX_SHIFT


def bounds_of(scale: Scale, relu: bool, upper: float | None) -> tuple[int, int]:
    """Return the least and the largest int8 of a tensor in that scale. A relu cuts it at 0, a clip
    at `upper`."""
    low, high = INT8
    if upper is not None:
        high = max(low, min(high, round(upper / scale.step) + scale.zero_point))
    return (min(max(low, scale.zero_point), high) if relu else low), high


@dataclass(frozen=True, eq=False)
class Finished:
    """The epilogue of a layer with its constants: `bias` and `shifts` (o,), `add` (1, o, oh, ow),
    each int32 or None where an immediate or nothing takes its place."""

    epilogue: tuple[EpilogueOp, ...]
    bias: NDArray[np.int32] | None = None
    add: NDArray[np.int32] | None = None
    shifts: NDArray[np.int32] | None = None


def finish_epilogue(
    r: Requantisation, constants: Sequence[Real], channels: int, *, has_bias: bool = False,
    activation: EpilogueOp | None = None, zero: int = 0,
) -> Finished:  # fmt: skip
    """Return the epilogue that adds constants to the sums and requantises them.

    Args:
        r: the shifts, the residual and the bounds.
        constants: what is added, in steps of the sums, each of shape (o,) or (1, o, oh, ow). The
            constant that rounds the shift is added to them.
        channels: number of output channels.
        has_bias: add one value per channel even if all of them are 0.
        activation: step behind the constants.
        zero: constant that is added behind the activation, with the constant that rounds.

    Raises:
        SumsOverflow: a constant does not fit into 32 bits.
    """
    steps: list[EpilogueOp] = []
    shifts = r.shifts if r.by_channel else r.shifts[:1]
    half = np.where(shifts > 0, 1 << np.maximum(shifts - 1, 0), 0)
    by_pixel = any(each.ndim == 4 for each in constants)
    bias = add = None
    after = zero + int(half[0])
    if activation is not None:
        half = np.zeros_like(half)
    if constants or has_bias or r.by_channel or int(half.max()) >= 1 << MAX_OFFSET_SHIFT:
        total = np.zeros(channels)[_AS_IMAGE] if by_pixel else np.zeros(channels)
        for each in constants:
            total = total + (each[_AS_IMAGE] if by_pixel and each.ndim == 1 else each)
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
    own = r.shifts.astype(np.int32) if r.by_channel else None
    return Finished(tuple(steps), bias, add, own)


_AS_IMAGE = (None, slice(None), None, None)


def check_sums(weight: NDArray[np.int8] | None, products: int, finished: Finished) -> None:
    """Raise `SumsOverflow` if int8 data could bring the sums of a layer, with all that is added to
    them, out of 32 bits. `weight` has the shape (o, c, kh, kw), or is None if the weights are data
    themselves. These may have any value; a sum then has that many `products`."""
    if weight is None:
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
    """Return the step that shifts each channel by its own amount, of `shifts` (channels,). Its
    value states the narrowest range of amounts that holds for all channels."""
    least, most = int(shifts.min()), int(shifts.max())
    near = EpilogueOp("shr_channel", max(least, NEAR_SHIFTS[0]))
    return near if near.amounts[0] <= least and most <= near.amounts[1] else replace(near, value=0)


FINE_BITS = 7
LARGEST = 127
WORTH = 1.0
"""Bits that shifts a channel have to gain in the mean."""
_SPREAD = 74.0
"""Standard deviation of int8 data that use their whole range."""
_SIGMAS = 6.0


@dataclass(frozen=True, eq=False)
class Scaled:
    """Weights times a factor, as int8 of the same shape.

    Attributes:
        coarse: the weights, rounded. Their sums are shifted to the right by `shifts`, (o,).
        fine: what rounding leaves of the weights; None if that is nothing. Their sums, shifted by
            `fine_shift`, are an int8 tensor whose step is 2^`residual` steps of the coarse sums.
        decibels: power of the exact weights over the power of the error of `coarse` alone; None if
            there is no error.
    """

    coarse: NDArray[np.int8]
    shifts: Integers
    fine: NDArray[np.int8] | None = None
    fine_shift: int = 0
    residual: int = 0
    decibels: float | None = None


def scale_weights(weight: Integers | Real, factors: Real) -> Scaled | None:
    """Multiply weights (o, …) by factors, (1,) or (o,), and scale the products up as far as int8
    allows. Return None if no right shift brings the sums back."""
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
    """Return by how many bits the weights of each channel, (o, …), are scaled up: as far as int8
    holds them, and by at most `CHANNEL_SPREAD` bits more than those of another channel. All
    channels get the same number where separate numbers gain little, since a shift per channel costs
    one more cycle for every accumulator."""
    largest = np.abs(exact).max(axis=1)
    known = largest > 0
    found = np.full(len(exact), MAX_SHIFT, np.int64)
    found[known] = np.floor(np.log2(LARGEST / largest[known])).astype(np.int64)
    least = int(found.min())
    own = np.minimum(found, min(MAX_SHIFT, least + CHANNEL_SPREAD))
    return own if (own - least).mean() >= WORTH else np.full_like(own, least)


def _balanced(exact: Real) -> Real:
    """Round weights (o, …) so that the errors of a channel add up to nearly nothing. The mean of
    the data then hardly contributes to the first pass, whose int8 result can have a finer step."""
    coarse = np.rint(exact)
    for own, rounded in zip(
        exact.reshape(len(exact), -1), coarse.reshape(len(exact), -1), strict=True
    ):
        left = own - rounded
        many = int(np.rint(left.sum()))
        if many:
            order = np.argsort(-np.sign(many) * left, kind="stable")[: abs(many)]
            rounded[order] += np.sign(many)
    return np.clip(coarse, -LARGEST, LARGEST)


def _residual_shift(fine: Real) -> int:
    """Return by how many bits the step of int8 has to be larger than that of the sums of fine
    weights (o, …), so that int8 holds these sums: in the worst case or, for many weights, up to six
    standard deviations of the sums."""
    worst = 128 * np.abs(fine).sum(axis=1)
    likely = _SIGMAS * _SPREAD * np.sqrt((fine**2).sum(axis=1)) + 128 * np.abs(fine.sum(axis=1))
    reach = float(np.minimum(worst, likely).max()) / (1 << FINE_BITS)
    return max(0, math.ceil(math.log2(reach / LARGEST))) if reach > 0 else 0


def weighted_pair(one: float, two: float) -> tuple[int, int, int] | None:
    """Return two factors, the first no larger than the second, as integers over a power of two:
    (integer for `one`, integer for `two`, right shift). Each integer has seven bits, the second
    times a power of two. Return None if no right shift reaches the factors."""
    shift = min(MAX_SHIFT, math.floor(math.log2((LARGEST + 0.49) / one)))
    left = max(0, math.ceil(math.log2(math.ldexp(two, shift) / (LARGEST + 0.49))))
    if shift < 0 or left > MAX_RESIDUAL_SHIFT:
        return None
    first, second = round(math.ldexp(one, shift)), round(math.ldexp(two, shift - left))
    return (first, second << left, shift) if min(first, second) > 0 else None


def spread_taps(factor: float, height: int, width: int) -> tuple[NDArray[np.int8], int] | None:
    """Return the taps (height, width) that average a window and multiply the average by a factor,
    and the right shift behind them. The taps are integers whose sum is factor · 2^shift, as equal
    as possible, with the larger ones spread evenly. Return None if no right shift reaches the
    factor."""
    taps = height * width
    shift = min(MAX_SHIFT, math.floor(math.log2(LARGEST * taps / factor)))
    if shift < 0:
        return None
    total = round(math.ldexp(factor, shift))
    ends = np.arange(taps + 1, dtype=np.int64) * total // taps
    return np.diff(ends).astype(np.int8).reshape(height, width), shift
