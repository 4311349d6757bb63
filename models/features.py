"""Visible features: what is known of a config before it is compiled."""

from __future__ import annotations

import numpy as np

from search.explorer import Problem
from search.learning import Matrix
from targets.base import Configs

_SHAPE = (
    "in_channels", "out_channels", "height", "width", "out_height", "out_width",
    "kernel_h", "kernel_w", "stride_h", "stride_w", "pad_top", "pad_left",
)  # fmt: skip


def visible(problem: Problem, configs: Configs) -> tuple[Matrix, tuple[str, ...]]:
    """Knob values, their log2, their share of the largest value, and the workload's shape; shape
    (configs, names)."""
    values = problem.space.values(configs).astype(np.float64)
    largest = np.array([max(knob.values) for knob in problem.space.knobs], dtype=np.float64)
    names = [knob.name for knob in problem.space.knobs]
    shape = np.array([float(getattr(problem.workload, name)) for name in _SHAPE])
    columns = [
        values,
        np.log2(np.maximum(values, 0.5)),
        values / np.maximum(largest, 1.0),
        np.broadcast_to(shape, (len(configs), len(shape))),
    ]
    labels = [*names, *(f"log2_{n}" for n in names), *(f"share_{n}" for n in names), *_SHAPE]
    return np.concatenate(columns, axis=1), tuple(labels)
