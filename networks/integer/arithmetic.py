"""The numbers of integer layers: exponents, shifts, bounds.

int8 tensors count in 2^exponent. A sum of products counts in 2^(data + weight); a right shift with
rounding half up brings it to the output's exponent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from networks.errors import QuantisationError
from networks.fused_calls import Quantisation
from targets.epilogue import NEAR_BIAS, NEAR_SHIFTS, EpilogueOp

MAX_RESIDUAL_SHIFT = 21
MAX_SHIFT = 31
MAX_OFFSET_SHIFT = 15
"""Half of 2^15 is the largest rounding constant that an immediate of 16 bits holds."""
INT8 = (-128, 127)


def exponent_of(tensor: str, quantisation: Quantisation) -> int:
    """log2 of a scale that holds for the whole tensor. Raises `QuantisationError` for one that does
    not, and as `exponents_of`."""
    q = quantisation
    if len(set(q.scale)) > 1:
        raise QuantisationError(
            f"tensor '{tensor}' has a scale a channel, from {min(q.scale):g} to {max(q.scale):g}; "
            f"only weights may: {_WAY_OUT}"
        )
    return int(exponents_of(tensor, q)[0])


_WAY_OUT = (
    "quantise the float model with Tilewright, or leave the operators that read it to the CPU "
    "with --keep-float"
)


def exponents_of(tensor: str, quantisation: Quantisation) -> NDArray[np.int64]:
    """log2 of the scale, or of a channel's each: (1,) or (channels,). Raises `QuantisationError`
    for what shifts cannot do: other scales, zero points, other types than int8."""
    q, way_out = quantisation, _WAY_OUT
    if q.dtype != "int8":
        raise QuantisationError(f"tensor '{tensor}' is {q.dtype}, not int8; {way_out}")
    if any(q.zero_point):
        raise QuantisationError(
            f"tensor '{tensor}' has the zero point {next(filter(None, q.zero_point))}, the "
            f"accelerator has none; {way_out}"
        )
    if not q.scale:
        raise QuantisationError(
            f"the scale of tensor '{tensor}' is computed at run time; {way_out}"
        )
    mantissas, exponents = np.frexp(np.array(q.scale, np.float64))
    if (mantissas != 0.5).any():
        odd = q.scale[int(np.argmax(mantissas != 0.5))]
        raise QuantisationError(
            f"the scale {odd:.9g} of tensor '{tensor}' is no power of two; {way_out}"
        )
    return exponents.astype(np.int64) - 1


@dataclass(frozen=True, eq=False)
class Requantisation:
    """From sums that count in 2^`sums` to int8 that counts in 2^`output`: a residual's exponent, a
    relu, and where the real value is cut above. The sums of a channel may count in finer steps: by
    so many bits, `finer` (channels,)."""

    sums: int
    output: int
    residual: int | None = None
    relu: bool = False
    upper: float | None = None
    finer: NDArray[np.int64] | None = None

    @property
    def shift(self) -> int:
        """To the right; where channels have their own, the least."""
        return self.output - self.sums

    @property
    def shifts(self) -> NDArray[np.int64] | None:
        """A channel's own, (channels,), to the right."""
        return None if self.finer is None else self.shift + self.finer

    @property
    def is_possible(self) -> bool:
        """Whether shifts of 32 bits can do it."""
        k = 0 if self.residual is None else self.residual - self.sums
        if self.shifts is not None:
            own = 0 <= self.shifts.min() <= self.shifts.max() <= MAX_SHIFT
            return own and self.residual is None
        return 0 <= k <= MAX_RESIDUAL_SHIFT and abs(self.shift) <= MAX_SHIFT

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the largest int8 it writes."""
        low, high = INT8
        if self.upper is not None:
            high = min(high, round(math.ldexp(self.upper, -self.output)))
        return (0 if self.relu else low), high


def finish(
    r: Requantisation, bias: NDArray[np.float64] | None, channels: int
) -> tuple[tuple[EpilogueOp, ...], NDArray[np.int32] | None]:
    """The epilogue and the int32 bias (channels,) with the rounding constant in it, None where an
    immediate does. `bias` (channels,) is in real numbers."""
    steps: list[EpilogueOp] = []
    shifts = r.shift if r.shifts is None else r.shifts
    half = np.where(shifts > 0, 1 << np.maximum(shifts - 1, 0), 0)
    integers = None
    if bias is not None or r.finer is not None or half >= 1 << MAX_OFFSET_SHIFT:
        sums = r.output - shifts
        real = np.zeros(channels) if bias is None else np.ldexp(bias, -sums)
        info = np.iinfo(np.int32)
        integers = np.clip(np.rint(real) + half, info.min, info.max).astype(np.int32)
        near = int(np.abs(integers.astype(np.int64)).max(initial=0)) < NEAR_BIAS
        steps.append(EpilogueOp("bias", 0 if near else 32))
    if r.residual is not None:
        steps.append(EpilogueOp("residual", r.residual - r.sums))
    if integers is None and half:
        steps.append(EpilogueOp("offset", int(half)))
    if r.shifts is not None:
        steps.append(shift_of_channels(r.shifts))
    elif r.shift:
        steps.append(EpilogueOp("shr", r.shift) if r.shift > 0 else EpilogueOp("shl", -r.shift))
    low, high = r.bounds
    steps += [EpilogueOp("min", high), EpilogueOp("max", low)]
    return tuple(steps), integers


def shift_of_channels(shifts: NDArray[np.int64]) -> EpilogueOp:
    """The step that promises as much as holds of a channel's shifts, (channels,)."""
    least, most = int(shifts.min()), int(shifts.max())
    near = EpilogueOp("shr_channel", max(least, NEAR_SHIFTS[0]))
    return near if near.amounts[0] <= least and most <= near.amounts[1] else replace(near, value=0)
