"""Kinds of element-wise steps that an epilogue applies to the accumulators.

Except for the basic ones, each kind has its own module. A kind that consists of ALU operations
needs nothing beyond its module and an entry in `STEP_KINDS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.targets.steps.basic import BASIC
from tilewright.targets.steps.float_activations import FLOAT_ACTIVATIONS
from tilewright.targets.steps.leaky_relu import LEAKY_RELU
from tilewright.targets.steps.quantised import QUANTISED
from tilewright.targets.steps.step import StepKind

STEP_KINDS: Mapping[str, StepKind] = {
    step_kind.kind: step_kind for step_kind in (*BASIC, LEAKY_RELU, *FLOAT_ACTIVATIONS, *QUANTISED)
}
