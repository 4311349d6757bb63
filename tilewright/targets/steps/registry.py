"""Lists the kinds of element-wise steps. A further one is a file beside this and a name below."""

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
