"""Derives what follows the sums of an operator: the epilogue of an int8 accelerator, of a float32
kernel and of a kernel that computes a quantised layer in integers.

**An int8 accelerator.** `networks.integer` computes what a quantised network becomes;
`int8_epilogue` predicts it, before scales are known. The rule, for float and quantised models
alike: int8 data times int8 weights, summed in int32, then

    [bias] [residual] [offset]  >> shift,  min 127,  max low

`bias` where the model adds a constant a channel; it includes the constant that rounds the shift. An
`offset` rounds where there is no bias. `residual` is a second int8 tensor at a scale of its own.
`low` is 0 behind a relu or a clip at zero (the upper bound of a clip is where the scale puts 127),
else −128. A maximum keeps its scale: it has nothing to shift. A float model has no scales yet: its
shift is 8. A quantised model's shift is log2(s_out / (s_data · s_weight)), exact where that is a
whole number. Where output channels have scales of their own and no residual is added, it is
`>> channel`, and there is always a bias.

An activation of the model that is a step by itself (`targets.steps`) follows what is added, and the
rounding offset follows the activation.

Schedules depend on none of the constants, so what is tuned is the canonical form
(`targets.workload.canonical`). Three ways to write it down:

- `full` (the default): the steps that the network needs.
- `per-channel`: likewise, of a float model that will be quantised with scales a channel.
- `plain`: the published VTA benchmarks' `>> 8, min 127, max 0` behind every convolution and
  product, so that one shape is one workload. It is for comparisons with those benchmarks and with
  the stock compiler's published schedules. It computes no network.

**A float32 kernel**, with its sums in registers:

    [bias] [residual]  [max 0]  [min upper]

A kernel clips at whole numbers (`targets.epilogue.EpilogueOp` holds integers): a relu and a relu6
are its own, a clip at another bound follows it.

**A kernel for a quantised layer** on a processor:

    dequantise  [bias]  [add]  [max 0]  [min upper]  [round ...]  [quantise]

The kernel reads the integers that the model dequantises, and writes those that it quantises. Where
the model dequantises these only to add or clip and to quantise again, the kernel does that, too.
It rounds (`round`) as often as the model does. A clip that the model's integers make by themselves
is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from tilewright.networks.fused_calls import PRODUCTS, FusedCall, FusedStep, Quantisation
from tilewright.networks.requantisation import MAX_SHIFT, nearest_shifts
from tilewright.targets.epilogue import DEFAULT_EPILOGUE, EpilogueOp
from tilewright.targets.steps.quantised import BYTES, LIMITS, TensorScale

EpilogueMode = Literal["full", "per-channel", "plain"]
"""Form in which an epilogue is written down."""
FLOAT_SHIFT = 8
RESIDUAL_SHIFT = 8
"""Bits a residual is shifted by where no scale says it: more than one weight can hold."""


def int8_epilogue(call: FusedCall, mode: EpilogueMode) -> tuple[EpilogueOp, ...]:
    """Return the operations on the accumulator of an int8 accelerator, by the rule above."""
    if mode == "plain":
        return DEFAULT_EPILOGUE
    kinds = {step.kind for step in call.steps}
    low = _out_zero(call) if {"relu", "clip"} & kinds else -128
    if call.operator == "max_pool":
        return (EpilogueOp("max", low),) if low > -128 else ()
    shift, _ = requantise_shift(call)
    activations = [step.step for step in call.steps if step.step is not None]
    if _is_by_channel(call, mode, bool({"add", "activation"} & kinds)):
        steps = (EpilogueOp("bias"), EpilogueOp("shr_channel", FLOAT_SHIFT))
        return (*steps, EpilogueOp("min", 127), EpilogueOp("max", low))
    zeros = _data_zero(call) or (_out_zero(call) and not activations)
    has_bias = "bias" in kinds or bool(zeros)
    first = [EpilogueOp("bias")] if has_bias else []
    if "add" in kinds:
        first.append(EpilogueOp("residual", RESIDUAL_SHIFT))
    first += activations
    if activations or not has_bias:
        first.append(EpilogueOp("offset", 1 << max(shift - 1, 0)))
    return (*first, EpilogueOp("shr", shift), EpilogueOp("min", 127), EpilogueOp("max", low))


def _is_by_channel(call: FusedCall, mode: EpilogueMode, counts_alike: bool) -> bool:
    """Whether output channels have different shifts."""
    given = call.weight_quantisation
    if call.operator not in PRODUCTS or counts_alike:
        return False
    return mode == "per-channel" if given is None else len(set(given.scale)) > 1


def requantise_shift(call: FusedCall) -> tuple[int, bool]:
    """Return the right shift from the accumulator's scale to the output's, and whether it is exact.
    If channels have shifts of their own, return the median, and whether all of them are exact."""
    data, weight, out = call.data_quantisation, call.weight_quantisation, _written(call)
    if not (data and weight and out and data.scale and weight.scale and out.scale):
        return FLOAT_SHIFT, True
    steps = [data.scale[0] * scale for scale in weight.scale if scale > 0]
    ratios = [step / out.scale[0] for step in steps if step > 0 and out.scale[0] > 0]
    if not ratios:
        return FLOAT_SHIFT, False
    shifts, exact = nearest_shifts(np.array(ratios, np.float64))
    middle = np.sort(shifts)[len(shifts) // 2]
    return int(np.clip(middle, 0, MAX_SHIFT)), exact


def int8_obstacle(call: FusedCall) -> tuple[str, str] | None:
    """Return why an int8 accelerator cannot run the call, and the next step; None if it can."""
    for role, quantisation in (
        ("data", call.data_quantisation),
        ("weights", call.weight_quantisation),
    ):
        if quantisation is not None and quantisation.dtype not in ("int8", "uint8"):
            return f"its {role} are {quantisation.dtype}, not int8", "quantise it to int8"
    for quantisation in (call.data_quantisation, call.weight_quantisation):
        if quantisation is not None and not quantisation.scale:
            return "its scales are computed while the network runs", "quantise it statically"
    return None


def int8_notes(call: FusedCall) -> list[str]:
    """Return remarks for a report on what the int8 form of a call changes."""
    found = []
    if not requantise_shift(call)[1]:
        found.append("its scales are no powers of two apart: two passes")
    weight, kinds = call.weight_quantisation, {step.kind for step in call.steps}
    if weight and len(set(weight.scale)) > 1 and "activation" in kinds:
        found.append("its weights get one scale, for its sums are told apart by sign and size")
    if weight and len(set(weight.scale)) > 1 and "add" in kinds:
        found.append("its weights get one scale, for a tensor is added to its sums")
    if _data_zero(call) or _out_zero(call):
        found.append("zero points go into constants that are added")
    return found


def _written(call: FusedCall) -> Quantisation | None:
    """Return the scale that the call writes: that of its last quantisation, since a relu behind it
    keeps the scale."""
    return next((s.quantisation for s in reversed(call.steps) if s.kind == "quantise"), None)


def _zeros(quantisation: Quantisation) -> list[int]:
    """Return zero points as int8: uint8 data are int8 after 128 is subtracted."""
    offset = 128 if quantisation.dtype == "uint8" else 0
    return [zero - offset for zero in quantisation.zero_point or (0,)]


def _data_zero(call: FusedCall) -> int:
    return _zeros(call.data_quantisation)[0] if call.data_quantisation else 0


def _out_zero(call: FusedCall) -> int:
    out = _written(call)
    return _zeros(out)[0] if out else 0


LARGEST_BOUND = (1 << 15) - 1

ELSEWHERE = "no convolution or product: compiled without a schedule of its own"


def float_obstacle(call: FusedCall) -> tuple[str, str] | None:
    """Return why no float kernel computes the call, and the next step; None if one does."""
    if call.operator not in ("conv2d", "dense", "matmul"):
        return ELSEWHERE, ""
    if call.dtype != "float32":
        return f"it multiplies numbers of {call.dtype}: compiled without a schedule of its own", ""
    return None


def is_quantised_call(call: FusedCall) -> bool:
    """Return whether a tensor of the call is quantised."""
    quantised = (call.data_quantisation, call.weight_quantisation)
    return any(quantised) or any(step.quantisation for step in call.steps)


def float_steps(call: FusedCall) -> tuple[FusedStep, ...]:
    """Return the fused steps that a float kernel does. The steps behind them stay operators of
    their own, and so do the roundings of a quantised model."""
    for place, step in enumerate(call.steps):
        upper = step.upper
        if step.step is not None or step.kind in ("quantise", "dequantise"):
            return call.steps[:place]
        if upper is not None and (upper != int(upper) or upper > LARGEST_BOUND):
            return call.steps[:place]
    return call.steps


def float_epilogue(call: FusedCall, mode: EpilogueMode) -> tuple[EpilogueOp, ...]:
    """Return the epilogue of a float kernel, which does `float_steps`. In mode `plain` it is empty,
    so that one shape is one workload."""
    if mode == "plain":
        return ()
    found: list[EpilogueOp] = []
    for step in float_steps(call):
        if step.kind == "bias" and not found:  # several are one
            found.append(EpilogueOp("bias"))
        elif step.kind == "add":
            found.append(EpilogueOp("residual"))
        elif step.kind in ("relu", "clip"):
            found.append(EpilogueOp("max", 0))
            if step.upper is not None:
                found.append(EpilogueOp("min", int(step.upper)))
    return tuple(found)


def computes_integers(call: FusedCall) -> bool:
    """Return whether a layer is computed in integers if there is a kernel for it, and not in
    float32 on dequantised numbers."""
    return call.reads_integers


def quantised_steps(call: FusedCall) -> tuple[FusedStep, ...]:
    """Return the steps that the kernel of a quantised layer does: its fused steps, then the further
    ones. If any of them writes integers, the last step is the last one that does."""
    steps = (*call.steps, *call.further)
    end = next((i for i in range(len(steps)) if not _follows(steps, i)), len(steps))
    written = [i for i in range(end) if steps[i].kind == "quantise"]
    return steps[: written[-1] + 1 if written else end]


def quantised_epilogue(call: FusedCall) -> tuple[EpilogueOp, ...]:
    """Return the epilogue of the kernel of a quantised layer, which does `quantised_steps`."""
    data, steps = call.data_quantisation, quantised_steps(call)
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


def quantised_scales(steps: Sequence[FusedStep]) -> list[TensorScale]:
    """Return the scales of the tensors that `quantised_steps` add, round to and write."""
    return [
        TensorScale(said.dtype, said.scale[0], said.zero_point[0])
        for step in steps
        if step.kind in ("add", "quantise") and (said := step.quantisation) is not None
    ]


def _follows(steps: Sequence[FusedStep], place: int) -> bool:
    """Return whether a kernel can do a step after the steps before it."""
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
    """Return the integers that are written directly behind a step, if any."""
    behind = steps[place + 1] if place + 1 < len(steps) else None
    if behind is None or behind.kind != "quantise" or not _is_written(behind.quantisation):
        return None
    return behind.quantisation


def _is_written(given: Quantisation | None) -> bool:
    """Return whether a kernel can write these integers."""
    return given is not None and given.dtype in BYTES and len(given.scale) == 1


def _clip(step: FusedStep, written: Quantisation | None) -> tuple[EpilogueOp, ...] | None:
    """Return a relu or a clip as steps of a kernel; None if its upper bound is not an integer."""
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
