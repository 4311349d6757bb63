"""Derives the int8 form of an operator before its scales are known: its epilogue, or a refusal.

`networks.integer` computes what a quantised network becomes; this module predicts it. The rule, for
float and quantised models alike: int8 data times int8 weights, summed in int32, then

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
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from tilewright.networks.fused_calls import PRODUCTS, FusedCall, Quantisation
from tilewright.networks.requantisation import MAX_SHIFT, nearest_shifts
from tilewright.targets.epilogue import DEFAULT_EPILOGUE, EpilogueOp

EpilogueMode = Literal["full", "per-channel", "plain"]
"""Form in which an epilogue is written down."""
FLOAT_SHIFT = 8
RESIDUAL_SHIFT = 8
"""Bits a residual is shifted by where no scale says it: more than one weight can hold."""


def epilogue(call: FusedCall, mode: EpilogueMode) -> tuple[EpilogueOp, ...]:
    """The operations on the accumulator, by the rule above; of a maximum those it needs."""
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
    """Whether output channels are shifted by amounts of their own."""
    given = call.weight_quantisation
    if call.operator not in PRODUCTS or counts_alike:
        return False
    return mode == "per-channel" if given is None else len(set(given.scale)) > 1


def requantise_shift(call: FusedCall) -> tuple[int, bool]:
    """The right shift from the accumulator's scale to the output's, and whether it is exact; of
    channels' own the middle one, and whether each is."""
    data, weight, out = call.data_quantisation, call.weight_quantisation, _output(call)
    if not (data and weight and out and data.scale and weight.scale and out.scale):
        return FLOAT_SHIFT, True
    steps = [data.scale[0] * scale for scale in weight.scale if scale > 0]
    ratios = [step / out.scale[0] for step in steps if step > 0 and out.scale[0] > 0]
    if not ratios:
        return FLOAT_SHIFT, False
    shifts, exact = nearest_shifts(np.array(ratios, np.float64))
    middle = np.sort(shifts)[len(shifts) // 2]
    return int(np.clip(middle, 0, MAX_SHIFT)), exact


def obstacle(call: FusedCall) -> tuple[str, str] | None:
    """Why an int8 accelerator without zero points cannot run the call, and what to do about it."""
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


def notes(call: FusedCall) -> list[str]:
    """What the int8 form changes, worth a word in a report."""
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


def _output(call: FusedCall) -> Quantisation | None:
    """The scale the call writes: of its last quantisation, since a relu behind it keeps it."""
    return next((s.quantisation for s in reversed(call.steps) if s.kind == "quantise"), None)


def _zeros(quantisation: Quantisation) -> list[int]:
    """Zero points in int8: uint8 data is int8 after subtracting 128."""
    offset = 128 if quantisation.dtype == "uint8" else 0
    return [zero - offset for zero in quantisation.zero_point or (0,)]


def _data_zero(call: FusedCall) -> int:
    return _zeros(call.data_quantisation)[0] if call.data_quantisation else 0


def _out_zero(call: FusedCall) -> int:
    out = _output(call)
    return _zeros(out)[0] if out else 0
