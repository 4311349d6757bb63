"""This processor as a target of the tuner."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

import numpy as np

from targets.base import Configs, Lowered, Measurements, Ragged, Space
from targets.cpu.compile import Compiled, compile_config
from targets.cpu.hidden import COLUMNS
from targets.cpu.kernels.known import kernel_for
from targets.cpu.measure import measure
from targets.cpu.problem import Tensors
from targets.cpu.spec import CpuSpec
from targets.features import Features
from targets.workload import Workload


class CpuTarget:
    """Keeps `targets.base.Target`: kernels of TensorIR, compiled by LLVM, timed here."""

    deterministic = False

    def __init__(self, spec: CpuSpec) -> None:
        self.spec = spec
        self._tensors = lru_cache(maxsize=2)(self._new_tensors)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def fingerprint(self) -> str:
        """Of the processor, TVM's version and the sources of this folder."""
        from importlib.metadata import version

        content = hashlib.sha256(json.dumps(self.spec.to_json(), sort_keys=True).encode())
        content.update(version("apache-tvm").encode())
        for file in sorted(Path(__file__).parent.rglob("*.py")):
            content.update(file.read_bytes())
        return content.hexdigest()[:16]

    def hardware_features(self) -> dict[str, float]:
        return {"threads": float(self.spec.threads), "lanes": float(self.spec.lanes)}

    def space(self, workload: Workload) -> Space:
        return Space("kernels", kernel_for(workload).knobs(workload, self.spec))

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        space = self.space(workload)
        made = [
            compile_config(workload, self.spec, space.describe(config)) for config in configs
        ]
        return _lowered(workload, configs, made)

    def measure(self, lowered: Lowered) -> Measurements:
        return measure(lowered, self.spec, self._tensors(lowered.workload))

    def _new_tensors(self, workload: Workload) -> Tensors:
        return Tensors(workload, self.spec, self.space(workload))


def _lowered(workload: Workload, configs: Configs, made: list[Compiled]) -> Lowered:
    hidden = np.full((len(made), len(COLUMNS)), np.nan)
    for row, each in enumerate(made):
        if not each.failure:
            hidden[row] = each.hidden
    libraries = [np.frombuffer(each.library, np.uint8) for each in made]
    return Lowered(
        workload,
        configs,
        np.array([each.failure for each in made], dtype=object),
        np.array([each.reason for each in made], dtype=object),
        Features(hidden, COLUMNS),
        {"library": Ragged.of(libraries)} if made else {},
    )
