"""Defines the contract of an element-wise step: its text, its values, and its ALU operations."""

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
"""What an ALU operation works on: `results` are changed by a constant; `take` copies them;
`aside` changes the copy by a constant; `back` changes the results by the copy."""


class AluOperation(NamedTuple):
    """One operation of an accelerator's ALU on all accumulators of a tile; shifts are arithmetic,
    to the right."""

    place: AluPlace
    operation: Literal["add", "min", "max", "shr"] = "add"
    value: int = 0


class Activation(NamedTuple):
    """An operator of models that a step computes: what ONNX and the importer call it, the attribute
    that says its number, and that number of a value of this; None where there is none."""

    onnx: str
    operator: str
    attribute: str
    number: Callable[[float], int | None]


@dataclass(frozen=True)
class StepKind:
    """A kind of element-wise step, by the name that `EpilogueOp.kind` and files have.

    `sign` stands before its number in a text; `names` are texts that say a number by themselves,
    and `is_numbered` whether others do. `apply` computes it: sums (n, o, oh, ow), its number, the
    tensors by name. `check` raises `WorkloadError` for numbers that make no sense. `usual` gives
    the kind and number that stand for all with equal programs but for immediates. `operations` say
    how an ALU computes it; none for steps that targets know by name. Where it is an `activation`,
    networks have it behind their sums. By its `title` tables tell layers
    of equal shape apart; none for what every layer may have.
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
        """As it is written in an epilogue."""
        if self.names.get(self.sign) == value:
            return self.sign
        if not self.is_numbered:
            return next((name for name, number in self.names.items() if number == value), self.sign)
        return f"{self.sign} {value}"

    def parse(self, item: str) -> int | None:
        """The number of a step of this kind; None for a text of another one. Raises
        `WorkloadError`."""
        if item in self.names:
            return self.names[item]
        match = re.fullmatch(rf"{re.escape(self.sign)}\s*(-?\d+)", item)
        if match is None or not self.is_numbered:
            return None
        value = int(match[1])
        self.check(item, value)
        if not -(1 << 15) <= value < 1 << 15:
            raise WorkloadError(f"'{item}': an immediate has 16 bits, signed")
        return value

    @property
    def examples(self) -> tuple[str, ...]:
        """The texts there are, with N for a number."""
        names = tuple(self.names)
        numbered = (f"{self.sign} N",) if self.is_numbered else ()
        return (*names, *numbered) if self.sign in names else (*numbered, *names)
