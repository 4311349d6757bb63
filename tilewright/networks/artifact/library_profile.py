"""Profiles a compiled network."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Calls = Sequence[tuple[str, float]]
"""The name and seconds of every call of an inference, in order."""


@dataclass(frozen=True)
class CallTime:
    """A layer's call of its kernel; `function` is the kernel's name in the library."""

    name: str
    names: tuple[str, ...]
    operator: str
    macs: int
    function: str
    seconds: float = 0.0

    def __add__(self, other: CallTime) -> CallTime:
        """The same call, which also computes another layer."""
        return replace(self, names=(*other.names, *self.names), macs=self.macs + other.macs)

    @property
    def gflops(self) -> float:
        """10⁹ multiplications and additions a second."""
        return 2e-9 * self.macs / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class LibraryProfile:
    """Medians in seconds: of inferences as they are, and, where they were asked for, of every call
    while each is watched. `others` are what TVM compiled between the kernels, by function."""

    seconds: float
    layers: tuple[CallTime, ...]
    others: tuple[tuple[str, float], ...]

    @property
    def milliseconds(self) -> float:
        """Of an inference."""
        return 1e3 * self.seconds


def profile_of(
    layers: Sequence[CallTime], whole: NDArray[np.float64], inferences: Sequence[Calls]
) -> LibraryProfile:
    """Of the seconds of inferences, shape (n,), and the calls of some that were watched."""
    seconds = float(np.median(whole))
    if not inferences:
        return LibraryProfile(seconds, (), ())
    names = [name for name, _ in inferences[0]]
    times = np.median([[spent for _, spent in calls] for calls in inferences], axis=0)
    own: dict[str, deque[float]] = {layer.function: deque() for layer in layers}
    others: dict[str, float] = {}
    for name, spent in zip(names, times, strict=True):
        if name in own:
            own[name].append(float(spent))
        else:
            others[name] = others.get(name, 0.0) + float(spent)
    return LibraryProfile(
        seconds,
        # TVM may order branches anew, so only calls of one function come in the layers' order
        tuple(replace(layer, seconds=own[layer.function].popleft()) for layer in layers),
        tuple(sorted(others.items(), key=lambda item: -item[1])),
    )
