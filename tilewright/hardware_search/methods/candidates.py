"""Tabulates what is known of machines and their layers while they are searched: every step of a
search asks about all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.hardware_search.costs import METRICS
from tilewright.hardware_search.options import Objective
from tilewright.hardware_search.problem import Design
from tilewright.targets.base import Configs

PerLayer = NDArray[np.float64]
"""A metric of each layer of each machine, shape (machines, layers), or all metrics, shape (metrics,
machines, layers); machines with fewer layers have zeros behind them."""


class Machines:
    """Metrics of an objective a call, as estimated, as measured (infinite before), and at least;
    how often each layer was tuned. `estimated` are designs and metrics a call of their layers,
    shape (metrics, layers), `least` those that none of their schedules beats; `points`, shape
    (points, knobs), says which machines are near each other."""

    def __init__(
        self,
        estimated: Sequence[tuple[Design, NDArray[np.float64]]],
        points: Configs,
        least: Sequence[NDArray[np.float64]],
        objective: Objective = "latency",
    ) -> None:
        self.designs = [design for design, _ in estimated]
        sizes = np.array([len(design.layers) for design in self.designs], np.int64)
        shape = len(sizes), int(sizes.max(initial=0))
        self.real = np.arange(shape[1]) < sizes[:, None]
        metrics = METRICS[objective]
        self.estimated, self.bounds = (np.zeros((len(metrics), *shape)) for _ in range(2))
        self.calls, self.batches = np.zeros(shape), np.zeros(shape, np.int64)
        self.measured = np.where(self.real, np.inf, np.zeros((len(metrics), 1, 1)))
        self.names = np.zeros(shape, np.int64)
        known: dict[tuple[str, str], int] = {}
        for row, (design, known_metrics) in enumerate(estimated):
            own = slice(len(design.layers))
            self.estimated[:, row, own], self.bounds[:, row, own] = known_metrics, least[row]
            self.calls[row, own] = [layer.calls for layer in design.layers]
            self.names[row, own] = [
                known.setdefault(layer.names[0], len(known)) for layer in design.layers
            ]
        self.areas = np.array([design.area for design in self.designs])
        cpu = np.array([sum(design.cpu_seconds) for design in self.designs])
        self._beside = np.stack([cpu * (metric == "seconds") for metric in metrics])
        rows = [design.row for design in self.designs]
        self._biases = [_Bias(points[rows].astype(np.int64), len(known)) for _ in metrics]

    def totals(self, layers: PerLayer) -> NDArray[np.float64]:
        """Metrics of one inference of each network, shape (metrics, machines), from those a call,
        shape (metrics, machines, layers)."""
        return np.asarray((layers * self.calls).sum(axis=2) + self._beside)

    def costs(self, layers: PerLayer) -> NDArray[np.float64]:
        """The objective of the same, shape (machines,): the product of the totals."""
        return np.asarray(self.totals(layers).prod(axis=0))

    def weighed(self, layers: PerLayer, changes: PerLayer) -> PerLayer:
        """What small changes of each layer's metrics, shape (metrics, machines, layers), add to the
        objective of machines whose layers have these: shape (machines, layers)."""
        found, each = np.zeros(changes.shape[1:]), self.totals(layers)
        for metric, change in enumerate(changes):
            others = np.delete(each, metric, axis=0).prod(axis=0)
            found += change * others[:, None]
        return found

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Whether every layer has a valid trial, shape (machines,)."""
        return np.asarray(np.isfinite(self.measured).all(axis=(0, 2)))

    @property
    def hopeless(self) -> NDArray[np.bool_]:
        """Whether a layer had trials, and none was valid, shape (machines,)."""
        return np.asarray((np.isinf(self.measured[0]) & (self.batches > 2)).any(axis=1))

    def optimum(self, corrected: bool) -> PerLayer:
        """What the best schedule may take, shape (metrics, machines, layers): as estimated, with
        what estimates err by if `corrected`, and no less than the bound."""
        if not corrected:
            return np.maximum(self.estimated, self.bounds)
        errors = np.stack([bias.of(self.names) for bias in self._biases])
        return np.maximum(self.estimated * np.exp(errors), self.bounds)

    def learn(self, row: int, layers: Sequence[int]) -> None:
        """What the measured layers of a machine say of the others."""
        valid = [layer for layer in layers if np.isfinite(self.measured[0, row, layer])]
        errors = np.log(self.measured[:, row, valid] / self.estimated[:, row, valid])
        for bias, own in zip(self._biases, errors, strict=True):
            bias.learn(row, self.names[row, valid].tolist(), own.tolist())


class _Bias:
    """What estimates of layers err by, log of measured over estimated: a mean over the machines
    where a layer was measured, those most that are fewest steps away. Machines alike err alike: or
    else one that was not measured would always promise more than its measured neighbour."""

    NEAR = 0.7  # weight of what is one step of one knob further away
    PRIOR = 0.3  # weight of all layers together, and there of no error

    def __init__(self, knobs: NDArray[np.int64], names: int) -> None:
        self._knobs = knobs
        self._seen: dict[int, dict[int, float]] = {}
        self._found = np.zeros((names, len(knobs)))
        self._unseen = np.ones(names, bool)

    def learn(self, row: int, names: Sequence[int], errors: Sequence[float]) -> None:
        for name, error in zip(names, errors, strict=True):
            self._seen.setdefault(name, {})[row] = error
        every = [error for known in self._seen.values() for error in known.values()]
        mean = sum(every) / (len(every) + self.PRIOR)
        for name in names:
            rows = np.array(list(self._seen[name]))
            away = np.abs(self._knobs[:, None] - self._knobs[rows]).sum(axis=2)
            near = self.NEAR**away
            weighted = near @ np.array(list(self._seen[name].values())) + self.PRIOR * mean
            self._found[name] = weighted / (near.sum(axis=1) + self.PRIOR)
        self._unseen[list(names)] = False
        self._found[self._unseen] = mean

    def of(self, names: NDArray[np.int64]) -> PerLayer:
        """Of layers by their names, shape (machines, layers)."""
        return self._found[names, np.arange(len(names))[:, None]]
