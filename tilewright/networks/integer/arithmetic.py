"""Computes the numbers of integer layers: scales, shifts, bounds, constants.

An int8 tensor counts in steps, from a zero point. A sum of products counts in the data's step times
the weights'. A right shift with rounding half up brings it to the output's step, where the ratio of
the two is a power of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.networks.errors import QuantisationError
from tilewright.networks.fused_calls import Quantisation
from tilewright.targets.epilogue import NEAR_BIAS, NEAR_SHIFTS, RESIDUALS, EpilogueOp
from tilewright.targets.layer import Scale

MAX_RESIDUAL_SHIFT = 21
MAX_SHIFT = 31
MAX_OFFSET_SHIFT = 15
"""Half of 2^15 is the largest rounding constant that an immediate of 16 bits holds."""
INT8 = (-128, 127)
ALMOST = 1e-4
"""A ratio this close to a power of two is taken for one: 127 steps are off by a 79th of one."""

Real = NDArray[np.float64]
Integers = NDArray[np.int64]


class SumsOverflow(Exception):
    """A layer whose sums could leave 32 bits."""


def scale_of(tensor: str, quantisation: Quantisation) -> Scale:
    """The scale of a whole int8 tensor; of a uint8 one, that of its values less 128. Raises
    `QuantisationError` for a scale a channel, one that is computed at run time, and other types."""
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
    """The step and the zero point of a tensor as int8, or of each channel: (1,) or (channels,).
    Raises `QuantisationError` for a scale that is computed at run time or no positive number, and
    for other types than int8 and uint8."""
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


def shifts_of(ratios: Real) -> Integers | None:
    """The right shifts that stand for multiplications by `ratios` (any shape): −log2 of each; None
    where one is no power of two."""
    found = np.rint(-np.log2(ratios))
    if (np.abs(ratios * np.exp2(found) - 1) > ALMOST).any():
        return None
    return found.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Requantisation:
    """From sums to int8: right shifts (1,) or one a channel (channels,), the int8 tensor that is
    added before (`residual`: how it is weighted), and the least and largest int8 that is written.
    """

    shifts: Integers
    residual: EpilogueOp | None = None
    bounds: tuple[int, int] = INT8

    @property
    def by_channel(self) -> bool:
        """Whether channels are shifted by amounts of their own."""
        return len(set(self.shifts.tolist())) > 1

    @property
    def is_possible(self) -> bool:
        """Whether shifts of 32 bits can do it."""
        if self.by_channel:
            return bool(0 <= self.shifts.min() <= self.shifts.max() <= MAX_SHIFT)
        left = self.residual.value if self.residual and self.residual.kind == "residual" else 0
        return 0 <= left <= MAX_RESIDUAL_SHIFT and abs(int(self.shifts[0])) <= MAX_SHIFT


def bounds_of(scale: Scale, relu: bool, upper: float | None) -> tuple[int, int]:
    """The least and largest int8 of a tensor in that scale that a relu cuts at 0 and a clip at
    `upper`."""
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


def finish(
    r: Requantisation, constants: Sequence[Real], channels: int, *, has_bias: bool = False,
    activation: EpilogueOp | None = None, zero: int = 0,
) -> Finished:  # fmt: skip
    """The epilogue that adds `constants`, each (o,) or (1, o, oh, ow) in steps of the sums, and
    requantises; the constant that rounds a shift is added to them. A layer that `has_bias` adds a
    value a channel, be all of them 0. An `activation` comes behind what is added; behind it `zero`
    is, with the constant that rounds. Raises `SumsOverflow` for constants beyond 32 bits."""
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
    """Raises `SumsOverflow` where int8 data could bring the sums of a layer with weights (o, c, kh,
    kw), what is added to them included, out of 32 bits. Weights that are data themselves, None,
    may have any value: a sum has that many `products`."""
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
    """The step that promises as much as holds of a channel's shifts, (channels,)."""
    least, most = int(shifts.min()), int(shifts.max())
    near = EpilogueOp("shr_channel", max(least, NEAR_SHIFTS[0]))
    return near if near.amounts[0] <= least and most <= near.amounts[1] else replace(near, value=0)
