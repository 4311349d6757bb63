"""Describes a call on its way to integer layers.

That is what multiplies, what follows the sums, and what the data's zero point adds to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from tilewright.networks.integer.arithmetic import (
    MAX_RESIDUAL_SHIFT,
    Integers,
    Real,
    scale_of,
    shifts_of,
)
from tilewright.networks.integer.matmul_layers import MatmulLayer, NotALayer
from tilewright.networks.integer.multipliers import FINE_BITS
from tilewright.networks.integer.qdq_propagation import View
from tilewright.networks.relax.activations import step_of
from tilewright.networks.relax.op_patterns import Match, quantisation, upper_bound
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.integer_reference import reference
from tilewright.targets.layer import Scale

FAR_APART = "its scales are too far apart for shifts"


@dataclass(frozen=True, eq=False)
class IntegerCall:
    """A call on its way to layers: what multiplies, the scale and bounds of what it writes, the
    constants that are added, (o,) real numbers, the int8 tensor that is, and the activation behind
    them."""

    match: Match
    product: MatmulLayer
    output: Scale
    bounds: tuple[int, int]
    bias: Real | None
    residual: View | None
    layer_name: str
    value_name: str
    parts: int = 1
    activation: EpilogueOp | None = None

    @property
    def ratios(self) -> Real:
        """A step of the sums over one of the output, (1,) or (o,)."""
        return self.product.sums / self.output.step

    @property
    def channels(self) -> int:
        """Of the output."""
        return self.product.workload.out_channels


T = TypeVar("T")


def reached(made: T | None) -> T:
    """What there is. Raises `NotALayer` where there is nothing."""
    if made is None:
        raise NotALayer(FAR_APART)
    return made


def residual_step(call: IntegerCall, shifts: Integers) -> EpilogueOp | Literal[False] | None:
    """How the tensor that is added gets into the sums' scale by a shift, where the sums are shifted
    to the right by `shifts`, (1,) or (o,): False where nothing is added, None where no shift to the
    left does."""
    if call.residual is None:
        return False
    ratio = call.residual.known.step / call.product.sums
    left = shifts_of(np.unique(1 / ratio))
    if left is None or len(left) > 1 or not 0 <= int(left[0]) <= MAX_RESIDUAL_SHIFT:
        return None if len(set(shifts.tolist())) == 1 else EpilogueOp("residual", 0)
    return EpilogueOp("residual", int(left[0]))


def times(residual: EpilogueOp | None) -> int:
    """How often a residual counts in the sums."""
    if residual is None:
        return 0
    return residual.value if residual.kind == "weighted" else 1 << residual.value


def of_zero_point(product: MatmulLayer, weight: Real | Integers | None) -> Real:
    """What the zero point of the data adds to sums by weights (o, c/groups, kh, kw), to be taken
    back: (o,), or (1, o, oh, ow) where it is not the same for all pixels, since zeros pad them."""
    w, zero = product.workload, product.scale.zero_point
    if not zero or weight is None:
        return np.zeros(0)
    if not max(w.pad_top, w.pad_left, w.pad_bottom, w.pad_right):
        return np.asarray(-zero * weight.sum(axis=(1, 2, 3)), np.float64)
    ones = np.ones((1, w.in_channels, w.height, w.width), np.int8)
    fine = np.rint(weight * (1 << FINE_BITS))  # the reference sums integers
    alone = replace(w, batch=1).with_steps(())
    sums = reference(alone, {"data": ones, "weight": fine}, acc_bits=62, out_bits=62)
    return -zero * sums / (1 << FINE_BITS)


class Behind:
    """What follows the sums of a call: the scale it is written with, None where nothing says,
    whether a relu cuts it and where it is cut above, and another activation."""

    def __init__(self, match: Match) -> None:
        self.output: Scale | None = None
        self.relu = False
        self.upper: float | None = None
        self.activation: EpilogueOp | None = None
        for link in match.links:
            if link.kind in ("relu", "clip"):
                self.relu = True
                bound = upper_bound(link.binding)
                known = [each for each in (self.upper, bound) if each is not None]
                self.upper = min(known, default=None)
            elif link.kind == "activation":
                self.activation = step_of(link.binding)
            elif link.kind == "quantise":
                found = quantisation(link.binding)
                assert found is not None
                self.output = scale_of(link.binding.node, found)
