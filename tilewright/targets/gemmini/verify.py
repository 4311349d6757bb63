"""Runs programs on data, and compares with plain integer arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini.functional import execute_stream
from tilewright.targets.gemmini.lowering.batch import WorkloadLowering
from tilewright.targets.gemmini.lowering.geometry import MEMORY_BASE
from tilewright.targets.gemmini.lowering.tensors import memory_image, output_of, random_tensors
from tilewright.targets.gemmini.stream import CommandStream
from tilewright.targets.integer_reference import reference


@dataclass(frozen=True, eq=False)
class Checker:
    """A workload's tensors in memory, and the output they must give."""

    lowering: WorkloadLowering
    image: NDArray[np.uint8]
    expected: NDArray[np.int64]

    @classmethod
    def of(cls, lowering: WorkloadLowering, seed: int = 0) -> Checker:
        """On random tensors over their whole range."""
        tensors = random_tensors(lowering.workload, seed)
        image = memory_image(lowering.geometry, tensors)
        return cls(lowering, image, reference(lowering.workload, tensors))

    def wrong_values(self, stream: CommandStream) -> int:
        """Values of the output that differ. Raises `StreamError` where it does not run."""
        after = execute_stream(stream, self.image, MEMORY_BASE, self.lowering.spec)
        got = output_of(self.lowering.geometry, self.lowering.workload, after)
        return int((got != self.expected).sum())
