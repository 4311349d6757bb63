"""Holds the results of a co-design run: machines of the front, each layer of which was measured
anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import Json
from tilewright.hardware_search.pareto import JudgedFront
from tilewright.hardware_search.problem import CodesignLayer, CodesignProblem
from tilewright.targets.capabilities import PARTS, specification_of

UNKNOWN = "unknown"
"""The bottleneck of a machine that does not see where the time of its programs goes."""


@dataclass(frozen=True)
class ProvenLayer:
    """A layer's best schedule, lowered and measured anew: knobs, cycles and seconds a call, what
    was counted, cycles by `PARTS` (none where the machine does not see that), the bound in cycles
    (-1 if unknown), whether its output was compared bit for bit, and microjoules a call by what
    spends them (none where the machine does not know)."""

    layer: CodesignLayer
    knobs: Mapping[str, int]
    cycles: int
    seconds: float
    counters: Mapping[str, int]
    parts: Mapping[str, int]
    bound: int
    verified: bool
    energy: Mapping[str, float]


@dataclass(frozen=True)
class ProvenDesign:
    """A machine of the front with all its layers."""

    judged: JudgedFront
    layers: tuple[ProvenLayer, ...]

    @property
    def name(self) -> str:
        """Its machine's."""
        return self.judged.design.name

    def parts(self) -> dict[str, float]:
        """What the cycles of one inference of each network go to, as shares of them by `PARTS`;
        empty where the machine does not see that."""
        if not all(each.parts for each in self.layers):
            return {}
        total = np.zeros(len(PARTS))
        for each in self.layers:
            total += each.layer.calls * np.array([each.parts[name] for name in PARTS], float)
        shares = total / max(total.sum(), 1.0)
        return dict(zip(PARTS, shares.tolist(), strict=True))

    @property
    def bottleneck(self) -> str:
        """What most cycles go to."""
        return largest(self.parts())

    def microjoules(self) -> NDArray[np.float64]:
        """Of the accelerator, one inference of each network, shape (networks,); 0 where the machine
        does not know."""
        counts = np.array([each.layer.counts for each in self.layers], np.float64)
        return np.asarray(np.array([sum(each.energy.values()) for each in self.layers]) @ counts)

    def cycles(self) -> NDArray[np.int64]:
        """Of the accelerator, one inference of each network, shape (networks,)."""
        counts = np.array([each.layer.counts for each in self.layers], np.int64)
        return np.asarray(np.array([each.cycles for each in self.layers], np.int64) @ counts)


class LayerRow(TypedDict):
    """A layer of a machine in `front.json`; `names` are the operators it stands for and `calls` how
    often an inference runs it, by network; `share` is of the accelerator's time, one inference of
    each network; `parts` are cycles of a call by what they go to."""

    workload: str
    epilogue: str
    names: dict[str, list[str]]
    calls: dict[str, int]
    cycles: int
    bound_cycles: int
    share: float
    bottleneck: str
    parts: dict[str, int]
    counters: dict[str, int]
    microjoules: dict[str, float]
    schedule: dict[str, int]
    verified: bool


class FrontRow(TypedDict):
    """A machine in `front.json`. `milliseconds` are cycles at the machine's clock and
    `cpu_milliseconds`, an estimate of what stays on the CPU. `microjoules` are an estimate of what
    the accelerator and its memory spend (`targets.vta.energy`)."""

    name: str
    spec: dict[str, Json]
    area: float
    cycles: dict[str, int]
    milliseconds: dict[str, float]
    cpu_milliseconds: dict[str, float]
    microjoules: dict[str, float]
    bottleneck: str
    shares: dict[str, float]
    layers: list[LayerRow]


def largest(parts: Mapping[str, float]) -> str:
    """The part that takes most; `UNKNOWN` without any."""
    return max(parts, key=lambda name: parts[name]) if parts else UNKNOWN


def front_row(problem: CodesignProblem, proven: ProvenDesign) -> FrontRow:
    """A machine of the front as `front.json` has it."""
    design, names = proven.judged.design, list(problem.networks)
    spec = specification_of(design.target) or {}
    whole = float(sum(each.layer.calls * each.cycles for each in proven.layers))
    return {
        "name": design.name,
        "spec": {key: value for key, value in spec.items() if value is not None},
        "area": design.area,
        "cycles": dict(zip(names, proven.cycles().tolist(), strict=True)),
        "milliseconds": _milliseconds(names, proven.judged.seconds.tolist()),
        "cpu_milliseconds": _milliseconds(names, list(design.cpu_seconds)),
        "microjoules": dict(zip(names, proven.microjoules().round(4).tolist(), strict=True)),
        "bottleneck": proven.bottleneck,
        "shares": {name: round(share, 6) for name, share in proven.parts().items()},
        "layers": [_layer_row(names, each, whole) for each in proven.layers],
    }


def _layer_row(networks: list[str], each: ProvenLayer, whole: float) -> LayerRow:
    layer = each.layer
    return {
        "workload": str(layer.workload),
        "epilogue": layer.workload.epilogue_text,
        "names": {
            name: [operator for network, operator in layer.names if network == name]
            for name, count in zip(networks, layer.counts, strict=True)
            if count
        },
        "calls": {name: n for name, n in zip(networks, layer.counts, strict=True) if n},
        "cycles": each.cycles,
        "bound_cycles": each.bound,
        "share": round(layer.calls * each.cycles / max(whole, 1.0), 6),
        "bottleneck": largest(each.parts),
        "parts": dict(each.parts),
        "counters": dict(each.counters),
        "microjoules": {name: round(spent, 6) for name, spent in each.energy.items()},
        "schedule": dict(each.knobs),
        "verified": each.verified,
    }


def _milliseconds(names: list[str], seconds: list[float]) -> dict[str, float]:
    return {name: 1e3 * each for name, each in zip(names, seconds, strict=True)}
