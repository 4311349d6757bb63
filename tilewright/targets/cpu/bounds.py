"""Lower bounds that hold for every schedule of a workload: number of operations and of bytes."""

from __future__ import annotations

from math import prod

from tilewright.targets.cpu.kernels.epilogue import epilogue_tensors, shape_of_tensor
from tilewright.targets.workload import Workload

NUMBER_BYTES = {"int8": 1, "uint8": 1, "int32": 4, "float32": 4, "bfloat16": 4}
"""Size in bytes of one value, by element type. A bfloat16 value takes 4 bytes, because kernels that
multiply in bfloat16 read and write float32 tensors."""
WINOGRAD = 4
"""Factor by which Winograd's algorithm F(4×4, 3×3) reduces the number of multiplications (Lavin and
Gray 2016)."""


def least_operations(workload: Workload) -> float:
    """Return the smallest number of operations that any schedule of a workload needs.

    A multiply-add counts as two operations. For 3×3 convolutions with stride 1, no dilation and no
    groups, in float32 or quantised, the result is the count of Winograd's algorithm, which the
    kernels may use.

    Args:
        workload: the workload.
    """
    w = workload
    winograd = (w.kernel_h, w.kernel_w) == (3, 3) and {
        w.stride_h, w.stride_w, w.dilation_h, w.dilation_w
    } == {1}  # fmt: skip
    may = winograd and w.groups == 1 and (w.dtype == "float32" or w.dequantises)
    return 2.0 * w.macs / (WINOGRAD if may else 1)


def bytes_of(workload: Workload) -> int:
    """Return the bytes of data, weights, output and operands of the epilogue, each counted once.

    Args:
        workload: the workload.
    """
    w = workload
    out = w.batch * w.out_channels * w.out_height * w.out_width
    matrices = w.batch if w.operator == "batch_matmul" else 1
    weights = matrices * w.out_channels * (w.in_channels // w.groups) * w.kernel_h * w.kernel_w
    numbers = w.batch * w.in_channels * w.height * w.width + weights
    added = sum(
        NUMBER_BYTES[dtype] * prod(shape_of_tensor(w, name, (w.out_channels,), (out,)))
        for name, dtype in epilogue_tensors(w).items()
    )
    return NUMBER_BYTES[w.dtype] * numbers + NUMBER_BYTES[w.out_dtype] * out + added
