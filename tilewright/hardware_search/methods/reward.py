"""Reward of a point for the published methods: a score of its predicted latency minus penalties.

A point is a machine with a schedule for every layer. AutoTVM's cost model, which consists of
boosted trees, predicts the throughput of each layer. The throughput is relative to the best
throughput that was measured for this layer on any machine, and failed measurements count as 0. The
features are the knobs of the machine, the sizes of the layer and the knobs of the schedule. The
predicted latency of a point is the sum over its layers plus the time on the CPU.

The score of a point is the latency with the best measured throughput of every layer, divided by the
predicted latency; or the logarithm of this ratio (option `reward`). It can be divided by a power of
the area (option `area_weight`).

Two cases cause a penalty: the machine cannot be built within the budget, or the tiles of layers
overflow a scratchpad. As in the published methods, only the sizes of the tiles are considered for
the latter. Other reasons why a schedule does not compile are found only by compiling it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.hardware_search.methods import MethodOptions
from tilewright.hardware_search.methods.joint_space import SHAPE, Floats, JointSpace, Places
from tilewright.models.trees import AutoTVMRanker
from tilewright.search.cost_model_protocols import CostModel
from tilewright.targets.features import Features

SLOWEST = 0.02
"""Lower limit of the predicted throughput of a layer, relative to the best one."""
ACCUMULATOR_BYTES = 4
BUFFERS = ("log_inp_buff_size", "log_wgt_buff_size", "log_acc_buff_size")


class RewardOptions(MethodOptions):
    """Options of the reward, which is the score of a point that published methods maximise."""

    penalty: float = Field(
        1.0, ge=0, description="penalty on the score of a machine beyond the budget, and for the "
            "fraction of layers whose tiles overflow (not given in the paper)",
    )  # fmt: skip
    reward: Literal["throughput", "log"] = Field(
        "log", description="score of a latency: its inverse, as in AutoTVM, or its logarithm"
    )
    area_weight: float = Field(
        0.0, ge=0, description="power of the area by which scores are divided; 0 as in the papers"
    )


@dataclass
class LayerMeasurements:
    """Measurements of single layers. All lists have one entry per measurement.

    Attributes:
        places: the point with the machine and the schedule that were measured, int array of shape
            (knobs,).
        slots: slot of the measured layer; see `JointSlots`.
        seconds: measured latency in seconds; NaN if the measurement failed.
        estimates: result of `estimate_layer`, float array of shape (2,). The list is empty unless
            estimates were requested.
    """

    places: list[NDArray[np.int64]] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    estimates: list[Floats] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.seconds)

    def table(self) -> tuple[Places, NDArray[np.int64], Floats]:
        """Return the measurements as arrays.

        Returns:
            Points of shape (measurements, knobs), slots of shape (measurements,), and seconds of
            shape (measurements,).
        """
        return np.array(self.places), np.array(self.slots), np.array(self.seconds)


class RewardModel:
    """Predicts the rewards of points. The reward is higher the faster all networks run.

    The reward is a score of the predicted latency minus penalties. With the option `area_weight`,
    the score is divided by a power of the machine's area. There are penalties for machines that
    cannot be built within the budget, and for the fraction of layers whose tiles overflow a
    scratchpad.

    A cost model of the layers' latencies is trained on measurements when the object is created.

    Args:
        points: the search space.
        options: options of the reward.
        seen: the measurements.
        plan: number of measurements per batch.
        seed: seed of the cost model.

    Attributes:
        best: latency in seconds per call to which the predicted throughput of each slot is
            relative, float array of shape (slots,). It is the lowest measured latency on any
            machine, or extrapolated from other slots if no measurement is valid (`_best_of`).
        reference: latency in seconds that gives a point the score 1 (without `area_weight`). It is
            the lowest latency of any core, with the best measured throughput of every layer.
    """

    def __init__(
        self,
        points: JointSpace,
        options: RewardOptions,
        seen: LayerMeasurements,
        plan: int,
        seed: int,
    ) -> None:
        self.points, self.options = points, options
        places, slots, seconds = seen.table()
        self.best = _best_of(points, slots, seconds)
        throughput = np.nan_to_num(self.best[slots] / seconds, nan=0.0)
        order = np.random.default_rng(seed).permutation(len(slots))
        self.model: CostModel = AutoTVMRanker(seed, False, {"plan": plan})
        rows = layer_features(points, places)[np.arange(len(slots)), slots]
        self.model.fit(Features.from_names(rows[order], layer_names(points)), throughput[order])
        every = np.arange(len(points.slots.cpu))
        self.reference = float(self.seconds(every, np.ones((len(every), len(self.best)))).min())
        self._last: tuple[Places, Floats] | None = None

    def __call__(self, places: Places) -> Floats:
        """Return the predicted rewards of points, float array of shape (points,).

        The rewards of the last points are cached.

        Args:
            places: the points, int array of shape (points, knobs).
        """
        if self._last is None or not np.array_equal(self._last[0], places):
            self._last = places, self._scores(places)
        return self._last[1].copy()

    def _scores(self, places: Places) -> Floats:
        rows = self.points.rows(places)
        areas = self.points.hardware.areas
        worth = self.reference / self.latencies(places)
        if self.options.reward == "log":
            worth = 1.0 - np.log(worth) / np.log(SLOWEST)
        worth *= np.where(rows < 0, 1.0, areas[0] / areas[rows]) ** self.options.area_weight
        barred = (rows < 0) + self.overflowing(places)
        return np.asarray(worth - self.options.penalty * barred)

    def overflowing(self, places: Places) -> Floats:
        """Return the fraction of layers whose tiles overflow a scratchpad, for each point.

        Args:
            places: the points, int array of shape (points, knobs).

        Returns:
            Float array of shape (points,).
        """
        runs = self.points.slots.calls[self.points.cores(places)] > 0
        over = (overflow(self.points, places) > 1) & runs
        return np.asarray(over.sum(axis=1) / np.maximum(runs.sum(axis=1), 1))

    def latencies(self, places: Places) -> Floats:
        """Return the predicted seconds of one inference of each network, summed over the networks.

        Args:
            places: the points, int array of shape (points, knobs).

        Returns:
            Float array of shape (points,).
        """
        features = layer_features(self.points, places)
        cores = self.points.cores(places)
        asked = Features.from_names(
            features.reshape(-1, features.shape[2]), layer_names(self.points)
        )
        throughput = self.model.predict(asked).reshape(features.shape[:2])
        return self.seconds(cores, throughput)

    def seconds(self, cores: NDArray[np.int64], throughput: Floats) -> Floats:
        """Return the seconds of one inference of each network, given the throughputs of the layers.

        Args:
            cores: core of each point, int array of shape (points,); see `JointSpace.cores`.
            throughput: throughput of each layer relative to its best measured throughput, float
                array of shape (points, slots). Values below `SLOWEST` are raised to it.

        Returns:
            Sum over the networks, float array of shape (points,).
        """
        slots = self.points.slots
        layers = slots.calls[cores] * self.best / np.clip(throughput, SLOWEST, None)
        return np.asarray(layers.sum(axis=1) + slots.cpu[cores])


def layer_features(points: JointSpace, places: Places) -> Floats:
    """Return the inputs of the cost model for every layer of points.

    The features are the hardware knobs, the sizes of the layer, and the features that AutoTVM calls
    'knob'. These are the values of all schedule knobs and, for each tile size, the extent of the
    outer loop. A tile size is the extent of an inner loop. The extent of the outer loop is the
    largest tile size divided by the chosen one.

    Args:
        points: the search space.
        places: the points, int array of shape (points, knobs).

    Returns:
        Float array of shape (points, slots, columns); NaN for knobs that a layer does not have.
    """
    machine, slots = points.machines(places), points.slots
    wide = np.broadcast_to(machine[:, None], (len(places), len(slots.names), machine.shape[1]))
    cores, values = points.cores(places), points.values(places)
    cut = [k for k, name in enumerate(slots.knobs) if name.startswith("tile_")]
    most = np.nanmax(slots.values, axis=3, initial=-np.inf)[cores][:, :, cut]
    return np.concatenate(
        [wide, slots.shapes[cores], values, most / values[:, :, cut]], axis=2
    )  # fmt: skip


def layer_names(points: JointSpace) -> list[str]:
    """Return the names of the columns of `layer_features`, such as `layer height`."""
    knobs = points.slots.knobs
    return [
        *(f"machine {knob.name}" for knob in points.hardware.space.knobs),
        *(f"layer {name}" for name in SHAPE),
        *knobs,
        *(f"outer {name}" for name in knobs if name.startswith("tile_")),
    ]


def _best_of(points: JointSpace, slots: NDArray[np.int64], seconds: Floats) -> Floats:
    """Return the lowest measured latency of each slot in seconds, float array of shape (slots,).

    For a slot without a valid trial, the latency is extrapolated from its number of
    multiplications. If there is no valid trial at all, the latency of the largest layer is set to
    one second.

    Args:
        points: the search space.
        slots: slot of each measurement, int array of shape (measurements,).
        seconds: latency of each measurement, float array of shape (measurements,); NaN if it
            failed.
    """
    best = np.full(len(points.slots.names), np.inf)
    np.fmin.at(best, slots, np.where(np.isnan(seconds), np.inf, seconds))
    known = np.isfinite(best)
    macs = np.nanmax(points.slots.shapes[:, :, SHAPE.index("macs")], axis=0) + 1.0
    pace = np.median(best[known] / macs[known]) if known.any() else 1.0 / macs.max()
    return np.where(known, best, pace * macs)


def overflow(points: JointSpace, places: Places) -> Floats:
    """Return the occupied share of the fullest scratchpad, for each layer of points.

    A schedule with a share above 1 does not fit. The share is 0 for a layer that the core does not
    run, and for machines without scratchpads.

    Args:
        points: the search space.
        places: the points, int array of shape (points, knobs).

    Returns:
        Float array of shape (points, slots).
    """
    size = _hardware(points, places)
    if any(name not in size for name in BUFFERS):
        return np.zeros((len(places), len(points.slots.names)))
    knob = _Knobs(points, places)
    shape = points.slots.shapes[points.cores(places)]
    of = {name: shape[:, :, k] for k, name in enumerate(SHAPE)}
    side = {name: _power(size, f"log_{name}") for name in ("batch", "block_in", "block_out")}
    rows, columns = knob("tile_h", "tile_b"), knob("tile_w")
    outputs, inputs = knob("tile_co", "tile_c"), knob("tile_ci")
    pixels = _window(rows, of["stride_h"], of["kernel_h"]) * _window(
        columns, of["stride_w"], of["kernel_w"]
    )
    # A tile takes one slot of a ring buffer. 0 slots mean that the data stay resident for the
    # whole reduction.
    reduction = np.ceil(of["in_channels"] / of["groups"] / (inputs * side["block_in"]))
    tiles = [
        np.where(knob(name) == 0, reduction, knob(name)) for name in ("inp_slots", "wgt_slots")
    ]
    taps = of["kernel_h"] * of["kernel_w"]
    needed = (
        tiles[0] * inputs * side["block_in"] * side["batch"] * pixels,
        tiles[1] * inputs * side["block_in"] * outputs * side["block_out"] * taps,
        knob("acc_slots") * outputs * side["block_out"] * side["batch"] * rows * columns
        * ACCUMULATOR_BYTES,
    )  # fmt: skip
    shares = [item / _power(size, name) for item, name in zip(needed, BUFFERS, strict=True)]
    return np.asarray(np.nan_to_num(np.max(shares, axis=0), nan=0.0))


class _Knobs:
    """Looks up the schedule knobs of points by name.

    Some knobs have different names for different operators, so a look-up takes several names.

    Args:
        points: the search space.
        places: the points, int array of shape (points, knobs).
    """

    def __init__(self, points: JointSpace, places: Places) -> None:
        self.names, self.values = points.slots.knobs, points.values(places)

    def __call__(self, *names: str) -> Floats:
        """Return the values of the first knob that a layer has among several names.

        Args:
            *names: possible names of the knob.

        Returns:
            Float array of shape (points, slots); 1 if the layer has no knob with such a name.
        """
        result = np.full(self.values.shape[:2], np.nan)
        for name in names:
            if name in self.names:
                result = np.where(
                    np.isnan(result), self.values[:, :, self.names.index(name)], result
                )
        return np.where(np.isnan(result), 1.0, result)


def _hardware(points: JointSpace, places: Places) -> dict[str, Floats]:
    values = points.machines(places)
    return {knob.name: values[:, k] for k, knob in enumerate(points.hardware.space.knobs)}


def _power(sizes: dict[str, Floats], name: str) -> Floats:
    """Return 2 to the power of a hardware knob, float array of shape (points, 1).

    Args:
        sizes: values of the hardware knobs, each of shape (points,), by name.
        name: name of the knob. The result is 1 if the knob does not exist.
    """
    if name not in sizes:
        return np.ones((len(next(iter(sizes.values()))), 1))
    return np.asarray(2.0 ** sizes[name][:, None])


def _window(outputs: Floats, stride: Floats, kernel: Floats) -> Floats:
    """Return the number of input pixels that a number of output pixels reads along one axis.

    Args:
        outputs: number of output pixels.
        stride: stride of the convolution.
        kernel: extent of the kernel.
    """
    return (outputs - 1) * stride + kernel
