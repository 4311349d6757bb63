"""Computes AutoTVM's `itervar` features: the loop nest a config stands for, a loop at a time.

TVM reads them off the lowered program (autotvm/feature.py, `get_itervar_feature`). Of every loop it
takes the length, the iterations around it and those within it. Of every tensor it takes the
elements one run of the loop touches and how often each is reused. Here the nest follows from the
knobs: every `tile_*` knob splits its axis into an outer and an inner loop. Outer loops come first:
batch, output channels, rows, columns, input channels, then the kernel's taps. The inner loops
follow in the same order. All configs of a space have the same number of loops, so a row has a fixed
length. TVM's annotations and arithmetic counts are the same for all configs and left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.base import Configs, Space
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

AXES = ("b", "co", "h", "w", "ci")
TAPS = ("kh", "kw")
TOUCHED_BY: dict[str, frozenset[str]] = {
    "inp": frozenset({"b", "h", "w", "ci", "kh", "kw"}),
    "wgt": frozenset({"co", "ci", "kh", "kw"}),
    "out": frozenset({"b", "co", "h", "w"}),
}
"""The axes that index each tensor; windows that overlap are counted once a tap."""

PerConfig = NDArray[np.float64]
"""A number a config, shape (configs,)."""


def loop_features(workload: Workload, space: Space, configs: Configs) -> Features:
    """log2 of length, surrounding and surrounded iterations of each loop, and of elements touched
    and reuse of each tensor within it: a row a config, configs of shape (n, knobs). Knobs that cut
    no axis follow by their values, as AutoTVM's other entities do."""
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
    return Features.of(np.stack(list(columns.values()), axis=1), list(columns))


def _nest(
    workload: Workload, space: Space, knobs: dict[str, PerConfig], rows: int
) -> list[tuple[str, PerConfig]]:
    """Loops from the outermost, each with its axis and log2 length. Channels count in the unit of
    their knob; an axis without one is a single loop around."""
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
