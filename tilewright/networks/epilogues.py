"""Derive the epilogue of a layer: the operations that are applied to its accumulator.

There are three kinds of epilogues.

**Int8 accelerator.** `networks.integer` computes the exact epilogue of a quantised network.
`int8_epilogue` predicts it before the scales are known. Float and quantised models follow the same
rule: int8 data are multiplied by int8 weights and summed in int32, then

    [bias] [residual] [offset]  >> shift,  min 127,  max low

- `bias` is present if the model adds a constant per channel. It includes the constant that makes
  the shift round to nearest.
- `offset` is that rounding constant in a layer without a bias.
- `residual` is a second int8 tensor with its own scale.
- `low` is 0 after a ReLU or a clip at zero, otherwise −128. The upper bound of a clip needs no
  operation, because the scale maps it to 127.
- A max-pool keeps its scale and therefore has no shift.
- The shift of a float model is 8, since its scales are not known yet. The shift of a quantised
  model is log2(s_out / (s_data · s_weight)), which is exact if this is an integer.
- If output channels have different scales and no residual is added, the shift is per channel (`>>
  channel`), and there is always a bias.
- A non-linear activation (`targets.steps`) follows the additions, and the rounding offset follows
  the activation.

Schedules do not depend on these constants, so workloads are tuned in their canonical form
(`targets.workload.canonical`). `EpilogueMode` selects what the form contains:

- `full` (the default): the operations that the network needs.
- `per-channel`: the same, for a float model that will be quantised with one scale per channel.
- `plain`: `>> 8, min 127, max 0` after every convolution and matrix product, as in the published
  VTA benchmarks, so that each shape is one workload. Use it to compare with these benchmarks and
  with the published schedules of the stock compiler. It does not compute the network's result.

**Float32 CPU kernel**, with its sums in registers:

    [bias] [residual]  [max 0]  [min upper]

A kernel clips only at integers, because `targets.epilogue.EpilogueOp` holds integers. It therefore
includes a ReLU and a ReLU6; a clip at a fractional bound runs as a separate operator.

**CPU kernel of a quantised layer**:

    dequantise  [bias]  [add]  [max 0]  [min upper]  [round ...]  [quantise]

The kernel reads the integers that the model dequantises and writes the integers that the model
quantises. If the model dequantises the result again only to add or clip and then requantise, the
kernel does that as well. It rounds (`round`) as often as the model does. A clip that the range of
the output's integer type already performs is left out.
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
"""Selection of the operations that an epilogue contains; see the documentation of this module."""
FLOAT_SHIFT = 8
"""Right shift in bits that is assumed for a layer of a float model, because its scales are not
known yet."""
RESIDUAL_SHIFT = 8
"""Left shift in bits that is assumed for a residual whose scale is not known yet. It is larger than
any shift that one int8 weight can represent."""


def int8_epilogue(call: FusedCall, mode: EpilogueMode) -> tuple[EpilogueOp, ...]:
    """Return the predicted epilogue of a call on an int8 accelerator.

    The rule is described in the module's documentation.

    Args:
        call: the layer with its fused steps.
        mode: which operations the epilogue contains.

    Returns:
        The operations on the int32 accumulator, in execution order.
    """
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
    """Return whether each output channel gets a shift of its own.

    Args:
        call: the layer with its fused steps.
        mode: which operations the epilogue contains.
        counts_alike: whether the layer adds a second tensor or applies an activation. Then the
            accumulators of all channels need the same scale.
    """
    quantisation = call.weight_quantisation
    if call.operator not in PRODUCTS or counts_alike:
        return False
    return mode == "per-channel" if quantisation is None else len(set(quantisation.scale)) > 1


def requantise_shift(call: FusedCall) -> tuple[int, bool]:
    """Return the right shift that converts the accumulator's scale to the output's scale.

    Returns:
        shift: the shift in bits. If channels have different shifts, this is their median. It is
            `FLOAT_SHIFT` if a scale is unknown.
        exact: whether all scale ratios are powers of two, so that shifting is exact.
    """
    data, weight, out = call.data_quantisation, call.weight_quantisation, _output_quantisation(call)
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
    """Return the reason why an int8 accelerator cannot run a call.

    Returns:
        The reason and the suggested next step, or None if the accelerator can run the call.
    """
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
    """Return remarks for the operator report on how an int8 accelerator deviates from the model.

    Args:
        call: the layer with its fused steps.

    Returns:
        The remarks, for example that a layer takes two passes; empty if there are none.
    """
    notes = []
    if not requantise_shift(call)[1]:
        notes.append(
            "its scales differ by factors that are not powers of two, so it takes two passes"
        )
    weight, kinds = call.weight_quantisation, {step.kind for step in call.steps}
    if weight and len(set(weight.scale)) > 1 and "activation" in kinds:
        notes.append(
            "its weights get a single scale, because the sign and size of its sums are compared"
        )
    if weight and len(set(weight.scale)) > 1 and "add" in kinds:
        notes.append("its weights get a single scale, because a tensor is added to its sums")
    if _data_zero(call) or _out_zero(call):
        notes.append("its zero points are folded into added constants")
    return notes


def _output_quantisation(call: FusedCall) -> Quantisation | None:
    """Return the quantisation of a call's output, which the last `quantise` step defines.

    A ReLU after that step keeps the scale.

    Args:
        call: the layer with its fused steps.

    Returns:
        The quantisation, or None if no step quantises.
    """
    return next((s.quantisation for s in reversed(call.steps) if s.kind == "quantise"), None)


def _zeros(quantisation: Quantisation) -> list[int]:
    """Return the zero points of a tensor, converted to int8.

    For uint8 tensors, 128 is subtracted from the zero points.
    """
    offset = 128 if quantisation.dtype == "uint8" else 0
    return [zero - offset for zero in quantisation.zero_point or (0,)]


def _data_zero(call: FusedCall) -> int:
    return _zeros(call.data_quantisation)[0] if call.data_quantisation else 0


def _out_zero(call: FusedCall) -> int:
    out = _output_quantisation(call)
    return _zeros(out)[0] if out else 0


LARGEST_BOUND = (1 << 15) - 1
"""Largest upper bound of a clip that fits into a signed 16-bit immediate."""

ELSEWHERE = "not a convolution or matrix product, so it is compiled without a schedule of its own"
"""Reason that is shown for an operator without a schedule of its own."""


def float_obstacle(call: FusedCall) -> tuple[str, str] | None:
    """Return the reason why no float32 kernel computes a call.

    Returns:
        The reason and the suggested next step, or None if there is a kernel.
    """
    if call.operator not in ("conv2d", "dense", "matmul"):
        return ELSEWHERE, ""
    if call.dtype != "float32":
        return (
            f"it multiplies {call.dtype} numbers, so it is compiled without a schedule of its own",
            "",
        )
    return None


def is_quantised_call(call: FusedCall) -> bool:
    """Return whether any tensor that a fused call reads or writes is quantised.

    Args:
        call: the layer with its fused steps.
    """
    quantised = (call.data_quantisation, call.weight_quantisation)
    return any(quantised) or any(step.quantisation for step in call.steps)


def float_steps(call: FusedCall) -> tuple[FusedStep, ...]:
    """Return the fused steps that a float32 kernel performs.

    These are the steps before the first one that the kernel cannot do: a non-linear activation, a
    step that quantises or dequantises, or a clip whose upper bound is fractional or too large. The
    remaining steps are separate operators.
    """
    for index, step in enumerate(call.steps):
        upper = step.upper
        if step.step is not None or step.kind in ("quantise", "dequantise"):
            return call.steps[:index]
        if upper is not None and (upper != int(upper) or upper > LARGEST_BOUND):
            return call.steps[:index]
    return call.steps


def float_epilogue(call: FusedCall, mode: EpilogueMode) -> tuple[EpilogueOp, ...]:
    """Return the epilogue of a float32 kernel, which performs the steps in `float_steps`.

    Args:
        call: the layer with its fused steps.
        mode: which operations the epilogue contains. In mode `plain` the epilogue is empty, so that
            each shape is one workload.

    Returns:
        The operations on the float32 accumulator, in execution order.
    """
    if mode == "plain":
        return ()
    operations: list[EpilogueOp] = []
    for step in float_steps(call):
        if step.kind == "bias" and not operations:  # several biases are added up to one
            operations.append(EpilogueOp("bias"))
        elif step.kind == "add":
            operations.append(EpilogueOp("residual"))
        elif step.kind in ("relu", "clip"):
            operations.append(EpilogueOp("max", 0))
            if step.upper is not None:
                operations.append(EpilogueOp("min", int(step.upper)))
    return tuple(operations)


def computes_integers(call: FusedCall) -> bool:
    """Return whether a layer's CPU kernel reads integers instead of dequantised float32 values.

    Args:
        call: the layer with its fused steps.
    """
    return call.reads_integers


def quantised_steps(call: FusedCall) -> tuple[FusedStep, ...]:
    """Return the steps that the CPU kernel of a quantised layer performs.

    Candidates are `call.steps` followed by `call.further`, up to the first step that the kernel
    cannot do. If one of them quantises, the last `quantise` is the last step of the kernel.
    """
    steps = (*call.steps, *call.further)
    end = next((i for i in range(len(steps)) if not _follows(steps, i)), len(steps))
    written = [i for i in range(end) if steps[i].kind == "quantise"]
    return steps[: written[-1] + 1 if written else end]


def quantised_epilogue(call: FusedCall) -> tuple[EpilogueOp, ...]:
    """Return the epilogue of the CPU kernel of a quantised layer, which performs `quantised_steps`.

    Returns:
        The operations on the int32 accumulator, in execution order. The first one dequantises it.
    """
    data, steps = call.data_quantisation, quantised_steps(call)
    assert data is not None
    operations = [EpilogueOp("dequantise", BYTES.index(data.dtype))]
    for index, step in enumerate(steps):
        quantisation = step.quantisation
        if step.kind == "bias" and len(operations) == 1:  # several biases are added up to one
            operations.append(EpilogueOp("bias"))
        elif step.kind == "add" and quantisation is not None:
            operations.append(EpilogueOp("add_dequantised", BYTES.index(quantisation.dtype)))
        elif step.kind in ("relu", "clip"):
            operations += _clip(step, _written_next(steps, index)) or ()
        elif step.kind == "quantise" and quantisation is not None and index + 1 == len(steps):
            operations.append(EpilogueOp("quantise", BYTES.index(quantisation.dtype)))
        elif step.kind == "quantise":
            operations.append(EpilogueOp("round"))
    return tuple(operations)


def quantised_scales(steps: Sequence[FusedStep]) -> list[TensorScale]:
    """Return the scales of the tensors that the CPU kernel of a quantised layer adds or writes.

    Args:
        steps: steps of the kernel, as `quantised_steps` returns them.

    Returns:
        One scale per `add` and `quantise` step, in execution order.
    """
    return [
        TensorScale(quantisation.dtype, quantisation.scale[0], quantisation.zero_point[0])
        for step in steps
        if step.kind in ("add", "quantise") and (quantisation := step.quantisation) is not None
    ]


def _follows(steps: Sequence[FusedStep], place: int) -> bool:
    """Return whether a kernel can perform a step after the steps before it.

    Args:
        steps: the steps after the layer's product, in execution order.
        place: index of the step in question.
    """
    step, before = steps[place], steps[:place]
    if step.kind == "bias":
        return all(earlier.kind == "bias" for earlier in before)
    if step.kind == "add":
        return step.reads_integers and all(earlier.kind != "add" for earlier in before)
    if step.kind in ("relu", "clip"):
        return _clip(step, _written_next(steps, place)) is not None
    if step.kind == "dequantise":
        return bool(before) and before[-1].quantisation == step.quantisation
    return step.kind == "quantise" and _is_written(step.quantisation)


def _written_next(steps: Sequence[FusedStep], place: int) -> Quantisation | None:
    """Return the quantisation of the integers that a kernel writes directly after a step.

    Args:
        steps: the steps after the layer's product, in execution order.
        place: index of the step.

    Returns:
        The quantisation of the next step, if this is a `quantise` step whose integers a kernel can
        write; otherwise None.
    """
    following = steps[place + 1] if place + 1 < len(steps) else None
    if following is None or following.kind != "quantise" or not _is_written(following.quantisation):
        return None
    return following.quantisation


def _is_written(quantisation: Quantisation | None) -> bool:
    """Return whether a kernel can write integers of this quantisation.

    The integers must have 8 bits and a single scale for the whole tensor.
    """
    return quantisation is not None and quantisation.dtype in BYTES and len(quantisation.scale) == 1


def _clip(step: FusedStep, written: Quantisation | None) -> tuple[EpilogueOp, ...] | None:
    """Return the epilogue operations of a ReLU or a clip.

    Bounds that the range of the output's integer type enforces anyway need no operation.

    Args:
        step: the `relu` or `clip` step.
        written: quantisation of the integers that are written directly after the step, None if the
            next step does not quantise.

    Returns:
        The operations, or None if the upper bound is fractional or too large for a kernel.
    """
    least, most = 0, math.inf
    if written is not None:
        least, most = LIMITS[written.dtype]
    operations = []
    zero = 0 if written is None else written.zero_point[0]
    if written is None or zero > least:
        operations.append(EpilogueOp("max", 0))
    if step.upper is None or (
        written is not None and round(step.upper / written.scale[0]) + zero >= most
    ):
        return tuple(operations)
    if step.upper != int(step.upper) or step.upper > LARGEST_BOUND:
        return None
    return (*operations, EpilogueOp("min", int(step.upper)))
