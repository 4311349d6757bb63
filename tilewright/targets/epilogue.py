"""Describes what is done with sums before they are stored: element-wise steps on the accumulators,
and the text for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tilewright.core.errors import WorkloadError

EpilogueKind = Literal[
    "bias", "add", "shr", "min", "max", "shl", "residual", "weighted", "offset", "shr_channel"
]
RESIDUALS: tuple[EpilogueKind, ...] = ("residual", "weighted")
"""Steps that add an int8 tensor of the output's shape; an epilogue has one at the most."""
MAX_WEIGHT = 127
"""The largest factor of a `weighted` residual that an int8 weight holds; a larger one is such a
factor times a power of two (`weight_and_shift`)."""


@dataclass(frozen=True)
class EpilogueOp:
    """One element-wise operation on the int32 accumulator, applied in order.

    `bias` adds an int32 vector of one value an output channel (`value` 32: any value; 0: below
    `NEAR_BIAS` in size, as quantised layers have it, and a target may refuse others); `add` adds an
    int32 tensor of the output's shape, `residual` an int8 tensor of that shape times 2^`value`,
    `weighted` one times `value` (`weight_and_shift`), `offset` the constant `value`; `shr`/`shl`
    shift arithmetically by `value` bits; `min`/`max` clip from above / below with the constant
    `value`. `shr_channel` shifts to the right by an amount an output channel (`amounts`: by what,
    as `value` promises).
    """

    kind: EpilogueKind
    value: int = 0

    def __str__(self) -> str:
        signs = {"shr": ">>", "shl": "<<", "offset": "+", "shr_channel": ">> channel"}
        sign, tensor = signs.get(self.kind, self.kind), self.kind in ("bias", "add", "shr_channel")
        return sign if tensor and not self.value else f"{sign} {self.value}"

    @property
    def amounts(self) -> tuple[int, int]:
        """The least and the largest amount of a right shift. A channel's own are any that there
        are, or, where `value` is not 0, those from there on that are near each other."""
        if self.kind != "shr_channel":
            return self.value, self.value
        most = min(self.value + CHANNEL_SPREAD, NEAR_SHIFTS[1])
        return (self.value, most) if self.value else (0, 31)


NEAR_BIAS = 1 << 19
"""A `bias` of value 0 lies closer to zero."""
NEAR_SHIFTS = 5, 20
"""Right shifts that leave room for a `bias` near zero beside the sums."""
CHANNEL_SPREAD = 8
"""Bits that the shifts of a layer's channels may be apart for that."""

DEFAULT_EPILOGUE = (EpilogueOp("shr", 8), EpilogueOp("min", 127), EpilogueOp("max", 0))
CLIPPED_TO_INT8 = (EpilogueOp("shr", 8), EpilogueOp("min", 127), EpilogueOp("max", -128))


_USUAL_IMMEDIATE: Mapping[str, tuple[EpilogueKind, int]] = {
    "shr": ("shr", 8), "shl": ("shr", 4), "min": ("min", 127), "max": ("max", 0),
    "offset": ("offset", 128),
}  # fmt: skip


def usual(op: EpilogueOp) -> EpilogueOp:
    """The step that stands for all that differ from it in an immediate alone: equal schedules,
    programs of equal lengths, equal cycles (`targets.workload.canonical`)."""
    if op.kind == "weighted":
        op = EpilogueOp("residual", _IDENTITY_BITS + weight_and_shift(op.value)[1])
    if op.kind == "residual":
        return replace(op, value=0 if op.value <= 6 else min(op.value, 8))
    least, most = NEAR_SHIFTS
    if op.kind == "shr" and not least <= op.value <= most:
        return replace(op, value=least - 1 if op.value < least else most + 1)
    if op.kind == "shr_channel":
        return replace(op, value=8 if op.value else 0)
    return EpilogueOp(*_USUAL_IMMEDIATE[op.kind]) if op.kind in _USUAL_IMMEDIATE else op


def weight_and_shift(factor: int) -> tuple[int, int]:
    """The weight, 1 to `MAX_WEIGHT`, that a factor has, and by how many bits that is shifted to the
    left."""
    shift = max(0, factor.bit_length() - MAX_WEIGHT.bit_length())
    return factor >> shift, shift


_IDENTITY_BITS = 6  # the largest power of two that one int8 weight is
_NAMED = {
    "relu": EpilogueOp("max", 0), "bias": EpilogueOp("bias"), "bias 32": EpilogueOp("bias", 32),
    "add": EpilogueOp("add"), ">> channel": EpilogueOp("shr_channel"),
}  # fmt: skip


_KINDS = {">>": "shr", "<<": "shl", "+": "offset", ">> channel": "shr_channel"}


def parse_epilogue(text: str) -> tuple[EpilogueOp, ...]:
    """`>> 8, min 127, max 0`, also `bias`, `bias 32`, `add`, `residual N`, `weighted N`, `+ N`,
    `relu` (max 0), `<< N`, `>> channel`, `>> channel N`; empty for none. Raises `WorkloadError`."""
    ops: list[EpilogueOp] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(
            r"(>> channel|>>|<<|\+|min|max|residual|weighted)\s*(-?\d+)"
            r"|(bias|add|relu|bias 32|>> channel)",
            item,
        )
        if not match:
            raise WorkloadError(
                f"cannot read epilogue step '{item}'; known: >> N, << N, min N, max N, "
                "relu, bias, bias 32, add, residual N, weighted N, + N, >> channel, >> channel N"
            )
        if match[3] in _NAMED:
            ops.append(_NAMED[match[3]])
            continue
        kind = _KINDS.get(match[1], match[1])
        value = int(match[2])
        if kind in ("shr", "shl", "residual") and not 0 <= value <= 31:
            raise WorkloadError(f"'{item}': a shift amount lies between 0 and 31")
        if kind == "weighted" and (value < 1 or value % (1 << weight_and_shift(value)[1])):
            raise WorkloadError(
                f"'{item}': a weight is 1 to {MAX_WEIGHT}, or that times a power of 2"
            )
        if kind == "shr_channel" and not NEAR_SHIFTS[0] <= value <= NEAR_SHIFTS[1]:
            raise WorkloadError(
                f"'{item}': the least amount lies between {NEAR_SHIFTS[0]} and {NEAR_SHIFTS[1]}; "
                "write '>> channel' for any"
            )
        if not -(1 << 15) <= value < 1 << 15:
            raise WorkloadError(f"'{item}': an immediate has 16 bits, signed")
        ops.append(EpilogueOp(kind, value))  # type: ignore[arg-type]
    return tuple(ops)
