"""Derives the epilogue of a quantised layer that a processor computes in integers.

    dequantise  [bias]  [add]  [max 0]  [min upper]  [quantise]

The kernel reads the integers that the model dequantises, and writes those that it quantises. A clip
that the model's integers make by themselves is left out.
"""

from __future__ import annotations

import math

from tilewright.networks.float32 import LARGEST_BOUND
from tilewright.networks.fused_calls import FusedCall, FusedStep, Quantisation
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.steps.quantised import BYTES, LIMITS


def computes_integers(call: FusedCall) -> bool:
    """Whether a layer is computed in integers where there is a kernel for it, rather than in
    float32 on the numbers that they stand for."""
    return call.reads_integers


def steps_of(call: FusedCall) -> tuple[FusedStep, ...]:
    """The fused steps that its kernel does; those behind them are left."""
    last = next((i for i, step in enumerate(call.steps) if step.kind == "quantise"), None)
    written = None if last is None else call.steps[last].quantisation
    for place, step in enumerate(call.steps):
        if step.kind == "quantise":
            return call.steps[: place + (1 if _is_written(step.quantisation) else 0)]
        if step.kind == "add" and (not step.reads_integers or place != _place_of_add(call)):
            return call.steps[:place]
        if step.kind not in ("bias", "add", "relu", "clip"):
            return call.steps[:place]
        if step.kind in ("relu", "clip") and _clip(step, written) is None:
            return call.steps[:place]
    return call.steps


def epilogue(call: FusedCall) -> tuple[EpilogueOp, ...]:
    """Of `steps_of`."""
    data, steps = call.data_quantisation, steps_of(call)
    assert data is not None
    written = next((step.quantisation for step in steps if step.kind == "quantise"), None)
    found = [EpilogueOp("dequantise", BYTES.index(data.dtype))]
    for step in steps:
        if step.kind == "bias" and len(found) == 1:  # several are one
            found.append(EpilogueOp("bias"))
        elif step.kind == "add" and step.quantisation is not None:
            found.append(EpilogueOp("add_dequantised", BYTES.index(step.quantisation.dtype)))
        elif step.kind in ("relu", "clip"):
            found += _clip(step, written) or ()
        elif step.kind == "quantise" and written is not None:
            found.append(EpilogueOp("quantise", BYTES.index(written.dtype)))
    return tuple(found)


def _place_of_add(call: FusedCall) -> int:
    """Of the first sum with a tensor."""
    return next(i for i, step in enumerate(call.steps) if step.kind == "add")


def _is_written(given: Quantisation | None) -> bool:
    """Whether a kernel writes such integers."""
    return given is not None and given.dtype in BYTES and len(given.scale) == 1


def _clip(step: FusedStep, written: Quantisation | None) -> tuple[EpilogueOp, ...] | None:
    """A relu or a clip as steps of a kernel; None where its upper bound is no whole number."""
    least, most = 0, math.inf
    if written is not None and _is_written(written):
        least, most = LIMITS[written.dtype]
    found = []
    zero = written.zero_point[0] if written is not None and written.zero_point else 0
    if written is None or zero > least:
        found.append(EpilogueOp("max", 0))
    if step.upper is None or (
        written is not None and round(step.upper / written.scale[0]) + zero >= most
    ):
        return tuple(found)
    if step.upper != int(step.upper) or step.upper > LARGEST_BOUND:
        return None
    return (*found, EpilogueOp("min", int(step.upper)))
