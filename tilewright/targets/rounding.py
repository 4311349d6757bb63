"""Replaces right shifts that round half up by divisions that round to nearest, ties to even."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.layer import Layer
from tilewright.targets.workload import Workload

Steps = tuple[EpilogueOp, ...]


def rounded_to_even(workload: Workload) -> Workload:
    """Return a workload whose right shift rounds to the nearest integer, ties to even.

    To round half up, an epilogue adds half of the divisor before a right shift. A machine with
    `MachineTraits.rounds_to_even` rounds by itself. For such a machine, the first right shift is
    replaced by a `shr_even` step, and half of the divisor is no longer added.

    That half is assumed to be part of the first `bias`, `add` or `offset` step. If this step is an
    offset, the half is subtracted from it, and an offset that becomes 0 is removed. Biases and
    added tensors are not part of a workload; `layer_rounded_to_even` changes those of a layer.

    A workload without such a step or without a right shift is returned unchanged.
    """
    return workload.with_steps(_to_even(workload.epilogue)[0])


def layer_rounded_to_even(layer: Layer) -> Layer:
    """Return a layer whose right shift rounds to the nearest integer, ties to even.

    Its workload is changed by `rounded_to_even`. If the rounding constant, half of the divisor, is
    part of the layer's bias or added tensor, it is subtracted from them.
    """
    steps, half = _to_even(layer.workload.epilogue)
    changed = replace(layer, workload=layer.workload.with_steps(steps))
    if half and layer.bias is not None:
        return replace(changed, bias=(layer.bias - np.int32(half)).astype(np.int32))
    if half and layer.add is not None:
        return replace(changed, add=(layer.add - np.int32(half)).astype(np.int32))
    return changed


def _to_even(steps: Steps) -> tuple[Steps, int]:
    """Replace the first right shift of an epilogue by a division that rounds ties to even.

    `rounded_to_even` describes the replacement.

    Args:
        steps: element-wise steps of the epilogue.

    Returns:
        The new steps, and the constant that must be subtracted from the bias or the added tensor.
    """
    shift = next((step for step in steps if step.kind == "shr" and step.value), None)
    constants = [step for step in steps if step.kind in ("bias", "add", "offset")]
    if shift is None or not constants:
        return steps, 0
    half, inside = 1 << (shift.value - 1), constants[0].kind != "offset"
    new_steps: list[EpilogueOp] = []
    for step in steps:
        if step is shift:
            new_steps.append(EpilogueOp("shr_even", step.value))
        elif step is constants[0] and not inside:
            left = step.value - half
            new_steps += [replace(step, value=left)] if left else []
        else:
            new_steps.append(step)
    return tuple(new_steps), half if inside else 0
