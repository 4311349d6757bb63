"""Finds the points that overflow a scratchpad, as the published methods hold memory limits: by the
sizes of tiles alone. What is not built all the same is found out by measuring it."""

from __future__ import annotations

import numpy as np

from tilewright.hardware_search.methods.joint_space import SHAPE, Floats, Places, Points

ACCUMULATOR_BYTES = 4
BUFFERS = ("log_inp_buff_size", "log_wgt_buff_size", "log_acc_buff_size")


def overflow(points: Points, places: Places) -> Floats:
    """The largest share of a scratchpad that a tile's data take, shape (points, slots); above 1 it
    cannot be built. 0 for a layer that the core does not run, and on machines without scratchpads.
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
    # A ring of slots; what is to stay resident is taken for the whole reduction.
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
    shares = [each / _power(size, name) for each, name in zip(needed, BUFFERS, strict=True)]
    return np.asarray(np.nan_to_num(np.max(shares, axis=0), nan=0.0))


class _Knobs:
    """Values of a knob by the first of its names that a layer has, 1 without one."""

    def __init__(self, points: Points, places: Places) -> None:
        self.names, self.values = points.slots.knobs, points.values(places)

    def __call__(self, *names: str) -> Floats:
        found = np.full(self.values.shape[:2], np.nan)
        for name in names:
            if name in self.names:
                found = np.where(np.isnan(found), self.values[:, :, self.names.index(name)], found)
        return np.where(np.isnan(found), 1.0, found)


def _hardware(points: Points, places: Places) -> dict[str, Floats]:
    values = points.machines(places)
    return {knob.name: values[:, k] for k, knob in enumerate(points.hardware.space.knobs)}


def _power(sizes: dict[str, Floats], name: str) -> Floats:
    """2 to the knob's value, 1 without one, shape (points, 1)."""
    if name not in sizes:
        return np.ones((len(next(iter(sizes.values()))), 1))
    return np.asarray(2.0 ** sizes[name][:, None])


def _window(outputs: Floats, stride: Floats, kernel: Floats) -> Floats:
    """Input pixels under so many outputs."""
    return (outputs - 1) * stride + kernel
