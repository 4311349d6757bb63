"""Failure codes of schedules that do not compile, with the compiler stage and an explanation."""

from __future__ import annotations

from typing import NamedTuple

OK = 0
MATCH = 1
PADINNER = 2
LOAD2D = 3
STORE2D = 4
ALLOC_INP = 5
ALLOC_WGT = 6
ALLOC_ACC = 7
NBYTES = 8
VERIFYDEP = 9
UOP_CAPACITY = 10
FIELD = 11
EMPTY_WINDOW = 12
OUT_OF_SPACE = 13  # the caller's array is full; this code is never returned to users


class Failure(NamedTuple):
    """A class of compilation failures.

    Attributes:
        name: short name of the class.
        stage: stage of the stock software that detects the failure, "build" or "run".
        reason: explanation of the failure.
    """

    name: str
    stage: str
    reason: str


FAILURES: dict[int, Failure] = {
    MATCH: Failure(
        "MATCH", "build", "an odd number of tiles cannot be split over two virtual threads"
    ),
    PADINNER: Failure(
        "PADINNER", "build", "padding on a load of several input blocks (tile_ci > 1)"
    ),
    LOAD2D: Failure("LOAD2D", "build", "the input window is no two-dimensional DMA region"),
    STORE2D: Failure("STORE2D", "build", "the output tile is no two-dimensional DMA region"),
    ALLOC_INP: Failure("ALLOC", "build", "the input tiles exceed the input scratchpad"),
    ALLOC_WGT: Failure("ALLOC", "build", "the weight tiles exceed the weight scratchpad"),
    ALLOC_ACC: Failure("ALLOC", "build", "the output tiles exceed the accumulator scratchpad"),
    NBYTES: Failure(
        "NBYTES", "run", "a micro-op kernel depends on two virtual-thread variables"
    ),
    VERIFYDEP: Failure(
        "VERIFYDEP", "run", "an accumulator recurs within two consecutive micro-ops"
    ),
    UOP_CAPACITY: Failure("UOP", "build", "the micro-op kernels exceed the micro-op scratchpad"),
    FIELD: Failure("FIELD", "build", "a size, stride or loop count exceeds its instruction field"),
    EMPTY_WINDOW: Failure(
        "WINDOW", "build", "an input window lies wholly in the padding, which no LOAD can fill"
    ),
}  # fmt: skip
"""Failure classes by failure code. They follow TVM 0.14's `vta/python/vta/transform.py`,
`storage_rewrite.cc` and `runtime.cc`."""
