"""Columns that describe programs on hardware, the input of transfer models.

The names are the same for the rows of a dataset and for the candidates of a tuner. The first word
of a name is its group: `hardware`, `workload`, `schedule` or `program` (known only after
compilation). Each target may have its own columns. In a table with several targets, the value of a
column that a target does not have is NaN.

A fifth group, `derived`, expresses a program's work relative to the speed of the hardware. The
counts of the program and the rates of the hardware are separate columns. A tree would need many
splits to approximate their quotients and could not extrapolate, so the quotients are additional
columns. They are relative to the time that the workload's multiplications take at peak speed, which
makes them comparable across hardware. Derived columns are computed from the other columns by name,
and nothing is fitted. Values that cannot be computed are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tilewright.models.features import every_tree_column
from tilewright.models.hidden_features import hidden_features
from tilewright.targets.base import Configs, Space
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

_SIZES = (
    "batch", "groups", "in_channels", "out_channels", "height", "width", "out_height", "out_width",
    "kernel_h", "kernel_w", "stride_h", "stride_w", "dilation_h", "dilation_w", "macs",
)  # fmt: skip
_OPERATORS = ("conv2d", "dense", "max_pool", "batch_matmul")
_EPILOGUE_STEPS = ("bias", "residual", "shr")


def columns_of(
    workload: Workload,
    space: Space,
    configs: Configs,
    hardware: Mapping[str, float],
    hidden: Features | None = None,
) -> Features:
    """Compute all input columns of a transfer model except the derived columns.

    Args:
        workload: the workload.
        space: its search space.
        configs: knob indices, int array of shape (n, knobs).
        hardware: properties of the hardware by name, as in `Target.hardware_features`.
        hidden: counters of the compiled programs, one row per config; rows of configs that did not
            compile are NaN. If None, there are no columns of the group `program`.

    Returns:
        Features with one row per config.
    """
    fixed = _of_hardware(hardware) | _of_workload(workload)
    wide = np.tile(np.array([*fixed.values()]), (len(configs), 1))
    parts = [
        Features.from_names(wide, [*fixed]),
        every_tree_column(workload, space, configs).with_prefix("schedule"),
    ]
    if hidden is not None:
        parts += [_logs(hidden), _sums(hidden)]
    return parts[0].append_columns(*parts[1:])


def _of_hardware(hardware: Mapping[str, float]) -> dict[str, float]:
    """Return the hardware columns: log2 of each property, by column name.

    A property with the value 0 is left out, because 0 means that the hardware lacks the feature.

    Args:
        hardware: properties by name. A value whose name starts with `log2_` is already a logarithm.
    """
    return {
        f"hardware {name}": value if name.startswith("log2_") else float(np.log2(value))
        for name, value in hardware.items()
        if value > 0 or name.startswith("log2_")
    }


def _of_workload(workload: Workload) -> dict[str, float]:
    sizes = {name: float(getattr(workload, name)) for name in _SIZES}
    kinds = {name: float(workload.operator == name) for name in _OPERATORS}
    steps = {
        name: float(any(op.kind == name for op in workload.epilogue)) for name in _EPILOGUE_STEPS
    }
    return (
        {f"workload {name}": float(np.log2(max(value, 1.0))) for name, value in sizes.items()}
        | {f"workload is {name}": value for name, value in kinds.items()}
        | {f"workload has {name}": value for name, value in steps.items()}
        | {"workload pooled": float(workload.pool is not None)}
        | {"workload float32": float(workload.dtype == "float32")}
    )


def _logs(hidden: Features) -> Features:
    matrix: NDArray[np.float64] = np.log2(1.0 + np.maximum(hidden.matrix, 0.0))
    return Features(matrix, hidden.columns).with_prefix("program")


def _sums(hidden: Features) -> Features:
    """Compute the counter sums that all targets have in common.

    They are the columns of `models.hidden_features.hidden_features`.

    Args:
        hidden: counters with one row per program; rows of uncompiled programs are NaN.

    Returns:
        Features with one row per program; NaN for uncompiled programs.
    """
    features = hidden_features(hidden)
    unknown: NDArray[np.bool_] = np.asarray(np.isnan(hidden.matrix).all(axis=1))
    matrix = np.where(unknown[:, None], np.nan, features.matrix)
    return Features(matrix, features.columns).with_prefix("program")


PREFIX = "derived"
LATE = "derived late"
"""Prefix of the names of derived columns that need the group `program`, so that they are known only
after compilation."""

PEAK = f"{PREFIX} peak"
REFERENCE = f"{LATE} reference"
"""Name of the column with log2 of an estimated run time, relative to the time at peak speed.

The estimate is the time of the busiest unit plus the time that overlaps with nothing. Where the
estimate is known, models learn only the difference to it.
"""

_Column = NDArray[np.float64]
_Get = Callable[[str], _Column]

_BUSY = {
    "compute": ("gemm_iterations", "reset_iterations", "alu_iterations"),
    "load": ("inp_bytes", "wgt_bytes"),
    "side": ("acc_bytes",),
    "store": ("out_bytes",),
    "exposed": ("first_exposed", "load_exposed", "store_exposed", "last_exposed"),
}
"""Names of VTA's counters that add to the busy time of a unit, by unit.

The counters of `compute` are iterations, which take one cycle each. All other counters are bytes
that pass the bus. `side` stands for transfers that the compute unit makes itself, and `exposed` for
transfers that overlap with nothing.
"""
_STARTS = {
    "load": ("inp_loads", "wgt_loads"),
    "side": ("acc_loads", "uop_loads"),
    "store": ("out_rows",),
}
"""Names of VTA's counters of memory requests, by unit. Each request waits once for the memory
latency."""
_STEPS = {"compute": ("gemms", "alus"), "load": ("inp_rows",), "store": ("out_rows",)}
"""Names of VTA's counters of steps, by unit. Each step takes one additional cycle of its unit."""
_GEMMINI = {
    "compute": ("fed_cycles",), "load": ("data_bytes", "weight_bytes", "bias_bytes"),
    "store": ("stored_bytes",), "exposed": ("first_bytes",),
}  # fmt: skip
"""Names of Gemmini's counters that correspond to those of VTA in `_BUSY`, by unit. Gemmini's array
takes one row of data per cycle."""
_REQUESTS = {"load": ("read_requests",), "store": ("write_requests",)}
"""Names of Gemmini's counters of memory requests, by unit. At most `_UNDER_WAY` requests are in
flight at a time."""
# Gemmini's reader and its writer have 16 DMA requests in flight each.
_UNDER_WAY, _RETURN_CYCLES = 16, 7
INGREDIENTS = tuple(
    f"program {name}"
    for counts in (_BUSY, _STARTS, _STEPS, _GEMMINI, _REQUESTS)
    for name in chain.from_iterable(counts.values())
)
"""Names of the columns from which the column `REFERENCE` is computed."""
_SETS = {
    "inp": ("batch", "block_in"), "wgt": ("block_in", "block_out"), "out": ("batch", "block_out"),
}  # fmt: skip
"""Tensors, each with the hardware properties whose product is the number of elements in one block
of the tensor."""
_DEPTHS = {"inp": "log2_inp_depth", "wgt": "log2_wgt_depth", "out": "log2_acc_depth"}


def with_derived(features: Features) -> Features:
    """Append columns that express a program's work relative to the speed of the hardware.

    These derived columns are computed from the other columns by name. Derived columns with the
    prefix `LATE` need counters of compiled programs. They are added only if there are columns of
    the group `program`.

    Args:
        features: columns of the groups `hardware`, `workload`, `schedule` and, after compilation,
            `program`.

    Returns:
        The given columns, followed by the derived columns. Values that cannot be computed are NaN.
    """
    names = {name: k for k, name in enumerate(features.names)}

    def get(name: str) -> _Column:
        place = names.get(name)
        return np.full(len(features), np.nan) if place is None else features.matrix[:, place]

    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        peak = _peak(get)
        derived = _early(get, peak)
        if any(name.startswith("program ") for name in names):
            derived |= _late_columns(get, peak)
    return features.append_columns(
        Features.from_names(np.stack([*derived.values()], axis=1), [*derived])
    )


def _peak(get: _Get) -> _Column:
    """Compute log2 of the time that all multiplications of a workload take at peak speed.

    The unit is cycles, or seconds up to a constant factor if the hardware has no matrix blocks.

    Args:
        get: function that returns a column by its name, shape (rows,); NaN if there is no such
            column.

    Returns:
        Array of shape (rows,).
    """
    blocks = sum(get(f"hardware {name}") for name in ("batch", "block_in", "block_out"))
    return get("workload macs") - _first_known([np.asarray(blocks), get("hardware peak_gflops")])


def _early(get: _Get, peak: _Column) -> dict[str, _Column]:
    """Compute the derived columns that need only knobs, shapes and hardware properties.

    Args:
        get: function that returns a column by its name, shape (rows,); NaN if there is no such
            column.
        peak: result of `_peak`, to which the columns are relative.

    Returns:
        Columns by name, each of shape (rows,).
    """
    columns = {"peak": peak}
    bus, wait = get("hardware bus_bytes"), get("hardware memory_latency_cycles")
    tiles = sum(_or_0(get(f"schedule log2_parts_tile_{axis}")) for axis in ("b", "h", "w", "co"))
    steps = tiles + _or_0(get("schedule log2_parts_tile_ci"))
    copies = _or_0(get("schedule log2_oc_nthread")) + _or_0(get("schedule log2_h_nthread"))
    traffic = []
    nowhere = 0.0 * get("schedule log2_inp_volume")  # NaN for spaces without tile knobs
    for name, blocks in _SETS.items():
        volume = get(f"schedule log2_{name}_volume")
        element = sum(get(f"hardware {block}") for block in blocks)
        slots = get(f"schedule log2_{'acc' if name == 'out' else name}_slots")
        once = volume - copies - np.maximum(_or_0(slots), 0.0)
        moved = once + (tiles if name == "out" else steps) + element - bus
        traffic.append(np.exp2(moved))
        columns |= {f"moved {name}": moved - peak, f"share {name}": volume - get(
            f"hardware {_DEPTHS[name]}"
        )}  # fmt: skip
    columns |= {
        "moved": np.log2(sum(traffic, np.zeros(len(peak)))) - peak,
        "waits": steps + nowhere + wait - peak,
        "steps": steps + nowhere,
        "burst": get("schedule log2_tile_w") + get("hardware batch") + get("hardware block_in")
        - bus - get("hardware max_burst_beats"),
    }  # fmt: skip
    return {f"{PREFIX} {name}": column for name, column in columns.items()}


def _late_columns(get: _Get, peak: _Column) -> dict[str, _Column]:
    """Compute the derived columns that need the counters of compiled programs.

    Args:
        get: function that returns a column by its name, shape (rows,); NaN if there is no such
            column.
        peak: result of `_peak`, to which the columns are relative.

    Returns:
        Columns by name, each of shape (rows,).
    """
    bus, wait = get("hardware bus_bytes"), get("hardware memory_latency_cycles")
    cycles = {
        unit: _total(get, names) / (1.0 if unit == "compute" else np.exp2(bus))
        for unit, names in _BUSY.items()
    }
    waits = {unit: _total(get, names) * np.exp2(wait) for unit, names in _STARTS.items()}
    more = {unit: _total(get, names) for unit, names in _STEPS.items()}
    _put_gemmini(get, cycles, waits, more)
    units = {unit: cycles[unit] + waits.get(unit, 0.0) for unit in ("compute", "load", "store")}
    units["compute"] = units["compute"] + cycles["side"] + waits["side"]
    stored = cycles["store"] + more["store"]
    steps = {unit: units[unit] + more[unit] for unit in ("compute", "load")}
    longest = np.max([*steps.values(), stored], axis=0)
    result = {"reference": longest + cycles["exposed"]}
    result |= {f"{unit} cycles": cycle for unit, cycle in cycles.items()}
    result |= {f"{unit} waits": wait for unit, wait in waits.items()}
    result |= {f"{unit} busy": item for unit, item in units.items()}
    result["longest"] = np.max([*units.values()], axis=0)
    result["all"] = np.sum([*units.values()], axis=0)
    result["shown"] = units["compute"] + cycles["exposed"]
    result["shown and waits"] = result["shown"] + waits["load"] + waits["store"]
    logs = {name: np.log2(1.0 + column) - peak for name, column in result.items()}
    logs["bound"] = np.log2(result["shown"] / result["longest"])
    # Every target has these counters, although their scales differ.
    for name in ("bytes", "iterations", "exposed", "instructions"):
        logs[f"of peak {name}"] = 2.0 * get(f"program hidden {name}") - get("workload macs")
    return {f"{LATE} {name}": column for name, column in logs.items()}


def _put_gemmini(get: _Get, *known: dict[str, _Column]) -> None:
    """Fill in cycles, waits and steps of Gemmini programs, for which VTA's counters are NaN.

    A unit of Gemmini is busy for the time that it transfers bytes or the time that it waits for
    requests, whichever is longer.

    Args:
        get: function that returns a column by its name; NaN if there is no such column.
        *known: dictionaries of cycles, waits and steps by unit; they are updated in place.
    """
    matching = {unit: _total(get, names) for unit, names in _GEMMINI.items()}
    beat = np.exp2(_or_0(get("hardware cycles_per_beat")))
    bus, wait = np.exp2(get("hardware bus_bytes")), np.exp2(get("hardware memory_latency_cycles"))
    matching |= {unit: matching[unit] * (beat if unit != "store" else 1.0) / bus
            for unit in ("load", "store", "exposed")}  # fmt: skip
    busy = {
        unit: _total(get, names) * (wait + _RETURN_CYCLES) / _UNDER_WAY
        for unit, names in _REQUESTS.items()
    }
    idle = 0.0 * matching["compute"]  # NaN for programs of other targets
    cycles = matching | {"side": idle}
    waits = {unit: np.maximum(cycles - matching[unit], 0.0) for unit, cycles in busy.items()}
    for result, given in zip(known, (cycles, waits | {"side": idle}, {}), strict=True):
        for unit, column in result.items():
            result[unit] = _first_known([column, given.get(unit, idle)])


def _total(get: _Get, names: Sequence[str]) -> _Column:
    """Sum counters that are stored as log2(1 + count).

    Args:
        get: function that returns a column by its name.
        names: names of the counters to sum, without the prefix `program`.

    Returns:
        The sum of the counts (not a logarithm), shape (rows,).
    """
    counts = [np.exp2(get(f"program {name}")) - 1.0 for name in names]
    return np.asarray(np.sum(counts, axis=0))


def _or_0(column: _Column) -> _Column:
    """Return a log2 column of a knob with NaN replaced by 0.

    NaN means that the space lacks the knob. log2 = 0 then stands for a knob that splits or copies
    nothing.
    """
    return np.where(np.isnan(column), 0.0, column)


def _first_known(columns: Sequence[_Column]) -> _Column:
    result = columns[0]
    for column in columns[1:]:
        result = np.where(np.isnan(result), column, result)
    return result
