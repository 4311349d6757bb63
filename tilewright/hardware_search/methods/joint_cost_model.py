"""Predicts what a point is worth to the published rivals: AutoTVM's cost model, asked about layers.

The trees learn a layer's throughput relative to the best seen of it on any machine, 0 where it
failed, as AutoTVM does. Their features are the machine's knobs, the layer's sizes and the
schedule's. A point's latency is the sum over its layers and of what is left to the CPU. Its score
is a ratio less the penalties: the latency if every layer took the best seen of it, over the point's
latency.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.hardware_search.methods.joint_space import SHAPE, Floats, Places, Points
from tilewright.hardware_search.methods.memory_check import overflow
from tilewright.models.trees import AutoTVMRanker
from tilewright.search.cost_model_protocols import CostModel
from tilewright.targets.features import Features

SLOWEST = 0.02
"""A layer is never believed to be slower than by this share of the best throughput."""


class Weights(Protocol):
    """What a score is made of."""

    @property
    def penalty(self) -> float:
        """Taken off for a machine that there is not, and for the share of layers that overflow."""

    @property
    def reward(self) -> str:
        """ "throughput" or "log"."""

    @property
    def area_weight(self) -> float:
        """Power of the area by which scores are divided."""


@dataclass
class Seen:
    """Measurements of layers: points as they were asked, the slot, and seconds, NaN where one
    failed."""

    places: list[NDArray[np.int64]] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    estimates: list[Floats] = field(default_factory=list)
    """Of the target, as `informed.estimated`, each (2,); none unless they are asked for."""

    def __len__(self) -> int:
        return len(self.seconds)

    def table(self) -> tuple[Places, NDArray[np.int64], Floats]:
        """As arrays, shapes (measurements, knobs), (measurements,) and (measurements,)."""
        return np.array(self.places), np.array(self.slots), np.array(self.seconds)


class Rating:
    """Scores of points by what was seen."""

    def __init__(self, points: Points, weights: Weights, seen: Seen, plan: int, seed: int) -> None:
        self.points, self.weights = points, weights
        places, slots, seconds = seen.table()
        self.best = _best_of(points, slots, seconds)
        """Seconds of each slot by its fastest trial, on any machine, shape (slots,)."""
        throughput = np.nan_to_num(self.best[slots] / seconds, nan=0.0)
        order = np.random.default_rng(seed).permutation(len(slots))
        self.model: CostModel = AutoTVMRanker(seed, False, {"plan": plan})
        rows = layer_features(points, places)[np.arange(len(slots)), slots]
        self.model.fit(Features.of(rows[order], layer_names(points)), throughput[order])
        every = np.arange(len(points.slots.cpu))
        self.reference = float(self.seconds(every, np.ones((len(every), len(self.best)))).min())
        self._last: tuple[Places, Floats] | None = None

    def __call__(self, places: Places) -> Floats:
        """Scores, shape (points,)."""
        if self._last is None or not np.array_equal(self._last[0], places):
            self._last = places, self._scores(places)
        return self._last[1].copy()

    def _scores(self, places: Places) -> Floats:
        rows = self.points.rows(places)
        areas = self.points.hardware.areas
        worth = self.reference / self.latencies(places)
        if self.weights.reward == "log":
            worth = 1.0 - np.log(worth) / np.log(SLOWEST)
        worth *= np.where(rows < 0, 1.0, areas[0] / areas[rows]) ** self.weights.area_weight
        barred = (rows < 0) + self.overflowing(places)
        return np.asarray(worth - self.weights.penalty * barred)

    def overflowing(self, places: Places) -> Floats:
        """The share of the layers that overflow a scratchpad, shape (points,)."""
        runs = self.points.slots.calls[self.points.cores(places)] > 0
        over = (overflow(self.points, places) > 1) & runs
        return np.asarray(over.sum(axis=1) / np.maximum(runs.sum(axis=1), 1))

    def latencies(self, places: Places) -> Floats:
        """Seconds of all networks, as believed, shape (points,)."""
        features = layer_features(self.points, places)
        cores = self.points.cores(places)
        asked = Features.of(features.reshape(-1, features.shape[2]), layer_names(self.points))
        throughput = self.model.predict(asked).reshape(features.shape[:2])
        return self.seconds(cores, throughput)

    def seconds(self, cores: NDArray[np.int64], throughput: Floats) -> Floats:
        """Of all networks, shape (points,), if layers have these shares of the best throughput,
        shape (points, slots)."""
        slots = self.points.slots
        layers = slots.calls[cores] * self.best / np.clip(throughput, SLOWEST, None)
        return np.asarray(layers.sum(axis=1) + slots.cpu[cores])


def layer_features(points: Points, places: Places) -> Floats:
    """What the cost model sees of every layer of points, shape (points, slots, columns): AutoTVM's
    'knob' features, inner and outer extents, with the machine's knobs and the layer's sizes."""
    machine, slots = points.machines(places), points.slots
    wide = np.broadcast_to(machine[:, None], (len(places), len(slots.names), machine.shape[1]))
    cores, values = points.cores(places), points.values(places)
    cut = [k for k, name in enumerate(slots.knobs) if name.startswith("tile_")]
    most = np.nanmax(slots.values, axis=3, initial=-np.inf)[cores][:, :, cut]
    return np.concatenate(
        [wide, slots.shapes[cores], values, most / values[:, :, cut]], axis=2
    )  # fmt: skip


def layer_names(points: Points) -> list[str]:
    """Of the columns of `layer_features`, the last of its shape (points, slots, columns)."""
    knobs = points.slots.knobs
    return [
        *(f"machine {knob.name}" for knob in points.hardware.space.knobs),
        *(f"layer {name}" for name in SHAPE),
        *knobs,
        *(f"outer {name}" for name in knobs if name.startswith("tile_")),
    ]


def _best_of(points: Points, slots: NDArray[np.int64], seconds: Floats) -> Floats:
    """Of a slot without a valid trial by its multiplications; a second of a network that has not
    one."""
    best = np.full(len(points.slots.names), np.inf)
    np.fmin.at(best, slots, np.where(np.isnan(seconds), np.inf, seconds))
    known = np.isfinite(best)
    macs = np.nanmax(points.slots.shapes[:, :, SHAPE.index("macs")], axis=0) + 1.0
    pace = np.median(best[known] / macs[known]) if known.any() else 1.0 / macs.max()
    return np.where(known, best, pace * macs)
