"""Estimates schedules in closed form: seconds and their parts, without compiling.

    estimate        configs of a workload → `targets.features.Features`
    cost_model      what is known of a core; what all estimates share
    convolution, grouped_convolution, matrix_products     a family of kernels each

A register tile takes as long as its multiply-adds, its loads, or the wait for its sums. Traffic
between caches follows from what an iteration of each loop touches. Estimates are for ranking:
docs/evidence/cpu-estimates.md says how well they do.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from tilewright.targets.base import Configs, Space
from tilewright.targets.cpu.estimates.convolution import estimate_direct, estimate_winograd
from tilewright.targets.cpu.estimates.cost_model import COLUMNS, CpuMachine, Knobs, Mask, Parts
from tilewright.targets.cpu.estimates.grouped_convolution import estimate_grouped
from tilewright.targets.cpu.estimates.matrix_products import estimate_tiles, estimate_vectors
from tilewright.targets.cpu.kernels.kernel_registry import tile_product
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

__all__ = ["COLUMNS", "CpuMachine", "estimate"]


def estimate(workload: Workload, machine: CpuMachine, space: Space, configs: Configs) -> Features:
    """A row a config, configs of shape (n, knobs) of `space`: the columns of `COLUMNS`."""
    values = space.values(configs).astype(np.float64)
    knobs = {knob.name: values[:, k] for k, knob in enumerate(space.knobs)}
    with np.errstate(all="raise"):
        return Features(_parts(workload, machine, knobs).columns(machine), COLUMNS)


def _parts(w: Workload, machine: CpuMachine, knobs: Knobs) -> Parts:
    product = tile_product(w, machine.spec)
    if product is not None:
        return estimate_tiles(w, product, machine, knobs)
    if w.operator != "conv2d":
        return estimate_vectors(w, machine, knobs)
    if w.groups > 1:
        return estimate_grouped(w, machine, knobs)
    plain = estimate_direct(w, machine, knobs)
    if "algorithm" not in knobs:
        return plain
    other = knobs["algorithm"] > 0
    if not other.any():
        return plain
    return _either(other, estimate_winograd(w, machine, knobs), plain)


def _either(which: Mask, one: Parts, other: Parts) -> Parts:
    """Those of `one` where `which`, else of the other."""
    return Parts(
        *(np.where(which, getattr(one, f.name), getattr(other, f.name)) for f in fields(Parts))
    )
