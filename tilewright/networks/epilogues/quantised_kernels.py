"""Derives the epilogue of a quantised layer that a processor computes in integers.

    dequantise  [bias]  [add]  [max 0]  [min upper]  [round ...]  [quantise]

The kernel reads the integers that the model dequantises, and writes those that it quantises. Where
the model dequantises these only to add or clip and to quantise again, the kernel does that, too.
It rounds (`round`) as often as the model does. A clip that the model's integers make by themselves
is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.networks.epilogues.float32_kernels import LARGEST_BOUND
from tilewright.networks.fused_calls import FusedCall, FusedStep, Quantisation
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.steps.quantised import BYTES, LIMITS, TensorScale


def computes_integers(call: FusedCall) -> bool:
    """Whether a layer is computed in integers where there is a kernel for it, rather than in
    float32 on the numbers that they stand for."""
    return call.reads_integers


def steps_of(call: FusedCall) -> tuple[FusedStep, ...]:
    """The fused steps that its kernel does, then those further ones; what is behind them is left.
    Once integers are written it ends with such."""
    steps = (*call.steps, *call.further)
    end = next((i for i in range(len(steps)) if not _follows(steps, i)), len(steps))
    written = [i for i in range(end) if steps[i].kind == "quantise"]
    return steps[: written[-1] + 1 if written else end]


def epilogue(call: FusedCall) -> tuple[EpilogueOp, ...]:
    """Of `steps_of`."""
    data, steps = call.data_quantisation, steps_of(call)
    assert data is not None
    found = [EpilogueOp("dequantise", BYTES.index(data.dtype))]
    for place, step in enumerate(steps):
        said = step.quantisation
        if step.kind == "bias" and len(found) == 1:  # several are one
            found.append(EpilogueOp("bias"))
        elif step.kind == "add" and said is not None:
            found.append(EpilogueOp("add_dequantised", BYTES.index(said.dtype)))
        elif step.kind in ("relu", "clip"):
            found += _clip(step, _written_next(steps, place)) or ()
        elif step.kind == "quantise" and said is not None and place + 1 == len(steps):
            found.append(EpilogueOp("quantise", BYTES.index(said.dtype)))
        elif step.kind == "quantise":
            found.append(EpilogueOp("round"))
    return tuple(found)


def scales(steps: Sequence[FusedStep]) -> list[TensorScale]:
    """Of the tensors that steps of `steps_of` add, round to and write."""
    return [
        TensorScale(said.dtype, said.scale[0], said.zero_point[0])
        for step in steps
        if step.kind in ("add", "quantise") and (said := step.quantisation) is not None
    ]


def _follows(steps: Sequence[FusedStep], place: int) -> bool:
    """Whether a kernel can do a step after those before it."""
    step, before = steps[place], steps[:place]
    if step.kind == "bias":
        return all(each.kind == "bias" for each in before)
    if step.kind == "add":
        return step.reads_integers and all(each.kind != "add" for each in before)
    if step.kind in ("relu", "clip"):
        return _clip(step, _written_next(steps, place)) is not None
    if step.kind == "dequantise":
        return bool(before) and before[-1].quantisation == step.quantisation
    return step.kind == "quantise" and _is_written(step.quantisation)


def _written_next(steps: Sequence[FusedStep], place: int) -> Quantisation | None:
    """What integers are written directly behind a step, if any."""
    behind = steps[place + 1] if place + 1 < len(steps) else None
    if behind is None or behind.kind != "quantise" or not _is_written(behind.quantisation):
        return None
    return behind.quantisation


def _is_written(given: Quantisation | None) -> bool:
    """Whether a kernel writes such integers."""
    return given is not None and given.dtype in BYTES and len(given.scale) == 1


def _clip(step: FusedStep, written: Quantisation | None) -> tuple[EpilogueOp, ...] | None:
    """A relu or a clip as steps of a kernel; None where its upper bound is no whole number."""
    least, most = 0, math.inf
    if written is not None:
        least, most = LIMITS[written.dtype]
    found = []
    zero = 0 if written is None else written.zero_point[0]
    if written is None or zero > least:
        found.append(EpilogueOp("max", 0))
    if step.upper is None or (
        written is not None and round(step.upper / written.scale[0]) + zero >= most
    ):
        return tuple(found)
    if step.upper != int(step.upper) or step.upper > LARGEST_BOUND:
        return None
    return (*found, EpilogueOp("min", int(step.upper)))
