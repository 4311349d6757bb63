"""Visible features of configs: properties that are known before a config is compiled.

Models P and V learn from these features. There are two sets of features for the same knobs.
`tree_features` is for tree models and has many plain columns: logarithms, flags and remainders.
`gp_features` is for Gaussian processes and has few columns on a common scale. The meaning of a knob
follows from its name: `tile_*` splits an axis of the workload, `*thread*` multiplies a working set,
and `*_slots` is the number of buffers in a scratchpad. Other knobs get only generic columns.
Columns that are constant within a space are left out. `words` describes a column in plain words.

`loop_features` computes AutoTVM's `itervar` features, which describe the loop nest of a config. TVM
reads them from the lowered program (autotvm/feature.py, `get_itervar_feature`). The features of
each loop are its length, the number of iterations around it and the number of iterations within it.
For each tensor, there are also the number of elements that one execution of the loop touches, and
how often each element is reused. Here, the loop nest is derived from the knobs: every `tile_*` knob
splits its axis into an outer and an inner loop. Outer loops come first, in the order batch, output
channels, rows, columns, input channels, kernel rows, kernel columns. The inner loops follow in the
same order. All configs of a space have the same number of loops, so all rows have the same length.
TVM's annotations and arithmetic counts are the same for all configs and are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.base import Configs, Space
from tilewright.targets.features import Feature, Features
from tilewright.targets.workload import Workload

_EXTENT = {"tile_h": "results_height", "tile_w": "results_width"}
_FEW = 4  # knobs with at most this many values are categorical for a Gaussian process
_ALIKE = 0.98  # a column with a higher correlation to an earlier one is redundant
_SAMPLE = 2048  # number of random configs that determine the scale of a column

Columns = dict[str, NDArray[np.float64]]


def tree_features(workload: Workload, space: Space, configs: Configs) -> Features:
    """Compute the features of configs for tree models.

    The columns are:

    - log2 of each knob;
    - for each tile: log2 of the number of parts, the work wasted in the last part, a flag for a
      tile of size one, a flag for an axis that is not split, and a flag per thread knob for a
      number of parts that is not a multiple of the number of threads;
    - log2 volumes of the working sets in elements.

    Columns that are constant within the space are left out.

    Args:
        workload: the workload.
        space: its search space.
        configs: knob indices, int array of shape (n, knobs).

    Returns:
        Features with one row per config.
    """
    return _varying_features(_tree_columns, workload, space, configs)


def every_tree_column(workload: Workload, space: Space, configs: Configs) -> Features:
    """Compute all columns of `tree_features`, including those that are constant within the space.

    All spaces with the same knobs therefore have the same columns.

    Args:
        workload: the workload.
        space: its search space.
        configs: knob indices, int array of shape (n, knobs).

    Returns:
        Features with one row per config.
    """
    columns = _tree_columns(workload, space, configs)
    return Features(np.stack([*columns.values()], axis=1), _feature_columns(tuple(columns)))


def gp_features(workload: Workload, space: Space, configs: Configs) -> Features:
    """Compute the features of configs for Gaussian processes.

    The columns are log2 of the knobs, indicators for knobs with three or four values that are not
    threads, log2 of the numbers of parts, the work wasted in last parts, and log2 volumes. Each
    column has mean 0 and standard deviation 1 over a random sample of the space.

    Args:
        workload: the workload.
        space: its search space.
        configs: knob indices, int array of shape (n, knobs).

    Returns:
        Features with one row per config.
    """
    plain = _varying_features(_gp_columns, workload, space, configs)
    _, mean, deviation = _reference(_gp_columns, workload, space)
    return Features((plain.matrix - mean) / deviation, plain.columns)


def volumes(workload: Workload, values: Columns) -> Columns:
    """Compute the log2 sizes of the input, weight and output tiles that are live at the same time.

    The sizes include the tiles of all threads and all buffer slots.

    Args:
        workload: the workload.
        values: knob values by knob name, each of shape (n,).

    Returns:
        log2 numbers of elements by column name, each of shape (n,). Channels are counted in the
        unit of their knob. Empty if the space has no knobs for tiles of rows or columns.
    """

    def tile(name: str) -> NDArray[np.float64] | float:
        return values.get(name, 1.0)

    w = workload
    if "tile_h" not in values and "tile_w" not in values:
        return {}
    tile_h, tile_w = tile("tile_h"), tile("tile_w")
    if w.pool is not None:  # the accumulators hold all results that the pool's windows read
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


def _varying_features(
    view: Callable[[Workload, Space, Configs], Columns],
    workload: Workload,
    space: Space,
    configs: Configs,
) -> Features:
    names, _, _ = _reference(view, workload, space)
    columns = view(workload, space, configs)
    return Features(np.stack([columns[name] for name in names], axis=1), _feature_columns(names))


@lru_cache(maxsize=512)
def _feature_columns(names: tuple[str, ...]) -> tuple[Feature, ...]:
    return tuple(Feature(name, text=words(name)) for name in names)


@lru_cache(maxsize=256)
def _reference(
    view: Callable[[Workload, Space, Configs], Columns], workload: Workload, space: Space
) -> tuple[tuple[str, ...], NDArray[np.float64], NDArray[np.float64]]:
    """Return the names, means and standard deviations of the columns that vary over a space.

    They are computed on a fixed random sample of configs, so that the scale of a column does not
    depend on the configs for which features are requested. For Gaussian processes, columns that
    correlate almost perfectly with an earlier column are left out.

    Args:
        view: function that computes the columns, such as `_gp_columns`.
        workload: the workload.
        space: its search space.

    Returns:
        Names of the columns; their means, shape (columns,); and their standard deviations, shape
        (columns,), with 1 in place of 0.
    """
    rng = np.random.default_rng(0)
    flat = (
        rng.integers(0, space.size, _SAMPLE)
        if space.listed is None
        else rng.choice(np.asarray(space.listed), _SAMPLE)
    )
    columns = view(workload, space, space.unravel(flat))
    names = [name for name, column in columns.items() if np.ptp(column) > 0]
    names = names or list(columns)[:1]  # no column varies in a space of one config
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
    """Return the number of parts into which a tile splits its axis, and the wasted work.

    The last part may extend beyond the axis; this part of the work is wasted.

    Args:
        workload: the workload, which has the extents of the axes.
        space: its search space.
        name: name of the tile knob.
        tile: tile sizes, shape (n,).

    Returns:
        Numbers of parts, and the wasted work as a fraction of the axis, both of shape (n,).
    """
    knob = next(knob for knob in space.knobs if knob.name == name)
    extent = float(getattr(workload, _EXTENT[name])) if name in _EXTENT else max(knob.values)
    parts = np.ceil(extent / np.maximum(tile, 1))
    return parts, parts * tile / extent - 1.0


def _log2(values: NDArray[np.float64] | float) -> NDArray[np.float64]:
    return np.asarray(np.log2(np.maximum(values, 0.5)), dtype=np.float64)


_KNOBS = {  # knobs of the built-in spaces; other knobs are described by their names
    "tile_b": "images per tile",
    "tile_h": "output rows per tile",
    "tile_w": "output columns per tile",
    "tile_co": "output channel blocks per tile",
    "tile_ci": "input channel blocks per step",
    "oc_nthread": "threads over output channels",
    "h_nthread": "threads over rows",
    "inp_slots": "input tiles held at once",
    "wgt_slots": "weight tiles held at once",
    "acc_slots": "output tiles held at once",
    "order": "which of the loops over inputs and weights is the outer one",
    "head": "amount by which the first tile is shorter",
    "ramp": "number of first steps whose weights are loaded in growing parts",
    "tail": "number of shrinking parts of the last tile",
    "nthread": "threads",
}
_SETS = {"inp": "input", "wgt": "weight", "out": "output"}
_SHAPES = (
    ("log2_parts_", "number of {} that the layer is split into (log2)"),
    ("log2_", "{} (log2)"),
    ("waste_", "share of the work that is padding, through {}"),
    ("one_", "1 if there is a single one of: {}"),
    ("whole_", "1 if the layer is not split into {}"),
)
"""Prefixes of column names, each with the description of the column; `{}` is replaced by the
description of the knob."""


def words(name: str) -> str:
    """Describe a feature column in plain words, for pages and tables.

    Args:
        name: name of the column, as in `tree_features` or `gp_features`.
    """
    if name == "log2_tiles":
        return "tiles of the layer (log2)"
    if name.endswith("_volume_times_tiles"):
        return f"{_volume(name.removesuffix('_volume_times_tiles'))}, times the tiles (log2)"
    if name.endswith("_volume"):
        return f"{_volume(name.removesuffix('_volume'))} (log2)"
    if name.startswith("rest_"):
        tile, thread = _split_thread_knob(name.removeprefix("rest_"))
        return f"1 if the number of {_knob(tile)} is not a multiple of the {_knob(thread)}"
    if "_is_" in name:
        knob, _, value = name.rpartition("_is_")
        return f"1 where {_knob(knob)}: {value}"
    for start, text in _SHAPES:
        if name.startswith(start):
            return text.format(_knob(name.removeprefix(start)))
    return _knob(name)


def _volume(name: str) -> str:
    kind = name.removeprefix("log2_")
    return f"{_SETS.get(kind, kind)} elements in flight, all threads and slots"


def _split_thread_knob(text: str) -> tuple[str, str]:
    """Split a text such as `tile_h_oc_nthread` into the names of its tile and thread knobs.

    The example gives `tile_h` and `oc_nthread`.
    """
    axis, _, thread = text.removeprefix("tile_").partition("_")
    return f"tile_{axis}", thread


def _knob(name: str) -> str:
    return _KNOBS.get(name, f"knob {name}")


AXES = ("b", "co", "h", "w", "ci")
TAPS = ("kh", "kw")
TOUCHED_BY: dict[str, frozenset[str]] = {
    "inp": frozenset({"b", "h", "w", "ci", "kh", "kw"}),
    "wgt": frozenset({"co", "ci", "kh", "kw"}),
    "out": frozenset({"b", "co", "h", "w"}),
}
"""Axes that index each tensor. Overlapping windows are counted once per kernel position."""

PerConfig = NDArray[np.float64]
"""One value per config, shape (configs,)."""


def loop_features(workload: Workload, space: Space, configs: Configs) -> Features:
    """Compute AutoTVM's `itervar` features of configs.

    The features of each loop are:

    - log2 of its length;
    - log2 of the number of iterations of the loop together with the loops around it;
    - log2 of the number of iterations of the loop together with the loops within it;
    - for each tensor, log2 of the number of touched elements, and log2 of their reuse.

    Knobs that split no axis are added with their values, like the other knobs of AutoTVM.

    Args:
        workload: the workload.
        space: its search space.
        configs: knob indices, int array of shape (n, knobs).

    Returns:
        Features with one row per config.
    """
    values = space.values(configs).astype(np.float64)
    knobs = {knob.name: values[:, k] for k, knob in enumerate(space.knobs)}
    loops = _nest(workload, space, knobs, len(configs))
    columns: dict[str, PerConfig] = {}
    above = np.zeros(len(configs))
    below = np.sum([length for _, length in loops], axis=0)
    for place, (axis, length) in enumerate(loops):
        above = above + length
        columns |= {
            f"{place} {axis} length": length,
            f"{place} {axis} topdown": above,
            f"{place} {axis} bottomup": below,
        }
        for tensor, indexed in TOUCHED_BY.items():
            within = [size for name, size in loops[place:] if name in indexed]
            touched = np.sum([np.zeros(len(configs)), *within], axis=0)
            columns[f"{place} {axis} touches {tensor}"] = touched
            columns[f"{place} {axis} reuses {tensor}"] = below - touched
        below = below - length
    split = {f"tile_{axis}" for axis in AXES}
    columns |= {name: value for name, value in knobs.items() if name not in split}
    return Features.from_names(np.stack(list(columns.values()), axis=1), list(columns))


def _nest(
    workload: Workload, space: Space, knobs: dict[str, PerConfig], rows: int
) -> list[tuple[str, PerConfig]]:
    """Return the loops of configs from the outermost to the innermost.

    Channels are counted in the unit of their knob. An axis without a knob is not split: all of its
    iterations are in the outer loop.

    Args:
        workload: the workload.
        space: its search space.
        knobs: knob values by name, each of shape (rows,).
        rows: number of configs.

    Returns:
        Pairs of the axis of a loop and its log2 length, which has shape (rows,).
    """
    w, whole = workload, np.zeros(rows)
    extents = {"b": w.batch, "h": w.results_height, "w": w.results_width, "co": 1, "ci": 1}
    most = {knob.name: max(knob.values) for knob in space.knobs}
    outer, inner = [], []
    for axis in AXES:
        tile = knobs.get(f"tile_{axis}")
        extent = float(most.get(f"tile_{axis}", extents[axis]))
        inside = whole if tile is None else np.log2(np.maximum(tile, 1.0))
        outer.append((axis, np.maximum(np.log2(extent) - inside, 0.0)))
        inner.append((axis, inside))
    taps = [(name, whole + np.log2(size)) for name, size in zip(TAPS, (w.kernel_h, w.kernel_w),
                                                                  strict=True)]  # fmt: skip
    return [*outer, *taps, *inner]
