"""Derives the float32 epilogue of an operator: what a kernel does with its sums in registers.

    [bias] [residual]  [max 0]  [min upper]

A kernel clips at whole numbers (`targets.epilogue.EpilogueOp` holds integers): a relu and a relu6
are its own, a clip at another bound follows it.
"""

from __future__ import annotations

from tilewright.networks.epilogues.int8_accelerator import EpilogueMode
from tilewright.networks.fused_calls import FusedCall, FusedStep
from tilewright.targets.epilogue import EpilogueOp

LARGEST_BOUND = (1 << 15) - 1

ELSEWHERE = "no convolution or product: compiled without a schedule of its own"


def obstacle(call: FusedCall) -> tuple[str, str] | None:
    """Why no float kernel computes the call, and what to do about it."""
    if call.operator not in ("conv2d", "dense", "matmul"):
        return ELSEWHERE, ""
    if call.dtype != "float32":
        return f"it multiplies numbers of {call.dtype}: compiled without a schedule of its own", ""
    return None


def is_quantised(call: FusedCall) -> bool:
    """Whether any of its tensors is."""
    quantised = (call.data_quantisation, call.weight_quantisation)
    return any(quantised) or any(step.quantisation for step in call.steps)


def steps_of(call: FusedCall) -> tuple[FusedStep, ...]:
    """The fused steps that its kernel does; those behind them are left. Numbers are rounded to
    integers and back where a quantised model says so, behind the kernel."""
    for place, step in enumerate(call.steps):
        upper = step.upper
        if step.step is not None or step.kind in ("quantise", "dequantise"):
            return call.steps[:place]
        if upper is not None and (upper != int(upper) or upper > LARGEST_BOUND):
            return call.steps[:place]
    return call.steps


def epilogue(call: FusedCall, mode: EpilogueMode) -> tuple[EpilogueOp, ...]:
    """Of `steps_of`; none where it is `plain`, so that one shape is one workload."""
    if mode == "plain":
        return ()
    found: list[EpilogueOp] = []
    for step in steps_of(call):
        if step.kind == "bias" and not found:  # several are one
            found.append(EpilogueOp("bias"))
        elif step.kind == "add":
            found.append(EpilogueOp("residual"))
        elif step.kind in ("relu", "clip"):
            found.append(EpilogueOp("max", 0))
            if step.upper is not None:
                found.append(EpilogueOp("min", int(step.upper)))
    return tuple(found)
