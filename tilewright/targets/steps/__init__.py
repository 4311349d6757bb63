"""Lists the kinds of element-wise steps on the accumulators: one file each but for the basic ones,
and a name below.

A step that is composed of ALU operations needs nothing else anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.targets.steps.basic import BASIC
from tilewright.targets.steps.float_activations import FLOAT_ACTIVATIONS
from tilewright.targets.steps.leaky_relu import LEAKY_RELU
from tilewright.targets.steps.quantised import QUANTISED
from tilewright.targets.steps.step import StepKind

STEP_KINDS: Mapping[str, StepKind] = {
    each.kind: each for each in (*BASIC, LEAKY_RELU, *FLOAT_ACTIVATIONS, *QUANTISED)
}
