"""A VTA target that compiles and simulates in another process, for who works on the simulators."""

from __future__ import annotations

import numpy as np

from targets.base import Configs, Lowered, Measurements
from targets.isolated import IsolatedTarget
from targets.rpc_process import Limits
from targets.vta.lowering.batch import SpaceName
from targets.vta.spec import VtaSpec
from targets.vta.target import VtaTarget
from targets.workload import Workload, parse_workload

FACTORY = "targets.vta.isolated:make_warm"
SMALL = "dense:n=1,c=16,o=16"


class IsolatedVta(VtaTarget):
    """Lowers and measures like `VtaTarget`; a config on which that crashes, hangs or answers
    nonsense comes back typed (see `targets.isolated`). What is not asked of single candidates, as
    the stock schedule and the proof of the chosen one, stays in this process."""

    def __init__(self, name_or_path: str, space: SpaceName, limits: Limits) -> None:
        super().__init__(VtaSpec.load(name_or_path), space)
        recipe = {"name_or_path": name_or_path, "space": space}
        self._apart = IsolatedTarget(FACTORY, recipe, limits)

    @property
    def fingerprint(self) -> str:
        return self._apart.fingerprint

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        return self._apart.lower(workload, configs)

    def measure(self, lowered: Lowered) -> Measurements:
        return self._apart.measure(lowered)


def make_warm(name_or_path: str, space: SpaceName = "extended") -> VtaTarget:
    """A target whose kernels are loaded, so that the limit on a batch is for its work alone."""
    target = VtaTarget(VtaSpec.load(name_or_path), space)
    workload = parse_workload(SMALL)
    configs = np.zeros((1, len(target.space(workload).knobs)), np.int32)
    target.measure(target.lower(workload, configs))
    return target
