"""Interface of element-wise steps: text form, values and ALU operations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError

Integers = NDArray[np.int64]
Apply = Callable[[Integers, int, Mapping[str, NDArray[Any]]], Integers]

AluPlace = Literal["results", "take", "aside", "back"]
"""Operands of an ALU operation.

- `results`: the results and a constant; the results are changed.
- `take`: copy the results.
- `aside`: the copy and a constant; the copy is changed.
- `back`: the results and the copy; the results are changed.
"""


class AluOperation(NamedTuple):
    """One operation of an accelerator's ALU on all accumulators of a tile.

    Shifts are arithmetic right shifts.
    """

    place: AluPlace
    operation: Literal["add", "min", "max", "shr"] = "add"
    value: int = 0


class Activation(NamedTuple):
    """The operator of source models that a step implements.

    Attributes:
        onnx: name of the operator in ONNX.
        operator: name of the operator in the importer.
        attribute: attribute that determines the value of the step.
        number: converts the attribute to the value of the step; None if the step cannot represent
            it.
    """

    onnx: str
    operator: str
    attribute: str
    number: Callable[[float], int | None]


@dataclass(frozen=True)
class StepKind:
    """A kind of element-wise step, registered under the name in `EpilogueOp.kind`.

    Attributes:
        kind: name of the kind, also in files.
        sign: text in front of the value, for example `>>`.
        apply: computes the step from the sums, shape (n, o, oh, ow), the value and the tensors by
            name.
        names: texts that stand for a step with a fixed value, for example `relu` for `max 0`.
        is_numbered: whether steps can be written as the sign followed by a value.
        check: raises `WorkloadError` for an invalid value.
        usual: returns the kind and value of the step that represents all steps with equal programs,
            apart from immediates.
        operations: the ALU operations that compute the step; empty for steps that targets know by
            name.
        activation: the operator of source models that the step implements.
        title: text by which tables tell layers of equal shape apart; empty for steps that every
            layer may have.
    """

    kind: str
    sign: str
    apply: Apply
    names: Mapping[str, int] = field(default_factory=dict)
    is_numbered: bool = True
    check: Callable[[str, int], None] = lambda item, value: None
    usual: Callable[[int], tuple[str, int]] | None = None
    operations: Callable[[int], tuple[AluOperation, ...]] = lambda value: ()
    activation: Activation | None = None
    title: str = ""

    def text(self, value: int) -> str:
        """Return the text of a step with the given value."""
        if self.names.get(self.sign) == value:
            return self.sign
        if not self.is_numbered:
            return next((name for name, number in self.names.items() if number == value), self.sign)
        return f"{self.sign} {value}"

    def parse(self, item: str) -> int | None:
        """Parse the text of a step.

        Returns:
            The value of the step; None if the text is of another kind of step.

        Raises:
            WorkloadError: the value is invalid.
        """
        if item in self.names:
            return self.names[item]
        match = re.fullmatch(rf"{re.escape(self.sign)}\s*(-?\d+)", item)
        if match is None or not self.is_numbered:
            return None
        value = int(match[1])
        self.check(item, value)
        if not -(1 << 15) <= value < 1 << 15:
            raise WorkloadError(f"'{item}': an immediate must be a signed 16-bit number")
        return value

    @property
    def examples(self) -> tuple[str, ...]:
        """Texts that the kind accepts, with N for a number."""
        names = tuple(self.names)
        numbered = (f"{self.sign} N",) if self.is_numbered else ()
        return (*names, *numbered) if self.sign in names else (*numbered, *names)
