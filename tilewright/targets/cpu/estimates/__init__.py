"""Closed-form estimates of the latency of schedules and its parts, without compiling.

    estimate                configs of a workload → `targets.features.Features`
    cost_model              properties of a core, and formulas that all estimates share
    convolution             estimates of convolutions without groups
    grouped_convolution     estimates of grouped and depthwise convolutions
    matrix_products         estimates of matrix products

A register tile takes as long as the slowest of three activities: its multiply-adds, its loads, and
the dependent additions to each sum. Traffic between caches follows from the bytes that an iteration
of each loop touches. The estimates serve to rank schedules; docs/evidence/cpu-estimates.md reports
how well they do so.
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
    """Estimate the latency of configs of a workload.

    Args:
        workload: the workload.
        machine: properties of a core.
        space: the search space of the workload.
        configs: knob indices, int array of shape (n, knobs).

    Returns:
        The columns `COLUMNS`, one row per config.
    """
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
    direct = estimate_direct(w, machine, knobs)
    if "algorithm" not in knobs:
        return direct
    uses_winograd = knobs["algorithm"] > 0
    if not uses_winograd.any():
        return direct
    return _select(uses_winograd, estimate_winograd(w, machine, knobs), direct)


def _select(which: Mask, one: Parts, other: Parts) -> Parts:
    """Combine two estimates: take `one` where `which` is true, and `other` elsewhere.

    Args:
        which: boolean array of shape (configs,).
        one: parts of the latency, with arrays of shape (configs,).
        other: parts of the latency, with arrays of shape (configs,).
    """
    return Parts(
        *(np.where(which, getattr(one, f.name), getattr(other, f.name)) for f in fields(Parts))
    )
