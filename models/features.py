"""Computes visible features: properties of a config known before it is compiled, without estimates.

Two views of the same knobs. `tree_features` is for trees: many plain columns, logarithms, flags,
remainders. `gp_features` is for Gaussian processes: few columns on a common scale. Roles are read
off knob names: `tile_*` cut an axis of the workload, `*thread*` multiply a working set, `*_slots`
are buffers in a scratchpad. Other knobs get the generic columns only. Columns that are constant
within a space are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tilewright.models.feature_labels import words
from tilewright.targets.base import Configs, Space
from tilewright.targets.features import Feature, Features
from tilewright.targets.workload import Workload

_EXTENT = {"tile_h": "results_height", "tile_w": "results_width"}
_FEW = 4  # a knob with at most this many values is a category to a Gaussian process
_ALIKE = 0.98  # correlation from which two columns say the same
_SAMPLE = 2048  # configs that tell a column's scale

Columns = dict[str, NDArray[np.float64]]


def tree_features(workload: Workload, space: Space, configs: Configs) -> Features:
    """Columns for trees: log2 of every knob; of every tile the log2 number of parts, the waste of
    the last part, whether the axis is uncut or fully cut, whether threads leave parts over; log2
    volumes of the working sets in elements. A row a config, configs of shape (n, knobs)."""
    return _kept(_tree_columns, workload, space, configs)


def every_tree_column(workload: Workload, space: Space, configs: Configs) -> Features:
    """The columns of `tree_features`, constant ones too, so that they are those of other spaces of
    the same knobs. A row a config, configs of shape (n, knobs)."""
    columns = _tree_columns(workload, space, configs)
    return Features(np.stack([*columns.values()], axis=1), _about(tuple(columns)))


def gp_features(workload: Workload, space: Space, configs: Configs) -> Features:
    """Columns for Gaussian processes, mean 0 and deviation 1 over the space: log2 of knobs, small
    knobs that are no threads as categories, waste of last parts, log2 volumes. A row a config,
    configs of shape (n, knobs)."""
    plain = _kept(_gp_columns, workload, space, configs)
    _, mean, deviation = _reference(_gp_columns, workload, space)
    return Features((plain.matrix - mean) / deviation, plain.columns)


def volumes(workload: Workload, values: Columns) -> Columns:
    """log2 elements of the input window, weight block and output tile in flight, all threads and
    slots included, each of shape (n,) as `values` are. Channels count in the knob's own unit."""

    def tile(name: str) -> NDArray[np.float64] | float:
        return values.get(name, 1.0)

    w = workload
    if "tile_h" not in values and "tile_w" not in values:
        return {}
    tile_h, tile_w = tile("tile_h"), tile("tile_w")
    if w.pool is not None:  # accumulators hold all sums that a tile's windows read
        tile_h = (tile_h - 1) * w.pool.stride_h + w.pool.kernel_h
        tile_w = (tile_w - 1) * w.pool.stride_w + w.pool.kernel_w
    rows = (tile_h - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h + 1
    columns = (tile_w - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w + 1
    copies: NDArray[np.float64] | float = 1.0
    for name, count in values.items():
        if "thread" in name:
            copies = copies * np.maximum(count, 1)
    batch = tile("tile_b")
    sets = {
        "inp": batch * tile("tile_ci") * rows * columns,
        "wgt": tile("tile_ci") * tile("tile_co") * w.kernel_h * w.kernel_w,
        "out": batch * tile("tile_co") * tile_h * tile_w,
    }
    slots = {"inp": "inp_slots", "wgt": "wgt_slots", "out": "acc_slots"}
    any_row = np.zeros(len(next(iter(values.values()))))
    return {
        f"log2_{name}_volume": _log2(size * copies * np.maximum(tile(slots[name]), 1.0)) + any_row
        for name, size in sets.items()
    }


def _tree_columns(workload: Workload, space: Space, configs: Configs) -> Columns:
    values = _by_name(space, configs)
    columns: Columns = {f"log2_{name}": _log2(value) for name, value in values.items()}
    for name in (n for n in values if n.startswith("tile_")):
        parts, waste = _cut(workload, space, name, values[name])
        columns[f"log2_parts_{name}"] = np.log2(parts)
        columns[f"waste_{name}"] = waste
        columns[f"one_{name}"] = (values[name] == 1).astype(np.float64)
        columns[f"whole_{name}"] = (parts == 1).astype(np.float64)
        for thread in (n for n in values if "thread" in n):
            rest = parts % np.maximum(values[thread], 1) > 0
            columns[f"rest_{name}_{thread}"] = rest.astype(np.float64)
    return columns | volumes(workload, values)


def _gp_columns(workload: Workload, space: Space, configs: Configs) -> Columns:
    columns: Columns = {}
    values = _by_name(space, configs)
    log_tiles: NDArray[np.float64] = np.zeros(len(configs))
    for knob, (name, value) in zip(space.knobs, values.items(), strict=True):
        if name.startswith("tile_"):
            parts, columns[f"waste_{name}"] = _cut(workload, space, name, value)
            columns[f"log2_parts_{name}"] = np.log2(parts)
            log_tiles = log_tiles + np.log2(parts)
        elif "thread" not in name and 2 < len(knob.values) <= _FEW:
            columns |= {f"{name}_is_{v}": (value == v).astype(np.float64) for v in knob.values}
            continue
        columns[f"log2_{name}"] = _log2(value)
    sets = volumes(workload, values)
    moved = {f"{name}_times_tiles": volume + log_tiles for name, volume in sets.items()}
    return columns | sets | {"log2_tiles": log_tiles} | moved


def _kept(
    view: Callable[[Workload, Space, Configs], Columns],
    workload: Workload,
    space: Space,
    configs: Configs,
) -> Features:
    names, _, _ = _reference(view, workload, space)
    columns = view(workload, space, configs)
    return Features(np.stack([columns[name] for name in names], axis=1), _about(names))


@lru_cache(maxsize=512)
def _about(names: tuple[str, ...]) -> tuple[Feature, ...]:
    return tuple(Feature(name, text=words(name)) for name in names)


@lru_cache(maxsize=256)
def _reference(
    view: Callable[[Workload, Space, Configs], Columns], workload: Workload, space: Space
) -> tuple[tuple[str, ...], NDArray[np.float64], NDArray[np.float64]]:
    """The columns that vary over a space, each in its own way, their means and deviations, from a
    fixed sample."""
    rng = np.random.default_rng(0)
    flat = (
        rng.integers(0, space.size, _SAMPLE)
        if space.listed is None
        else rng.choice(np.asarray(space.listed), _SAMPLE)
    )
    columns = view(workload, space, space.unravel(flat))
    names = [name for name, column in columns.items() if np.ptp(column) > 0]
    names = names or list(columns)[:1]  # a space of one config
    kept = np.stack([columns[name] for name in names], axis=1)
    if view is _gp_columns and len(names) > 1:
        alike = np.abs(np.atleast_2d(np.corrcoef(kept.T))) > _ALIKE
        own = np.array([not column.any() for column in np.triu(alike, 1).T])
        names, kept = ([name for name, keep in zip(names, own, strict=True) if keep], kept[:, own])
    deviation = kept.std(axis=0)
    return tuple(names), kept.mean(axis=0), np.where(deviation > 0, deviation, 1.0)


def _by_name(space: Space, configs: Configs) -> Columns:
    values = space.values(configs).astype(np.float64)
    return {knob.name: values[:, index] for index, knob in enumerate(space.knobs)}


def _cut(
    workload: Workload, space: Space, name: str, tile: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Number of parts a tile cuts its axis into, and the share of work the last part wastes."""
    knob = next(knob for knob in space.knobs if knob.name == name)
    extent = float(getattr(workload, _EXTENT[name])) if name in _EXTENT else max(knob.values)
    parts = np.ceil(extent / np.maximum(tile, 1))
    return parts, parts * tile / extent - 1.0


def _log2(values: NDArray[np.float64] | float) -> NDArray[np.float64]:
    return np.asarray(np.log2(np.maximum(values, 0.5)), dtype=np.float64)
