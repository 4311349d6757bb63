"""Interface of element-wise steps: their text form, their computation, and their ALU operations."""

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
"""Operands and destination of an ALU operation. Results are the accumulators; the copy is a second
set of accumulators.

- `results`: combine the results with a constant, and write to the results.
- `take`: copy the results to the copy.
- `aside`: combine the copy with a constant, and write to the copy.
- `back`: combine the results with the copy, and write to the results.
"""


class AluOperation(NamedTuple):
    """One operation of an accelerator's ALU on all accumulators of a tile.

    Attributes:
        place: operands of the operation, see `AluPlace`.
        operation: name of the operation; `shr` is an arithmetic right shift.
        value: the constant operand; unused if both operands are accumulators.
    """

    place: AluPlace
    operation: Literal["add", "min", "max", "shr"] = "add"
    value: int = 0


class Activation(NamedTuple):
    """Operator of a source model that a step implements.

    Attributes:
        onnx: name of the operator in ONNX.
        operator: name of the operator in the importer, such as `relax.nn.leakyrelu`.
        attribute: name of the attribute that determines the step's value.
        number: function that converts the attribute to the step's value; it returns None if the
            step cannot represent the attribute.
    """

    onnx: str
    operator: str
    attribute: str
    number: Callable[[float], int | None]


@dataclass(frozen=True)
class StepKind:
    """Kind of element-wise step, such as a right shift or a clip.

    An epilogue refers to a kind by its name in `EpilogueOp.kind`.

    Attributes:
        kind: name of the kind, also in files.
        sign: text in front of the value, for example `>>`.
        apply: computes the step from the accumulators, int64, shape (n, o, oh, ow), the step's
            value, and the operand tensors by name.
        names: texts that stand for a step with a fixed value, by text; for example `relu` for `max
            0`.
        is_numbered: whether a step can be written as the sign followed by a number.
        check: raises `WorkloadError` for an invalid value; it gets the step's text and value.
        usual: maps a value to the kind and value of a representative step. Steps with the same
            representative compile to the same programs, except for constants in instructions. None
            if every step represents only itself.
        operations: returns the ALU operations that compute the step; empty for a step that targets
            implement by name.
        activation: operator of source models that the step implements, if any.
        title: text that distinguishes layers of equal shape in tables; empty for steps that any
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
        """Format a step of this kind with the given value."""
        if self.names.get(self.sign) == value:
            return self.sign
        if not self.is_numbered:
            return next((name for name, number in self.names.items() if number == value), self.sign)
        return f"{self.sign} {value}"

    def parse(self, item: str) -> int | None:
        """Parse the text of a step.

        Args:
            item: the text, such as `>> 8` or `relu`.

        Returns:
            The value of the step, or None if the text belongs to another kind of step.

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
        """Texts that the kind accepts, with N as a placeholder for a number."""
        names = tuple(self.names)
        numbered = (f"{self.sign} N",) if self.is_numbered else ()
        return (*names, *numbered) if self.sign in names else (*numbered, *names)
