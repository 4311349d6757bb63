"""Describes what is done with sums before they are stored: element-wise steps on the accumulators,
and the text for them."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.core.errors import WorkloadError
from tilewright.targets.steps import STEP_KINDS
from tilewright.targets.steps.basic import CHANNEL_SPREAD as CHANNEL_SPREAD
from tilewright.targets.steps.basic import CONSTANTS as CONSTANTS
from tilewright.targets.steps.basic import NEAR_BIAS as NEAR_BIAS
from tilewright.targets.steps.basic import NEAR_SHIFTS as NEAR_SHIFTS
from tilewright.targets.steps.basic import RESIDUALS as RESIDUALS
from tilewright.targets.steps.basic import weight_and_shift as weight_and_shift


@dataclass(frozen=True)
class EpilogueOp:
    """One element-wise operation on the int32 accumulator, applied in order; `kind` is one of
    `targets.steps.registry`.

    `bias` adds an int32 vector of one value an output channel (`value` 32: any value; 0: below
    `NEAR_BIAS` in size, as quantised layers have it, and a target may refuse others); `add` adds an
    int32 tensor of the output's shape, `residual` an int8 tensor of that shape times 2^`value`,
    `weighted` one times `value` (`weight_and_shift`), `offset` the constant `value`; `shr`/`shl`
    shift arithmetically by `value` bits; `shr_even` divides by 2^`value` in float32, to the nearest
    integer, ties to even; `min`/`max` clip from above / below with the constant
    `value`. `shr_channel` shifts to the right by an amount an output channel (`amounts`: by what,
    as `value` promises).
    """

    kind: str
    value: int = 0

    def __str__(self) -> str:
        known = STEP_KINDS.get(self.kind)
        return f"{self.kind} {self.value}" if known is None else known.text(self.value)

    @property
    def amounts(self) -> tuple[int, int]:
        """The least and the largest amount of a right shift. A channel's own are any that there
        are, or, where `value` is not 0, those from there on that are near each other."""
        if self.kind != "shr_channel":
            return self.value, self.value
        most = min(self.value + CHANNEL_SPREAD, NEAR_SHIFTS[1])
        return (self.value, most) if self.value else (0, 31)


DEFAULT_EPILOGUE = (EpilogueOp("shr", 8), EpilogueOp("min", 127), EpilogueOp("max", 0))
CLIPPED_TO_INT8 = (EpilogueOp("shr", 8), EpilogueOp("min", 127), EpilogueOp("max", -128))


def usual(op: EpilogueOp) -> EpilogueOp:
    """The step that stands for all that differ from it in an immediate alone: equal schedules,
    programs of equal lengths, equal cycles (`targets.workload.canonical`)."""
    known = STEP_KINDS.get(op.kind)
    return op if known is None or known.usual is None else EpilogueOp(*known.usual(op.value))


def parse_epilogue(text: str) -> tuple[EpilogueOp, ...]:
    """`>> 8, min 127, max 0`, also `bias`, `bias 32`, `add`, `residual N`, `weighted N`, `+ N`,
    `relu` (max 0), `<< N`, `>> even N`, `>> channel`, `>> channel N`, and those of further kinds
    of steps; empty for none. Raises `WorkloadError`."""
    items = filter(None, (part.strip() for part in text.split(",")))
    return tuple(_parsed(item) for item in items)


def _parsed(item: str) -> EpilogueOp:
    for known in STEP_KINDS.values():
        value = known.parse(item)
        if value is not None:
            return EpilogueOp(known.kind, value)
    examples = ", ".join(text for each in STEP_KINDS.values() for text in each.examples)
    raise WorkloadError(f"cannot read epilogue step '{item}'; known: {examples}")
