"""Multiplies by any number, where an accelerator can only shift: the number goes into weights.

A sum of products times a factor a channel is the sum of products with weights times that factor.
Rounding those weights to int8 alone would lose precision that the model's integers have. So each is
written as two int8 weights, `coarse + fine / 2^FINE_BITS`: 15 bits, which rounding hardly changes.
A pass with the fine ones comes first and leaves a small int8 tensor, which the other adds to its
sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.networks.integer.arithmetic import MAX_RESIDUAL_SHIFT, MAX_SHIFT, Integers, Real
from tilewright.targets.epilogue import CHANNEL_SPREAD

FINE_BITS = 7
LARGEST = 127
WORTH = 1.0
"""Bits that shifts a channel have to gain in the mean."""
_SPREAD = 74.0
"""Standard deviation of int8 data that use their whole range."""
_SIGMAS = 6.0


@dataclass(frozen=True, eq=False)
class Scaled:
    """Weights times a factor: int8 of the same shape. The sums of `coarse` are shifted to the right
    by `shifts` (o,); those of `fine`, by `fine_shift`, are an int8 tensor that counts 2^`residual`
    of them. `decibels` is the power of the exact weights over that of what `coarse` alone loses;
    None where it loses nothing, and then `fine` is None, too."""

    coarse: NDArray[np.int8]
    shifts: Integers
    fine: NDArray[np.int8] | None = None
    fine_shift: int = 0
    residual: int = 0
    decibels: float | None = None


def scaled(weight: Integers | Real, factors: Real) -> Scaled | None:
    """Weights (o, …) times factors, (1,) or (o,), as large as int8 allows; None where no right
    shift reaches them."""
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
    """By how many bits the weights of each channel, (o, …), are scaled up: as far as int8 holds
    them, and not too far from each other; by one number where that gains little, since a shift a
    channel takes a cycle more for every accumulator."""
    largest = np.abs(exact).max(axis=1)
    known = largest > 0
    found = np.full(len(exact), MAX_SHIFT, np.int64)
    found[known] = np.floor(np.log2(LARGEST / largest[known])).astype(np.int64)
    least = int(found.min())
    own = np.minimum(found, min(MAX_SHIFT, least + CHANNEL_SPREAD))
    return own if (own - least).mean() >= WORTH else np.full_like(own, least)


def _balanced(exact: Real) -> Real:
    """Weights (o, …) rounded so that what is left of a channel's sums up to next to nothing. Data
    that have a mean then bring next to nothing of it into the first pass, whose int8 result can be
    all the finer."""
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
    """By how many bits int8 has to be coarser than the sums to hold those of fine weights (o, …):
    at the worst, or, for many weights, at six standard deviations of what data do to them."""
    worst = 128 * np.abs(fine).sum(axis=1)
    likely = _SIGMAS * _SPREAD * np.sqrt((fine**2).sum(axis=1)) + 128 * np.abs(fine.sum(axis=1))
    reach = float(np.minimum(worst, likely).max()) / (1 << FINE_BITS)
    return max(0, math.ceil(math.log2(reach / LARGEST))) if reach > 0 else 0


def weighted_pair(one: float, two: float) -> tuple[int, int, int] | None:
    """Two factors, the first no larger than the second, as integers over a power of two: (weight of
    one, factor of two, right shift), each of seven bits, the second times a power of two; None
    where no right shift reaches them."""
    shift = min(MAX_SHIFT, math.floor(math.log2((LARGEST + 0.49) / one)))
    left = max(0, math.ceil(math.log2(math.ldexp(two, shift) / (LARGEST + 0.49))))
    if shift < 0 or left > MAX_RESIDUAL_SHIFT:
        return None
    first, second = round(math.ldexp(one, shift)), round(math.ldexp(two, shift - left))
    return (first, second << left, shift) if min(first, second) > 0 else None


def spread_taps(factor: float, height: int, width: int) -> tuple[NDArray[np.int8], int] | None:
    """The taps (height, width) that average a window and multiply by a factor: integers whose sum
    is factor · 2^shift, as equal as can be, the larger ones spread evenly; and the shift. None
    where no right shift reaches it."""
    taps = height * width
    shift = min(MAX_SHIFT, math.floor(math.log2(LARGEST * taps / factor)))
    if shift < 0:
        return None
    total = round(math.ldexp(factor, shift))
    ends = np.arange(taps + 1, dtype=np.int64) * total // taps
    return np.diff(ends).astype(np.int8).reshape(height, width), shift
