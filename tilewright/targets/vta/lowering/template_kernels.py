"""Computes the micro-ops of a template schedule: hardware loops, and the other loops unrolled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.isa import Layout, pack_uop
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.template_tiling import TemplateTiling
from tilewright.targets.vta.njit_args import helper, stage


class LoopNest(NamedTuple):
    """The loops of a micro-op kernel, outermost first: iterations of each, and what each iteration
    adds to the accumulator, input and weight index."""

    extents: tuple[int, int, int, int, int, int]
    dst: tuple[int, int, int, int, int, int]
    src: tuple[int, int, int, int, int, int]
    wgt: tuple[int, int, int, int, int, int]


class KernelLoops(NamedTuple):
    """The two loops of a nest that the hardware runs (-1: none), and the micro-ops of the rest."""

    first: int
    second: int
    uops: int
    n0: int
    n1: int
    d0: int
    d1: int
    s0: int
    s1: int
    w0: int
    w1: int


@stage
def gemm_nest(geo: Geometry, t: TemplateTiling) -> LoopNest:
    """Input blocks, columns, the kernel's columns and rows, output blocks, rows."""
    kk = geo.kh * geo.kw
    return LoopNest(
        (t.tci, t.tw, geo.kw, geo.kh, t.tco, t.th),
        (0, 1, 0, 0, t.th * t.tw, t.tw),
        (t.ih * t.iw, geo.sw, geo.dw, geo.dh * t.iw, 0, geo.sh * t.iw),
        (kk, 0, 1, geo.kw, t.tci * kk, 0),
    )


@stage
def reset_nest(t: TemplateTiling) -> LoopNest:
    """Those of `gemm_nest` that walk accumulators."""
    return LoopNest(
        (1, t.tw, 1, 1, t.tco, t.th),
        (0, 1, 0, 0, t.th * t.tw, t.tw),
        (0, 0, 0, 0, 0, 0),
        (0, 0, 0, 0, 0, 0),
    )


@stage
def loops_of(nest: LoopNest) -> KernelLoops:
    """The first two loops longer than one become hardware loops, the others are unrolled."""
    first, second, uops = -1, -1, 1
    for loop in range(6):
        if nest.extents[loop] == 1:
            continue
        if first < 0:
            first = loop
        elif second < 0:
            second = loop
        else:
            uops *= nest.extents[loop]
    return KernelLoops(
        first, second, uops,
        _item(nest.extents, first, 1), _item(nest.extents, second, 1),
        _item(nest.dst, first, 0), _item(nest.dst, second, 0),
        _item(nest.src, first, 0), _item(nest.src, second, 0),
        _item(nest.wgt, first, 0), _item(nest.wgt, second, 0),
    )  # fmt: skip


@helper
def _item(numbers: tuple[int, int, int, int, int, int], loop: int, otherwise: int) -> int:
    return numbers[loop] if loop >= 0 else otherwise


@helper
def write_uops(
    lay: Layout, uops: NDArray[np.uint64], at: int, nest: LoopNest, first: int, second: int,
    dst: int, src: int, wgt: int,
) -> None:  # fmt: skip
    """Write a kernel's micro-ops into `uops` (micro-ops,) from `at` on: the loops that the hardware
    does not run, from the first indices on. What does not fit is left out."""
    n, d, s, w = nest
    e0 = 1 if first == 0 or second == 0 else n[0]
    e1 = 1 if first == 1 or second == 1 else n[1]
    e2 = 1 if first == 2 or second == 2 else n[2]
    e3 = 1 if first == 3 or second == 3 else n[3]
    e4 = 1 if first == 4 or second == 4 else n[4]
    e5 = 1 if first == 5 or second == 5 else n[5]
    for i0 in range(e0):
        for i1 in range(e1):
            for i2 in range(e2):
                for i3 in range(e3):
                    for i4 in range(e4):
                        for i5 in range(e5):
                            if at < uops.shape[0]:
                                uops[at] = pack_uop(
                                    lay,
                                    dst + i1 * d[1] + i4 * d[4] + i5 * d[5],
                                    src + i0 * s[0] + i1 * s[1] + i2 * s[2] + i3 * s[3] + i5 * s[5],
                                    wgt + i0 * w[0] + i2 * w[2] + i3 * w[3] + i4 * w[4],
                                )
                            at += 1
