"""Epilogues that one MVOUT can compute: scale, round, saturate, ReLU and max-pool.

Other epilogues and pools are rejected. The store unit pools by reading accumulators, converting
each value to its final form, and storing the maximum of each window. The conversion is monotonic,
so that the result equals the converted maximum. The store unit treats pixels outside the image as
zeros, whereas a max-pool ignores them. After a ReLU, both give the same result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.core.errors import WorkloadError
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.gemmini.spec import ARRAY_OUTPUT_BITS
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.workload import Workload

MOST_FLOOR_SHIFT = 15
"""Maximum right shift in bits that a multiplication can replace. The scale of the multiplication is
slightly above a power of two, so that every accumulator value is rounded as by the shift."""
MOST_FACTOR = 127 * 64
"""Maximum factor by which a residual is multiplied. The factor is divided into products by at most
127."""
MOST_CHAINED = ((1 << (ARRAY_OUTPUT_BITS - 1)) - 1) // (1 << 14)
"""Maximum number of int8 products, each of magnitude at most 2^14, whose sum always fits into the
output width of the array."""
# No limit: more products than any chain has.
ALL_CHAINED = 1 << 30
_REST = "the accumulator is scaled, rounded and saturated to int8 as it is stored"
MOST_SIDE = 3
"""Maximum window size, stride and padding of a pooled store, in pixels. The instruction fields have
two bits."""
MOST_PIXELS = 255
"""Maximum number of rows and of columns of a pooled store, before and after pooling. The
instruction fields have eight bits."""


@dataclass(frozen=True)
class StoreEpilogue:
    """Epilogue of a workload: additions to the accumulators, and their conversion to int8.

    Attributes:
        has_bias: whether one value per channel is added.
        constant: constant that is added to each accumulator.
        residual: factor of the int8 tensor that is added; 0 if there is none.
        scale: float32 factor by which the store unit multiplies accumulators.
        relu: whether negative results become 0.
    """

    has_bias: bool
    constant: int
    residual: int
    scale: float
    relu: bool

    @property
    def loads_sums(self) -> bool:
        """True if accumulators start with a bias or a constant from memory, not with 0."""
        return self.has_bias or self.constant != 0

    @property
    def most_chained(self) -> int:
        """Maximum number of products that the array may add up before it writes to the accumulator.

        The array saturates its output to 20 bits. Normally, the limit is the number of products
        whose sum always fits 20 bits. The number is unlimited if a sum that saturates at 20 bits
        also saturates at 8 bits after scaling. This holds if the scale is large enough, nothing
        else is added to the sum, and all products of an output are added up at once.
        """
        adds = self.loads_sums or self.residual
        hides = np.rint(np.float32(self.scale) * np.float32(1 - (1 << (ARRAY_OUTPUT_BITS - 1))))
        return ALL_CHAINED if not adds and hides <= -128 else MOST_CHAINED


def store_epilogue(workload: Workload) -> StoreEpilogue:
    """Convert the epilogue of a workload to operations that the accelerator supports.

    The operations are additions to the accumulators, and scaling, rounding and ReLU in the store
    unit. A right shift `>> N` rounds down. This equals rounding the value minus one half to the
    nearest integer, except for ties. With the next larger float32 number as the scale, ties of
    positive values are rounded upwards as required. Ties of negative values are rounded downwards,
    but a ReLU sets negative values to 0.

    Args:
        workload: the workload.

    Raises:
        WorkloadError: the accelerator cannot compute the epilogue.
    """
    steps = list(workload.epilogue)
    relu = _clips(workload, steps)
    shift = steps.pop() if steps and steps[-1].kind in ("shr", "shr_even", "shl") else None
    has_bias, constant, residual = False, 0, 0
    for step in steps:
        if step.kind == "bias":
            has_bias = True
        elif step.kind == "offset":
            constant += step.value
        elif step.kind in ("residual", "weighted") and not residual:
            residual = step.value if step.kind == "weighted" else 1 << step.value
        else:
            raise _refused_error(workload, f"the step '{step}' is not supported")
    value = 0 if shift is None else shift.value
    scale = np.float32(2.0 ** (value if shift is not None and shift.kind == "shl" else -value))
    if residual > MOST_FACTOR:
        raise _refused_error(
            workload,
            f"its residual is multiplied by {residual}, but the largest possible factor is "
            f"{MOST_FACTOR}",
        )
    if shift is not None and shift.kind == "shr" and value:
        if not relu or value > MOST_FLOOR_SHIFT:
            raise _refused_error(
                workload,
                f"'{shift}' rounds down, which is only possible before a relu and for at "
                f"most {MOST_FLOOR_SHIFT} bits; write '>> even {value}'",
            )
        constant -= 1 << (value - 1)
        scale = np.nextafter(scale, np.float32(np.inf))
    return StoreEpilogue(has_bias, constant, residual, float(scale), relu)


def _clips(workload: Workload, steps: list[EpilogueOp]) -> bool:
    """Remove the clipping operations from the end of an epilogue.

    Args:
        workload: the workload.
        steps: operations of the epilogue. The clipping operations are removed from this list.

    Returns:
        Whether the lower clip is a ReLU (0…127 instead of −128…127).

    Raises:
        WorkloadError: the epilogue does not clip to −128…127 or 0…127.
    """
    high, low = 127, -128
    seen = set()
    while steps and steps[-1].kind in ("min", "max"):
        step = steps.pop()
        seen.add(step.kind)
        if step.kind == "min":
            high = min(high, step.value)
        else:
            low = max(low, step.value)
    if seen != {"min", "max"} or high != 127 or low not in (-128, 0):
        raise _refused_error(
            workload, f"it clips to {low}…{high}, but only -128…127 and 0…127 are possible"
        )
    return low == 0


def _refused_error(workload: Workload, why: str) -> WorkloadError:
    return WorkloadError(
        f"{workload}: Gemmini's store unit cannot compute the epilogue "
        f"'{workload.epilogue_text}', because {_REST}: {why}; run the operator on the CPU, "
        "or change the epilogue"
    )


def check_pool(w: Workload, pool: Pool, epilogue: StoreEpilogue) -> None:
    """Raise an error if the store unit cannot compute a max-pool.

    Args:
        w: the workload.
        pool: the max-pool of its sums.
        epilogue: the epilogue of the store.

    Raises:
        WorkloadError: the pool is not supported.
    """
    sides = {pool.kernel_h, pool.kernel_w}, {pool.stride_h, pool.stride_w}
    why = ""
    if any(len(side) > 1 or max(side) > MOST_SIDE for side in sides):
        why = f"its windows and strides must be squares of at most {MOST_SIDE} pixels"
    elif w.out_width > MOST_PIXELS:
        why = f"its output may have at most {MOST_PIXELS} columns"
    elif epilogue.residual:
        why = "sums that are pooled cannot have a residual"
    elif not epilogue.relu and (pool.pad_top or pool.pad_left or pool.pad_bottom or pool.pad_right):
        why = "padding counts as zeros, which is only right after a relu"
    if why:
        raise WorkloadError(
            f"{w}: Gemmini's store unit cannot compute the {pool.title}: {why}; run the "
            "pooling on the CPU"
        )


def sums_covered(out: int, pool_stride: int, kernel: int) -> int:
    """Return the number of adjacent convolution results that adjacent pooled results depend on.

    The numbers refer to one dimension (rows or columns).

    Args:
        out: number of adjacent pooled results.
        pool_stride: stride of the pool.
        kernel: size of the pool's window.
    """
    return (out - 1) * pool_stride + kernel


def sums_under(first: int, out: int, stride: int, kernel: int, pad: int, size: int) -> range:
    """Return the range of convolution results that pooled results depend on, in one dimension.

    The range is clipped to the image.

    Args:
        first: index of the first pooled result.
        out: number of pooled results.
        stride: stride of the pool.
        kernel: window size of the pool.
        pad: padding before the image.
        size: number of convolution results in the image.
    """
    begin = first * stride - pad
    return range(max(begin, 0), min(begin + sums_covered(out, stride, kernel), size))
