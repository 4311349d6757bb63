"""Epilogues: element-wise steps that are applied to accumulators, and their text form."""

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
    """One element-wise step on the int32 accumulators.

    An epilogue applies its steps in order. The kinds of steps are defined in `targets.steps`. The
    basic kinds are:

    - `bias` adds an int32 vector with one value per output channel. With `value` 32, the biases can
      be any int32 numbers. With `value` 0, their magnitude is below `NEAR_BIAS`, as in quantised
      layers, and a target may reject larger biases.
    - `add` adds an int32 tensor of the output's shape.
    - `residual` adds an int8 tensor of the output's shape, multiplied by 2^`value`.
    - `weighted` adds an int8 tensor of the output's shape, multiplied by `value` (see
      `weight_and_shift`).
    - `offset` adds the constant `value`.
    - `shr` and `shl` shift arithmetically by `value` bits.
    - `shr_even` divides by 2^`value` in float32 and rounds to the nearest integer, ties to even.
    - `shr_channel` shifts right by a different amount per output channel; `shift_range` is the
      range of the amounts.
    - `min` and `max` take the minimum or maximum with the constant `value`.
    """

    kind: str
    value: int = 0

    def __str__(self) -> str:
        step_kind = STEP_KINDS.get(self.kind)
        return f"{self.kind} {self.value}" if step_kind is None else step_kind.text(self.value)

    @property
    def shift_range(self) -> tuple[int, int]:
        """Smallest and largest possible amount of a right shift, in bits.

        For `shr_channel` with `value` 0, the amounts can be any number from 0 to 31. With another
        `value`, the smallest amount is `value`, and the amounts differ by at most `CHANNEL_SPREAD`.
        """
        if self.kind != "shr_channel":
            return self.value, self.value
        most = min(self.value + CHANNEL_SPREAD, NEAR_SHIFTS[1])
        return (self.value, most) if self.value else (0, 31)


DEFAULT_EPILOGUE = (EpilogueOp("shr", 8), EpilogueOp("min", 127), EpilogueOp("max", 0))
CLIPPED_TO_INT8 = (EpilogueOp("shr", 8), EpilogueOp("min", 127), EpilogueOp("max", -128))


def usual(op: EpilogueOp) -> EpilogueOp:
    """Return the step that represents all steps which compile to the same instructions.

    The instructions of such steps may differ in immediates (constants in instructions). Workloads
    whose steps have equal representatives have equal schedules, programs of equal length and equal
    cycles (see `targets.workload.canonical`).

    Args:
        op: the step.
    """
    step_kind = STEP_KINDS.get(op.kind)
    return (
        op
        if step_kind is None or step_kind.usual is None
        else EpilogueOp(*step_kind.usual(op.value))
    )


def parse_epilogue(text: str) -> tuple[EpilogueOp, ...]:
    """Parse the text of an epilogue, such as `>> 8, min 127, max 0`.

    Further steps are `bias`, `bias 32`, `add`, `residual N`, `weighted N`, `+ N`, `relu` (the same
    as `max 0`), `<< N`, `>> even N`, `>> channel`, `>> channel N`, and the other steps of
    `targets.steps`. An empty text is an empty epilogue.

    Raises:
        WorkloadError: a step cannot be parsed.
    """
    items = filter(None, (part.strip() for part in text.split(",")))
    return tuple(_parse_step(item) for item in items)


def _parse_step(item: str) -> EpilogueOp:
    for known in STEP_KINDS.values():
        value = known.parse(item)
        if value is not None:
            return EpilogueOp(known.kind, value)
    examples = ", ".join(text for kind in STEP_KINDS.values() for text in kind.examples)
    raise WorkloadError(f"cannot read the epilogue step '{item}'; known steps: {examples}")
