"""A VTA target whose simulator crashes, hangs or lies on some configs, to test target isolation."""

from __future__ import annotations

import hashlib

import numpy as np

from tilewright.targets.base import Lowered, Measurements
from tilewright.targets.fault_injection import Fault, distort_measurements, execute_fault
from tilewright.targets.vta.lowering.batch import SpaceName
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.worker import make_warm

KINDS: tuple[Fault, ...] = ("crash", "hang", "nonsense", "raise")


class FaultyVta(VtaTarget):
    """A VTA on which every config whose flat index is a multiple of `every` has a fault.

    The kinds of faults take turns.
    """

    def __init__(self, spec: VtaSpec, space: SpaceName = "extended", every: int = 6) -> None:
        super().__init__(spec, space)
        self.every = every

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{super().fingerprint} {self.every}".encode()).hexdigest()[:16]

    def fault(self, flat: int) -> Fault | None:
        """Return the fault of a config, given its flat index, or None."""
        return None if flat % self.every else KINDS[flat // self.every % len(KINDS)]

    def measure(self, lowered: Lowered) -> Measurements:
        flat = self.space(lowered.workload).ravel(lowered.configs)
        faults = np.array([self.fault(int(index)) or "" for index in flat], dtype=object)
        for fault in faults:
            execute_fault(fault, 0.0)
        return distort_measurements(super().measure(lowered), faults)


def make_vta(text: str, space: SpaceName = "extended") -> FaultyVta:
    """Make a faulty VTA with loaded kernels, as `targets.worker.make_warm` makes a normal one.

    Raises:
        SpecError: the specification is invalid.
    """
    make_warm(text, space)
    return FaultyVta(VtaSpec.load(text), space)
