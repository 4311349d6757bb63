"""Holds a command stream, checked for lengths and ranges of its numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright.core.errors import TilewrightError
from tilewright.targets.gemmini.isa import LOOP_STRIDES_DC, LOOP_WS


class CommandStream(NamedTuple):
    """Commands in program order."""

    funct: NDArray[np.uint8]  # (n,)
    rs1: NDArray[np.uint64]  # (n,)
    rs2: NDArray[np.uint64]  # (n,)

    @property
    def has_loops(self) -> bool:
        """Whether the accelerator's own state machine unrolls a part of it."""
        return bool(((self.funct >= LOOP_WS) & (self.funct <= LOOP_STRIDES_DC)).any())

    def part(self, first: int, end: int) -> CommandStream:
        """Commands first .. end - 1."""
        return CommandStream(self.funct[first:end], self.rs1[first:end], self.rs2[first:end])


def stream_of(funct: ArrayLike, rs1: ArrayLike, rs2: ArrayLike) -> CommandStream:
    """A stream of three sequences of equal length (n,): function codes and operands.

    Raises `TilewrightError` for other lengths and for values that are no such integers.
    """
    try:
        made = [
            _unsigned(part, kind)
            for part, kind in ((funct, np.uint8), (rs1, np.uint64), (rs2, np.uint64))
        ]
    except (TypeError, ValueError, OverflowError):
        raise TilewrightError(
            "a command stream needs function codes of 8 bits and operands of 64 bits; "
            "pass three arrays of unsigned integers"
        ) from None
    if len({len(part) for part in made}) != 1:
        raise TilewrightError(
            f"a command stream has {len(made[0])} function codes, but {len(made[1])} and "
            f"{len(made[2])} operands; pass as many of each"
        )
    return CommandStream(*made)


def _unsigned(values: ArrayLike, kind: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    """The same numbers as unsigned integers; ValueError for any other numbers."""
    given = np.asarray(values)
    if given.size == 0:
        return np.zeros(0, kind)
    limits = np.iinfo(kind)
    whole = given.ndim == 1 and given.dtype.kind in "iu"
    if not whole or int(given.min()) < limits.min or int(given.max()) > limits.max:
        raise ValueError(values)
    return np.ascontiguousarray(given.astype(kind))
