"""Time profile of a compiled network."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Calls = Sequence[tuple[str, float]]
"""Calls of one inference in execution order, as pairs of the function's name and its duration in
seconds."""


@dataclass(frozen=True)
class CallTime:
    """Duration of a layer's kernel call.

    Attributes:
        name: name of the layer.
        names: names of the fused operators.
        operator: type of the operator.
        macs: multiply-accumulates.
        function: name of the kernel in the library.
        seconds: duration in seconds.
    """

    name: str
    names: tuple[str, ...]
    operator: str
    macs: int
    function: str
    seconds: float = 0.0

    def __add__(self, other: CallTime) -> CallTime:
        """Return the entry for a single kernel call that computes both this layer and `other`."""
        return replace(self, names=(*other.names, *self.names), macs=self.macs + other.macs)

    @property
    def gflops(self) -> float:
        """Throughput in GFLOP/s, counting multiplications and additions; 0 if the time is 0."""
        return 2e-9 * self.macs / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class LibraryProfile:
    """Median durations of inferences with a compiled library.

    Attributes:
        seconds: duration of an inference in seconds.
        layers: duration of each kernel call. It is measured in separate inferences in which every
            call is timed. Empty if it was not requested.
        others: seconds of the functions that TVM compiled between the kernels, and of onnxruntime
            regions, by name.
    """

    seconds: float
    layers: tuple[CallTime, ...]
    others: tuple[tuple[str, float], ...]

    @property
    def milliseconds(self) -> float:
        """Duration of an inference in milliseconds."""
        return 1e3 * self.seconds


def profile_of(
    layers: Sequence[CallTime], whole: NDArray[np.float64], inferences: Sequence[Calls]
) -> LibraryProfile:
    """Compute the profile of a network from measured inferences.

    Args:
        layers: the kernel calls of the layers.
        whole: seconds per inference, float array of shape (n,).
        inferences: names and seconds of the calls, one list per inference in which every call was
            timed.

    Returns:
        The median durations.
    """
    seconds = float(np.median(whole))
    if not inferences:
        return LibraryProfile(seconds, (), ())
    names = [name for name, _ in inferences[0]]
    times = np.median([[spent for _, spent in calls] for calls in inferences], axis=0)
    matching: dict[str, deque[float]] = {layer.function: deque() for layer in layers}
    others: dict[str, float] = {}
    for name, spent in zip(names, times, strict=True):
        if name in matching:
            matching[name].append(float(spent))
        else:
            others[name] = others.get(name, 0.0) + float(spent)
    return LibraryProfile(
        seconds,
        # TVM may reorder branches, so only the calls of the same function follow the layers' order.
        tuple(replace(layer, seconds=matching[layer.function].popleft()) for layer in layers),
        tuple(sorted(others.items(), key=lambda item: -item[1])),
    )
