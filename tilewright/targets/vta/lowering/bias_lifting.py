"""Lifts a bias so that it replaces the accumulators' reset.

An accumulator that a tile leaves holds a clipped value, at most `high`. So its maximum with a bias
that is lifted above `high` is that bias: one operation in the place of a reset and an addition. The
lift is a multiple of 256 << shift. Behind the right shift the clips' constants are lifted by what
is left of it. STORE keeps the low eight bits, in which it does not show. Of a shortcut's bias it
would show in the sums that are added; the bias of these takes it back. Where results are averaged,
their sums begin with it, taken back as often as it is added.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.epilogue import NEAR_BIAS, RESIDUALS, EpilogueOp, usual
from tilewright.targets.vta.instruction_format import ALU_MAX, ALU_MIN
from tilewright.targets.vta.lowering.geometry import ADDITIONS, IDENTITY_BITS, Geometry
from tilewright.targets.vta.spec import Machine
from tilewright.targets.workload import Workload

HIGHEST = (1 << 15) - 256
"""The largest multiple of 256 that leaves room for a clip in an immediate."""
ENOUGH = 1 << 24
"""Biases down to its negative are lifted where immediates allow."""
SUMS = 1 << 29
"""What sums, lift and bias may reach each, so that none overflows."""


class Lift(NamedTuple):
    """What is added to a bias, what of it is left behind the shift, and the smallest bias it lifts
    high enough; all 0 where an epilogue allows none. Where channels have their own shifts, the
    first is for the least of them, and twice as much a bit more."""

    bias: int
    clips: int
    lowest: int


NONE = Lift(0, 0, 0)


def lift_of(workload: Workload, m: Machine) -> Lift:
    """The lift of a workload's bias: additions, a right shift, a clip on either side."""
    ops, kinds = workload.epilogue, [op.kind for op in workload.epilogue]
    if workload.shortcut is not None or workload.pool is not None:
        return NONE  # of the shortcut, whose sums come first; pooled sums begin with a reset
    if EpilogueOp("bias") not in ops or "add" in kinds or m.inp_bits != 8:
        return NONE
    at = next((i for i, kind in enumerate(kinds) if kind in ("shr", "shr_channel")), -1)
    if at < 0:
        return NONE
    if sorted(kinds[at + 1 :]) != ["max", "min"] or not set(kinds[:at]) <= set(ADDITIONS):
        return NONE
    low, high = (next(op.value for op in ops if op.kind == kind) for kind in ("max", "min"))
    if not -128 <= low <= high <= 127 or _largest_sum(workload, m) >= SUMS:
        return NONE
    if any(op.kind in RESIDUALS and usual(op).value > IDENTITY_BITS + 1 for op in ops):
        return NONE  # its shift comes first, and would shift the bias
    least, most = ops[at].amounts
    wanted = -(-(ENOUGH + high) // max(1, (1 << least) - 1))
    clips = min(HIGHEST, -(-wanted // 256) * 256, (SUMS - 1 >> most) // 256 * 256)
    lowest = high - clips * ((1 << least) - 1)
    if -lowest < NEAR_BIAS or m.acc_bits < 32:
        return NONE
    if workload.average is not None and _averaged_lift(workload, clips) >= 1 << 15:
        return NONE  # no immediate takes it back
    return Lift(clips << least, clips, lowest)


def _averaged_lift(workload: Workload, clips: int) -> int:
    """What is left of a lift in all results of a channel together, over 256."""
    return workload.results_height * workload.results_width * (clips >> 8)


def lift_of_shortcut(workload: Workload, m: Machine) -> tuple[Lift, int]:
    """The lift of a shortcut's bias, and what it leaves in the sums; nothing where what an
    accumulator holds is not cut to eight bits, or no bias takes it back before it is shifted."""
    shortcut, kinds = workload.of_shortcut, [op.kind for op in workload.epilogue]
    behind = workload.epilogue[-2:]
    cut = sorted(op.kind for op in behind) == ["max", "min"]
    cut = cut and all(-128 <= op.value <= 127 for op in behind)
    back = "bias" in kinds and set(kinds[: kinds.index("bias")]) <= set(ADDITIONS)
    if shortcut is None or not cut or not back:
        return NONE, 0
    steps = shortcut.epilogue
    scale = steps[-1].value if steps and steps[-1].kind == "shl" else 0
    lift = lift_of(shortcut.with_steps(steps[: len(steps) - (scale > 0)]), m)
    return lift, lift.clips << scale


def _largest_sum(w: Workload, m: Machine) -> int:
    """What the products, a residual and offsets of an accumulator can sum up to."""
    products = (w.in_channels // w.groups * w.kernel_h * w.kernel_w) << (
        m.inp_bits + m.wgt_bits - 2
    )
    others = (
        op.value if op.kind == "offset"
        else (op.value if op.kind == "weighted" else 1 << op.value) << m.inp_bits - 1
        for op in w.epilogue if op.kind in ("offset", *RESIDUALS)
    )  # fmt: skip
    return products + sum(abs(value) for value in others)


def lifted_geometry(geo: Geometry, lift: Lift) -> Geometry:
    """The same with the bias lifted where it lies in memory, and taken back from an average."""
    average = lift.clips >> 8 if geo.average_taps else 0
    return geo._replace(bias_lift=lift.bias, bias_lowest=lift.lowest, average_lift=average)


def lifted_shortcut(geo: Geometry, lift: Lift, left: int) -> Geometry:
    """The same with the shortcut's bias lifted, and what that leaves taken back."""
    return geo._replace(beside_lift=lift.bias, beside_lowest=lift.lowest, beside_left=left)


def lifted_epilogue(epilogue: NDArray[np.int64], lift: Lift, behind: int = 0) -> NDArray[np.int64]:
    """The steps of `epilogue_steps`, (steps, 3), with the clips lifted but for those among the last
    `behind` ones."""
    steps = epilogue.copy()
    clips = np.isin(steps[:, 1], (ALU_MIN, ALU_MAX))
    clips[len(steps) - behind :] = False
    steps[clips, 2] += lift.clips
    return steps
