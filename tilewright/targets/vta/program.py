"""Defines a VTA program: its instructions and the memory image they work on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError

FIRST_ADDRESS = 4096
"""Where memory begins: the functional simulator's first page holds nothing."""


class ProgramError(TilewrightError):
    """Bytes that are no VTA program."""


@dataclass(frozen=True, eq=False)
class Program:
    """`insns`, uint64 (instructions, 2): low word, high word. `dram[0]` has address `base`."""

    insns: NDArray[np.uint64]
    dram: NDArray[np.uint8]
    base: int = FIRST_ADDRESS

    @classmethod
    def from_bytes(cls, insns: bytes, dram: bytes, base: int = FIRST_ADDRESS) -> Program:
        """From 16-byte instructions and a memory image (copied). Raises `ProgramError`."""
        return cls(words_of(insns), np.frombuffer(dram, np.uint8).copy(), base)

    @property
    def insn_bytes(self) -> bytes:
        """The instructions as they lie in memory, 16 bytes each."""
        return self.insns.astype("<u8").tobytes()


def words_of(insns: bytes) -> NDArray[np.uint64]:
    """16-byte instructions as a C-contiguous uint64 array (n, 2). Raises `ProgramError`."""
    if len(insns) % 16:
        raise ProgramError(
            f"the instruction stream is {len(insns)} bytes long, no multiple of 16; "
            "pass whole 16-byte instructions"
        )
    return np.frombuffer(insns, "<u8").reshape(-1, 2).astype(np.uint64)
