"""Finds the operators of the importer that are steps of an epilogue (`targets.steps`)."""

from __future__ import annotations

from tilewright.networks.relax.bindings import Binding
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.steps import STEP_KINDS

_BY_OPERATOR = {
    each.activation.operator: (each.kind, each.activation)
    for each in STEP_KINDS.values()
    if each.activation is not None
}


def step_of(binding: Binding) -> EpilogueOp | None:
    """The step that an operator is; None where there is none of its number."""
    found = _BY_OPERATOR.get(binding.op)
    if found is None:
        return None
    kind, activation = found
    value = activation.number(float(getattr(binding.value.attrs, activation.attribute)))
    return None if value is None else EpilogueOp(kind, value)
