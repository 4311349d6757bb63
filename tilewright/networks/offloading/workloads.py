"""Extracts workloads for an accelerator from fused calls, or gives the reason why there is none.

A fused call is a set of operators that run as one layer. An accelerator multiplies blocks of `batch
× block_in` by blocks of `block_in × block_out` numbers, which has these consequences:

- Channels are padded to whole blocks.
- Groups of a grouped or depthwise convolution that are narrower than a block share a block.
- The few channels of a network's first convolution would leave a block nearly empty, so the host
  unfolds its image while packing it (`networks.offloading.channel_blocks`).
- A product of two activations becomes one dense layer per attention head. One of the operands is
  packed as weights at run time.
- An operator without a product becomes a product with constants: an average pool becomes a
  depthwise convolution, and a separate addition or ReLU becomes a depthwise 1×1 convolution. Only
  the max-pool is an operator of its own.

A CPU target computes the convolutions and matrix products of a network without padding. It computes
a call of a quantised network in integers where it has a kernel for that, and otherwise on the
dequantised values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from tilewright.core.errors import WorkloadError
from tilewright.networks.epilogues import (
    EpilogueMode,
    computes_integers,
    float_epilogue,
    float_obstacle,
    int8_epilogue,
    int8_notes,
    int8_obstacle,
    quantised_epilogue,
)
from tilewright.networks.fused_calls import PRODUCTS, FusedCall
from tilewright.networks.macs import convolution, product
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.offloading.channel_blocks import (
    best_unfold,
    image_bytes,
    pad_to_blocks,
    wasted_share,
)
from tilewright.networks.onnx.graph import Shape
from tilewright.targets.anchor import DType
from tilewright.targets.capabilities import Blocks
from tilewright.targets.epilogue import RESIDUALS, EpilogueOp
from tilewright.targets.im2col import Unfold
from tilewright.targets.workload import Workload, canonical


@dataclass(frozen=True)
class OffloadDecision:
    """Decision whether one fused call (operators that run as one layer) is offloaded.

    Attributes:
        fused: the fused call.
        workload: the workload that the accelerator runs; None if the call is not offloaded.
        calls: number of calls of the workload per inference.
        waste: fraction of the accelerator's multiplications that are with zeros.
        reason: why the call is not offloaded, or remarks about the workload.
        next_step: advice for the user how to offload it; "" if there is none.
        unfold: how the input image is unfolded (im2col); None if it is not.
        accelerator_seconds: time on the accelerator, including packing where data come from or go
            to the CPU; infinite if the target cannot run the call, None if unknown.
        cpu_seconds: estimated time on the CPU.
        within: name of the call whose workload includes this call; empty if there is none.
    """

    fused: FusedCall
    workload: Workload | None
    calls: int
    waste: float = 0.0
    reason: str = ""
    next_step: str = ""
    unfold: Unfold | None = None
    accelerator_seconds: float | None = None
    cpu_seconds: float = 0.0
    within: str = ""


class ExtractedWorkload(NamedTuple):
    """A workload of a network, with the operators that use it.

    Attributes:
        workload: the workload.
        calls: number of calls per inference.
        names: names of the operators that call it.
    """

    workload: Workload
    calls: int
    names: tuple[str, ...]


def candidate_workload(
    call: FusedCall, accelerator: Accelerator, *, from_host: bool, image: Shape | None = None
) -> OffloadDecision:
    """Return the decision for a fused call regardless of its cost: offload it if possible.

    Args:
        call: the fused call.
        accelerator: the accelerator.
        from_host: True if the data of the call are an input of the network, which the CPU packs
            anyway and can unfold meanwhile.
        image: shape (1, c, h, w) of the image that a dense layer reads in flattened form; None if
            the data are not an image.
    """
    if accelerator.computes_floats:
        return _as_it_is(call, accelerator)
    if obstacle := _obstacle(call, accelerator):
        return OffloadDecision(call, None, 0, 0.0, *obstacle)
    blocks = accelerator.blocks
    epilogue = int8_epilogue(call, accelerator.epilogue)
    written_plainly = workload_of(call, blocks).with_steps(epilogue)
    # A dense layer reads the image as it is packed, so its inputs include the padded channels.
    if image is not None and math.prod(image[2:]) > 1:
        whole = -(-image[1] // blocks.in_channels) * blocks.in_channels
        written_plainly = replace(written_plainly, in_channels=whole * math.prod(image[2:]))
    plain = canonical(_without_passing(accelerator.form(written_plainly), blocks))
    unfold = unfold_for(plain, accelerator) if from_host else None
    written = plain if unfold is None else unfold.workload(plain)
    workload, wasted = pad_to_blocks(written, blocks), _waste(call, written, blocks)
    if wasted > accelerator.max_waste:
        reason = f"{wasted:.0%} of its multiplications would be with padding zeros"
        return OffloadDecision(
            call, None, 0, wasted, reason, "raise max_waste to offload it nevertheless"
        )
    return OffloadDecision(
        call, workload, _calls(call), wasted, _remarks(call, written, unfold, blocks), "", unfold
    )


def for_blocks(workload: Workload, blocks: Blocks) -> Workload:
    """Adapt a workload that was extracted for other block sizes to the given block sizes.

    Args:
        workload: the workload.
        blocks: block sizes of the accelerator, to which batch and channels are padded.
    """
    return pad_to_blocks(_without_passing(workload, blocks), blocks)


def _without_passing(workload: Workload, blocks: Blocks) -> Workload:
    """Replace residual operations by additions if the blocks of the matrix unit are not square.

    The matrix unit can load a residual only by multiplying it by an identity matrix, for which its
    blocks have to be square.
    """
    if blocks.in_channels == blocks.out_channels:
        return workload
    steps = (EpilogueOp("add") if op.kind in RESIDUALS else op for op in workload.epilogue)
    return workload.with_steps(tuple(steps))


def _as_it_is(call: FusedCall, accelerator: Accelerator) -> OffloadDecision:
    """Return the decision on a fused call for a target that is a CPU and computes floats.

    The call is offloaded if the target has a kernel for it. Nothing is padded.
    """
    if obstacle := float_obstacle(call):
        return OffloadDecision(call, None, 0, 0.0, *obstacle)
    try:
        workload = kernel_workload(
            call, accelerator.check, accelerator.float_type, accelerator.epilogue
        )
    except WorkloadError as error:
        return OffloadDecision(call, None, 0, 0.0, str(error))
    return OffloadDecision(call, workload, 1)


def kernel_workload(
    call: FusedCall,
    check: Callable[[Workload], object],
    dtype: DType = "float32",
    mode: EpilogueMode = "full",
) -> Workload:
    """Return the workload that a CPU target computes for a fused call, without padding.

    The function returns the first variant that `check` accepts: integers for a quantised call, then
    `dtype`, then float32. For a product of two activations, the attention heads become the batch.

    Args:
        call: the fused call.
        check: raises `WorkloadError` for a workload without a kernel.
        dtype: preferred floating-point type.
        mode: which epilogue operations are part of the workload (`networks.epilogues`).

    Raises:
        WorkloadError: there is no kernel in float32 either.
    """
    shape, wanted = _shape(call), list[Workload]()
    if mode != "plain" and computes_integers(call):
        wanted.append(replace(shape, post=quantised_epilogue(call)))
    plain = replace(shape, dtype="float32", post=float_epilogue(call, mode))
    if dtype != "float32":
        wanted.append(replace(plain, dtype=dtype))
    for workload in wanted:
        try:
            check(workload)
        except WorkloadError:
            continue
        return workload
    check(plain)
    return plain


def _shape(call: FusedCall) -> Workload:
    if call.operator != "matmul":
        return workload_of(call, Blocks())
    *heads, rows, inputs = call.data_shape
    return Workload("batch_matmul", math.prod(heads), inputs, rows, 1, call.weight_shape[-1])


def workload_of(call: FusedCall, blocks: Blocks) -> Workload:
    """Return the workload of one fused call, with the channels of the model and no epilogue.

    If the data of an elementwise call are not an image, their rows become the pixels of an image
    with a width of one pixel.

    Args:
        call: the fused call.
        blocks: block sizes of the accelerator.
    """
    if call.operator in ("dense", "matmul"):
        rows = call.data_shape[:-1] if call.operator == "dense" else call.data_shape[-2:-1]
        inputs, outputs = call.weight_shape[-2:]
        return Workload("dense", math.prod(rows), inputs, 1, 1, outputs)
    if len(call.data_shape) != 4:
        rows_each = -(-math.prod(call.data_shape[:-1]) // blocks.batch)
        channels = call.data_shape[-1] if call.data_shape else 1  # a scalar
        return Workload(
            "conv2d", blocks.batch, channels, rows_each, 1, channels, groups=channels
        )  # fmt: skip
    batch, channels, height, width = call.data_shape
    product = call.operator == "conv2d"
    kernel = call.weight_shape[2:] if product else call.kernel
    top, left, bottom, right = call.padding
    return Workload(
        "max_pool" if call.operator == "max_pool" else "conv2d",
        batch,
        channels,
        height,
        width,
        call.out_channels,
        kernel_h=kernel[0],
        kernel_w=kernel[1],
        stride_h=call.strides[0],
        stride_w=call.strides[1],
        pad_top=top,
        pad_left=left,
        pad_bottom=bottom,
        pad_right=right,
        dilation_h=call.dilation[0],
        dilation_w=call.dilation[1],
        groups=call.groups if product else channels,
    )


def collect_workloads(decisions: Iterable[OffloadDecision]) -> list[ExtractedWorkload]:
    """Collect the distinct workloads of decisions, in order of first appearance."""
    decisions_by_workload: dict[Workload, list[OffloadDecision]] = {}
    for decision in decisions:
        if decision.workload is not None:
            decisions_by_workload.setdefault(decision.workload, []).append(decision)
    return [
        ExtractedWorkload(w, sum(d.calls for d in same), tuple(d.fused.node for d in same))
        for w, same in decisions_by_workload.items()
    ]


def macs_of(call: FusedCall) -> int:
    """Return the multiply-accumulates of a fused call without padding; 0 for other operators."""
    if call.operator == "conv2d":
        return convolution(call.output_shape, call.weight_shape)
    if call.operator in ("dense", "matmul"):
        return product(call.output_shape, call.weight_shape[-2])
    return 0


def offloaded_macs(decisions: Iterable[OffloadDecision]) -> int:
    """Return the multiply-accumulates of all offloaded calls, without padding."""
    return sum(macs_of(decision.fused) for decision in decisions if decision.workload is not None)


def _obstacle(call: FusedCall, accelerator: Accelerator) -> tuple[str, str] | None:
    """Return why the accelerator cannot run a fused call.

    Returns:
        The reason and the suggested next step, or None if the accelerator can run the call.
    """
    if accelerator.epilogue == "plain" and call.operator not in PRODUCTS:
        return (
            "not a convolution or matrix product, which are the only operators with a plain "
            "benchmark"
        ), ""
    if call.operator == "average_pool" and any(call.padding) and not call.count_include_pad:
        return (
            "its average excludes the padding, so the divisor differs between positions",
            "export it with count_include_pad=1",
        )
    square = accelerator.blocks.in_channels == accelerator.blocks.out_channels
    if not square and (
        call.operator == "max_pool" or any(step.kind == "add" for step in call.steps)
    ):
        return "tensors can only pass through unchanged where blocks are square", ""
    return int8_obstacle(call)


def unfold_for(plain: Workload, accelerator: Accelerator) -> Unfold | None:
    """Return the unfolding (im2col) that minimises the time of a layer and of packing its data.

    Args:
        plain: workload of the layer without unfolding.
        accelerator: the accelerator.

    Returns:
        The unfolding, or None if the layer is fastest without one.
    """

    def cost(workload: Workload, unfold: Unfold | None) -> float:
        pixels = plain.batch * plain.in_channels * plain.height * plain.width
        size = image_bytes(workload, accelerator.blocks)
        packing = accelerator.unfold_seconds(pixels, size)
        return accelerator.seconds_or_never(workload) + packing

    return best_unfold(plain, accelerator.blocks, None if accelerator.bound is None else cost)


def _calls(call: FusedCall) -> int:
    return math.prod(call.data_shape[:-2]) if call.operator == "matmul" else 1


def _waste(call: FusedCall, written: Workload, blocks: Blocks) -> float:
    """Return the fraction of multiplications that are with zeros, from padding or between groups.

    The fraction is 0 for calls that are neither convolutions nor matrix products.

    Args:
        call: the fused call.
        written: the workload of the call after unfolding, before its channels are padded.
        blocks: block sizes of the accelerator.
    """
    if not macs_of(call):
        return 0.0
    useful = macs_of(call) / _calls(call) / written.macs
    return 1 - useful * (1 - wasted_share(written, blocks))


def _remarks(call: FusedCall, written: Workload, unfold: Unfold | None, blocks: Blocks) -> str:
    remarks = []
    if unfold is not None:
        patch = f"{unfold.rows}×{unfold.cols}"
        remarks.append(f"{patch} pixels are unfolded into {written.in_channels} channels")
    if call.operator == "matmul":
        remarks.append("both operands are activations; one of them is packed as weights")
    ready = pad_to_blocks(written, blocks)
    if written.groups > 1 and ready.groups > written.groups:
        remarks.append(f"{written.groups} groups are padded to {ready.groups}")
    elif ready.in_channels > written.in_channels:
        remarks.append(f"{written.in_channels} input channels are padded to {ready.in_channels}")
    if written.groups == 1 and ready.out_channels > written.out_channels:
        remarks.append(f"{written.out_channels} output channels are padded to {ready.out_channels}")
    if ready.batch > written.batch:
        remarks.append(f"{written.batch} rows are padded to {ready.batch}")
    return "; ".join(remarks + int8_notes(call))
