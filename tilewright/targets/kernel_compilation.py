"""State of the compilation of simulator kernels: which kernel this process waits for, if any.

numba compiles a kernel when it is first called and keeps the code on disk. `kernel_listener`
records here when that begins and ends, so that displays, which load no numba, can say why nothing
else happens.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class KernelSet(NamedTuple):
    """The kernels of one kind of target."""

    name: str  # as in "simulator kernels"
    total: int  # kernels that the target has
    cache: str  # folder that keeps their code


RUNNING: list[KernelSet] = []
"""Sets of the kernels that are being compiled in this process, the outermost first."""


def describe_compilation() -> str:
    """Return what is being compiled at this moment, for a progress line, or an empty string."""
    if not RUNNING:
        return ""
    kernels = RUNNING[0]
    kept = sum(1 for _ in Path(kernels.cache).rglob("*.nbc")) if kernels.cache else 0
    number = min(kept + 1, kernels.total)
    return f"compiling {kernels.name}, {number} of {kernels.total}, once per installation"
