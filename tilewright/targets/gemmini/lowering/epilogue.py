"""What one MVOUT does to sums as it stores them: scale, round, saturate, relu, max-pool.

Epilogues and pools that no store computes are refused. The store unit pools by reading
accumulators, finishing each value, and writing the largest of a window. What follows a sum is
monotonic, so this is the result of the largest sum. Pixels beyond the sums' border count as zeros,
where a max-pool ignores them; behind a relu that is the same.
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
"""Bits up to which a scale a little above a power of two rounds every sum as a shift does."""
MOST_FACTOR = 127 * 64
"""Of a residual: each 127 take another product."""
MOST_CHAINED = ((1 << (ARRAY_OUTPUT_BITS - 1)) - 1) // (1 << 14)
"""Products of two int8, each at most 2^14, whose sum has so few bits whatever the data."""
ALL_CHAINED = 1 << 30
_REST = "the accumulator is scaled, rounded and saturated to int8 as it is stored"
MOST_SIDE = 3
"""Pixels of a window, of a stride and of a pad: fields of two bits."""
MOST_PIXELS = 255
"""Rows and columns of a store's sums and of its results, and columns of the output."""


@dataclass(frozen=True)
class StoreEpilogue:
    """What is added to sums, and what storing makes of them.

    `constant` is added to each sum, beside a `has_bias` value a channel; `residual` is the factor
    of an int8 tensor that is added, 0 where none is. `scale` multiplies, in float32; `relu` cuts
    negative results.
    """

    has_bias: bool
    constant: int
    residual: int
    scale: float
    relu: bool

    @property
    def loads_sums(self) -> bool:
        """Whether accumulators begin with values from memory."""
        return self.has_bias or self.constant != 0

    @property
    def most_chained(self) -> int:
        """Products whose sum the array may put out at once, if they are all of an output.

        Where nothing is added to the sum, those that saturate at 20 bits do so at 8 bits, too, if
        the scale is large enough.
        """
        adds = self.loads_sums or self.residual
        hides = np.rint(np.float32(self.scale) * np.float32(1 - (1 << (ARRAY_OUTPUT_BITS - 1))))
        return ALL_CHAINED if not adds and hides <= -128 else MOST_CHAINED


def store_epilogue(workload: Workload) -> StoreEpilogue:
    """Return the epilogue of a workload. Raises `WorkloadError` for steps that no store computes.

    A floor, `>> N`, is the nearest integer of what is less by half, except for ties. A scale of the
    next larger float32 breaks ties upwards. It breaks negative ties downwards, but a relu cuts
    them.
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
            raise _refused(workload, f"'{step}' is none of its steps")
    value = 0 if shift is None else shift.value
    scale = np.float32(2.0 ** (value if shift is not None and shift.kind == "shl" else -value))
    if residual > MOST_FACTOR:
        raise _refused(workload, f"its residual counts {residual}-fold, and may {MOST_FACTOR}-fold")
    if shift is not None and shift.kind == "shr" and value:
        if not relu or value > MOST_FLOOR_SHIFT:
            raise _refused(
                workload,
                f"'{shift}' rounds down, which needs a relu behind it and at most "
                f"{MOST_FLOOR_SHIFT} bits; write '>> even {value}'",
            )
        constant -= 1 << (value - 1)
        scale = np.nextafter(scale, np.float32(np.inf))
    return StoreEpilogue(has_bias, constant, residual, float(scale), relu)


def _clips(workload: Workload, steps: list[EpilogueOp]) -> bool:
    """Take the clips off the end of the steps; whether the lower one is a relu."""
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
        raise _refused(workload, f"it clips to {low}…{high}, and must to -128…127 or 0…127")
    return low == 0


def _refused(workload: Workload, why: str) -> WorkloadError:
    return WorkloadError(
        f"{workload}: the epilogue '{workload.epilogue_text}' has no such store, where {_REST}: "
        f"{why}; leave the operator to the CPU, or change the epilogue"
    )


def check_pool(w: Workload, pool: Pool, epilogue: StoreEpilogue) -> None:
    """Raise `WorkloadError` for a pool of a workload's sums that no store computes."""
    sides = {pool.kernel_h, pool.kernel_w}, {pool.stride_h, pool.stride_w}
    why = ""
    if any(len(side) > 1 or max(side) > MOST_SIDE for side in sides):
        why = f"its windows and strides are squares of at most {MOST_SIDE} pixels"
    elif w.out_width > MOST_PIXELS:
        why = f"its output has at most {MOST_PIXELS} columns"
    elif epilogue.residual:
        why = "sums that it pools have no residual"
    elif not epilogue.relu and (pool.pad_top or pool.pad_left or pool.pad_bottom or pool.pad_right):
        why = "pixels around the image count as zeros, which is right behind a relu alone"
    if why:
        raise WorkloadError(
            f"{w}: Gemmini's store unit computes no {pool.title}: {why}; leave the pool to the CPU"
        )


def sums_covered(out: int, pool_stride: int, kernel: int) -> int:
    """Return how many sums lie under `out` results of one direction, without a border."""
    return (out - 1) * pool_stride + kernel


def sums_under(first: int, out: int, stride: int, kernel: int, pad: int, size: int) -> range:
    """Return the sums of one direction, of `size`, under `out` results from `first` on."""
    begin = first * stride - pad
    return range(max(begin, 0), min(begin + sums_covered(out, stride, kernel), size))
