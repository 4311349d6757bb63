"""Simulates what a command stream computes, bit for bit, without its timing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright.targets.gemmini.functional.kernel import run_stream
from tilewright.targets.gemmini.functional.memories import Memories, blank_memories
from tilewright.targets.gemmini.registers import blank_registers
from tilewright.targets.gemmini.spec import GemminiSpec
from tilewright.targets.gemmini.stream import CommandStream, stream_of
from tilewright.targets.gemmini.unroll import unrolled
from tilewright.targets.gemmini.validity import raise_fault

__all__ = ["Memories", "execute", "execute_stream"]


def execute_stream(
    stream: CommandStream, memory: NDArray[np.uint8], base: int, spec: GemminiSpec
) -> NDArray[np.uint8]:
    """The memory image after a stream, run in program order on zeroed local memories.

    `memory` (bytes,) lies at address `base` and is left as it is. Raises `StreamError` (its
    subclass says what kind) naming the command, the cause and the next step.
    """
    plain, origin = unrolled(stream, spec.machine)
    after = np.array(memory, np.uint8)
    fault = np.zeros(3, np.int64)
    code = run_stream(
        spec.machine, plain.funct, plain.rs1, plain.rs2, after, base, blank_registers(),
        blank_memories(spec.machine), fault,
    )  # fmt: skip
    raise_fault(stream, origin, code, fault)
    return after


def execute(
    funct: ArrayLike, rs1: ArrayLike, rs2: ArrayLike, memory: bytes, base: int,
    machine: GemminiSpec | Mapping[str, object] | None = None,
) -> bytes:  # fmt: skip
    """The memory image after a stream; `memory[0]` is at address `base`.

    `machine` may be a mapping with the keys of a preset. Raises `TilewrightError`.
    """
    spec = machine if isinstance(machine, GemminiSpec) else GemminiSpec.from_mapping(machine or {})
    image = np.frombuffer(memory, np.uint8)
    return execute_stream(stream_of(funct, rs1, rs2), image, base, spec).tobytes()
