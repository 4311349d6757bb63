"""Computes an int8 workload by plain integer arithmetic: the reference of every target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.integer_operators import behind, maxima, sums, wrap
from tilewright.targets.workload import Workload

Integers = NDArray[np.int64]


def reference(
    workload: Workload, tensors: Mapping[str, NDArray[Any]], acc_bits: int = 32, out_bits: int = 8,
    *, exact: bool = False,
) -> Integers:  # fmt: skip
    """The output (n, o, oh, ow) of a workload on integer `tensors`: `data` (n, c, h, w), `weight`
    (o, c/groups, kh, kw); by their kinds in the epilogue `bias` and `shr_channel` (o,), `add` and
    `residual` (n, o, oh, ow; that of a `weighted`, too), before an average; those of a shortcut
    with `shortcut_` before their names.

    Sums and every post-operation wrap modulo 2^acc_bits, the result is truncated to `out_bits`.
    If `exact`, raises `OverflowError` for sums of products that would wrap.
    """
    w = workload
    if w.operator == "max_pool":
        total = maxima(w, tensors["data"], (w.dilation_h, w.dilation_w))
    else:
        total = sums(w, tensors)
    if exact and not np.array_equal(total, wrap(total, acc_bits)):
        raise OverflowError(f"the sums of {w} leave {acc_bits} bits on these tensors")
    total = wrap(total, acc_bits)
    for each in w.post:
        if isinstance(each, EpilogueOp):
            total = behind((each,), total, tensors, acc_bits)
        else:
            total = wrap(each.computed(w, total, tensors, acc_bits), acc_bits)
    return wrap(total, out_bits)
