"""Tabulates what is known of machines and their layers while they are searched: every step of a
search asks about all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.hardware_search.problem import Design
from tilewright.targets.base import Configs

PerLayer = NDArray[np.float64]
"""Of each layer of each machine, shape (machines, layers); machines with fewer layers have zeros
behind them."""


class Machines:
    """Seconds a call as estimated, as measured (infinite before), and at least; how often each
    layer was tuned. `estimated` are designs and seconds a call of their layers, shape (layers,),
    `least` the seconds that none of their schedules beats; `points`, shape (points, knobs), says
    which machines are near each other."""

    def __init__(
        self,
        estimated: Sequence[tuple[Design, NDArray[np.float64]]],
        points: Configs,
        least: Sequence[NDArray[np.float64]],
    ) -> None:
        self.designs = [design for design, _ in estimated]
        sizes = np.array([len(design.layers) for design in self.designs], np.int64)
        shape = len(sizes), int(sizes.max(initial=0))
        self.real = np.arange(shape[1]) < sizes[:, None]
        self.estimated, self.bounds = np.zeros(shape), np.zeros(shape)
        self.calls, self.batches = np.zeros(shape), np.zeros(shape, np.int64)
        self.measured = np.where(self.real, np.inf, 0.0)
        self.names = np.zeros(shape, np.int64)
        known: dict[tuple[str, str], int] = {}
        for row, (design, seconds) in enumerate(estimated):
            own = slice(len(design.layers))
            self.estimated[row, own], self.bounds[row, own] = seconds, least[row]
            self.calls[row, own] = [layer.calls for layer in design.layers]
            self.names[row, own] = [
                known.setdefault(layer.names[0], len(known)) for layer in design.layers
            ]
        self.areas = np.array([design.area for design in self.designs])
        self._cpu = np.array([sum(design.cpu_seconds) for design in self.designs])
        rows = [design.row for design in self.designs]
        self._bias = _Bias(points[rows].astype(np.int64), len(known))

    def latencies(self, layers: PerLayer) -> NDArray[np.float64]:
        """One inference of each network, in seconds, shape (machines,)."""
        return np.asarray((layers * self.calls).sum(axis=1) + self._cpu)

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Whether every layer has a valid trial, shape (machines,)."""
        return np.asarray(np.isfinite(self.measured).all(axis=1))

    @property
    def hopeless(self) -> NDArray[np.bool_]:
        """Whether a layer had trials, and none was valid, shape (machines,)."""
        return np.asarray((np.isinf(self.measured) & (self.batches > 2)).any(axis=1))

    def optimum(self, corrected: bool) -> PerLayer:
        """What the fastest schedule may take: as estimated, with what estimates err by if
        `corrected`, and no less than the bound."""
        if not corrected:
            return np.maximum(self.estimated, self.bounds)
        return np.maximum(self.estimated * np.exp(self._bias.of(self.names)), self.bounds)

    def learn(self, row: int, layers: Sequence[int]) -> None:
        """What the measured layers of a machine say of the others."""
        valid = [layer for layer in layers if np.isfinite(self.measured[row, layer])]
        errors = np.log(self.measured[row, valid] / self.estimated[row, valid])
        self._bias.learn(row, self.names[row, valid].tolist(), errors.tolist())


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
