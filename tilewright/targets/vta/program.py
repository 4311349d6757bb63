"""A VTA program: its instructions, and the memory image that they access."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError

FIRST_ADDRESS = 4096
"""Lowest address of a memory image. The functional simulator leaves the first page (4096 bytes)
empty."""


class ProgramError(TilewrightError):
    """Raised if bytes cannot be read as a VTA program."""


@dataclass(frozen=True, eq=False)
class Program:
    """VTA program: instructions, and the memory image that they access.

    Attributes:
        insns: low word and high word of each instruction, uint64, shape (n, 2).
        dram: memory image, uint8, shape (bytes,); `dram[0]` is at address `base`.
        base: byte address of the memory image.
    """

    insns: NDArray[np.uint64]
    dram: NDArray[np.uint8]
    base: int = FIRST_ADDRESS

    @classmethod
    def from_bytes(cls, insns: bytes, dram: bytes, base: int = FIRST_ADDRESS) -> Program:
        """Build a program from the bytes of its instructions and its memory image.

        Args:
            insns: instructions, 16 bytes each.
            dram: memory image, which is copied.
            base: byte address of the memory image.

        Raises:
            ProgramError: the length of `insns` is not a multiple of 16 bytes.
        """
        return cls(words_of(insns), np.frombuffer(dram, np.uint8).copy(), base)

    @property
    def insn_bytes(self) -> bytes:
        """The instructions as little-endian bytes, 16 bytes each."""
        return self.insns.astype("<u8").tobytes()


def words_of(insns: bytes) -> NDArray[np.uint64]:
    """Convert 16-byte instructions to a C-contiguous uint64 array of shape (n, 2).

    Raises:
        ProgramError: the length is not a multiple of 16 bytes.
    """
    if len(insns) % 16:
        raise ProgramError(
            f"the instruction stream is {len(insns)} bytes long, which is not a multiple of "
            "16; pass whole 16-byte instructions"
        )
    return np.frombuffer(insns, "<u8").reshape(-1, 2).astype(np.uint64)
