"""Defines the steps of layers whose tensors stand for real numbers by scales and zero points.

    dequantise  [bias]  [add]  [max 0]  [min N]  [quantise]

An epilogue that begins with `dequantise` works on reals: sums times a scale a channel. It ends
with `quantise`, or leaves them in float32. The added tensor is of integers, too. Scales and zero
points are arguments of a kernel, so layers of one shape share schedules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.steps.step import StepKind

BYTES = ("int8", "uint8")
"""By the number of a step, the type of its integers."""
LIMITS: Mapping[str, tuple[int, int]] = {"int8": (-128, 127), "uint8": (0, 255)}
"""The least and the largest integer."""

Reals = NDArray[Any]
Tensors = Mapping[str, NDArray[Any]]


def _dequantised(sums: Reals, _: int, tensors: Tensors) -> Reals:
    scaled: Reals = sums * tensors["scale"][None, :, None, None]
    return scaled


def _with_added(sums: Reals, _: int, tensors: Tensors) -> Reals:
    added = tensors["added"].astype(np.float64) - tensors["added_zero"]
    found: Reals = sums + added * tensors["added_scale"]
    return found


def _quantised(reals: Reals, kind: int, tensors: Tensors) -> Reals:
    steps = np.rint(reals * tensors["out_inverse"]) + tensors["out_zero"]
    found: Reals = np.clip(steps, *LIMITS[BYTES[kind]])
    return found


def _names(verb: str) -> Mapping[str, int]:
    return {f"{verb} {kind}": number for number, kind in enumerate(BYTES)}


QUANTISED = (
    StepKind("dequantise", "dequantise", _dequantised, _names("dequantise"), False),
    StepKind("add_dequantised", "add", _with_added, _names("add"), False, title="add"),
    StepKind("quantise", "quantise", _quantised, _names("quantise"), False),
)
