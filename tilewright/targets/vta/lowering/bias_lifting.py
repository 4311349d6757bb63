"""Lifts biases by a constant, so that adding the bias replaces the reset of the accumulators.

An accumulator that a tile has finished with holds a clipped value of at most `high`. The maximum of
this value and a bias that is lifted above `high` is therefore the lifted bias: a single operation
replaces a reset and an addition. The lift is a multiple of 256 << shift. After the right shift, the
constants of the clips are raised by the remaining part of the lift. STORE keeps only the low eight
bits, where this part is invisible.

For the bias of a shortcut, the remaining part would appear in the sums to which the shortcut is
added, so the bias of these sums subtracts it. If results are averaged, the sum over them starts
with a value that subtracts the lift once for each result.
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
"""Largest multiple of 256 that leaves room for a clip in an immediate."""
ENOUGH = 1 << 24
"""Biases down to the negative of this number are lifted, as far as immediates allow."""
SUMS = 1 << 29
"""Bound of the sums, of the lift and of the bias, such that none of their sums overflows."""


class Lift(NamedTuple):
    """The lift of a bias; all fields are 0 if the epilogue allows none.

    Attributes:
        bias: value that is added to the bias. With shifts per channel, it is the value for the
            smallest shift, and doubles with each further bit.
        clips: part of the lift that remains after the shift.
        lowest: smallest bias that is lifted high enough.
    """

    bias: int
    clips: int
    lowest: int


NONE = Lift(0, 0, 0)


def lift_of(workload: Workload, m: Machine) -> Lift:
    """Return the lift of a workload's bias: a constant that is added to all biases.

    With it, adding the bias replaces the reset of the accumulators. Only an epilogue that consists
    of additions, one right shift and a clip on either side allows a lift.

    Args:
        workload: the workload.
        m: the machine.

    Returns:
        The lift; `NONE` if the epilogue does not allow it.
    """
    ops, kinds = workload.epilogue, [op.kind for op in workload.epilogue]
    if workload.shortcut is not None or workload.pool is not None:
        return NONE  # the shortcut's sums come first, and sums under a pool begin with a reset
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
        return NONE  # the shift of the residual comes first, and would shift the bias too
    least, most = ops[at].shift_range
    wanted = -(-(ENOUGH + high) // max(1, (1 << least) - 1))
    clips = min(HIGHEST, -(-wanted // 256) * 256, (SUMS - 1 >> most) // 256 * 256)
    lowest = high - clips * ((1 << least) - 1)
    if -lowest < NEAR_BIAS or m.acc_bits < 32:
        return NONE
    if workload.average is not None and _averaged_lift(workload, clips) >= 1 << 15:
        return NONE  # no ALU immediate is large enough to subtract the lift again
    return Lift(clips << least, clips, lowest)


def _averaged_lift(workload: Workload, clips: int) -> int:
    """Return the lift that the sum over an image contains, divided by 256.

    Each of the averaged results contains the same lift, so that it can be subtracted from their
    sum.

    Args:
        workload: the workload with the average.
        clips: the part of the lift that remains in each result.
    """
    return workload.results_height * workload.results_width * (clips >> 8)


def lift_of_shortcut(workload: Workload, m: Machine) -> tuple[Lift, int]:
    """Return the lift of a shortcut's bias.

    There is no lift if the accumulators' final values are not clipped to eight bits, or if the
    layer has no bias from which the remaining part can be subtracted before the sums are shifted.

    Returns:
        The lift, and the part of it that remains in the sums after the shortcut's epilogue.
    """
    shortcut, kinds = workload.of_shortcut, [op.kind for op in workload.epilogue]
    last_steps = workload.epilogue[-2:]
    cut = sorted(op.kind for op in last_steps) == ["max", "min"]
    cut = cut and all(-128 <= op.value <= 127 for op in last_steps)
    back = "bias" in kinds and set(kinds[: kinds.index("bias")]) <= set(ADDITIONS)
    if shortcut is None or not cut or not back:
        return NONE, 0
    steps = shortcut.epilogue
    scale = steps[-1].value if steps and steps[-1].kind == "shl" else 0
    lift = lift_of(shortcut.with_steps(steps[: len(steps) - (scale > 0)]), m)
    return lift, lift.clips << scale


def _largest_sum(w: Workload, m: Machine) -> int:
    """Return an upper bound of an accumulator: products, residual and offsets together."""
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
    """Return a geometry whose bias is stored with the lift added.

    The lift is subtracted again from an average.
    """
    average = lift.clips >> 8 if geo.average_taps else 0
    return geo._replace(bias_lift=lift.bias, bias_lowest=lift.lowest, average_lift=average)


def lifted_shortcut(geo: Geometry, lift: Lift, left: int) -> Geometry:
    """Return a geometry whose shortcut's bias is stored with the lift added.

    Args:
        geo: geometry of the layer.
        lift: the lift of the shortcut's bias.
        left: part of the lift that remains in the sums, and that the layer's bias subtracts.
    """
    return geo._replace(beside_lift=lift.bias, beside_lowest=lift.lowest, beside_left=left)


def lifted_epilogue(epilogue: NDArray[np.int64], lift: Lift, behind: int = 0) -> NDArray[np.int64]:
    """Raise the clips of an epilogue by the lift, except those in the last `behind` steps.

    Args:
        epilogue: rows of `epilogue_steps`, shape (steps, 3).
        lift: the lift.
        behind: number of final steps that are not changed.
    """
    steps = epilogue.copy()
    clips = np.isin(steps[:, 1], (ALU_MIN, ALU_MAX))
    clips[len(steps) - behind :] = False
    steps[clips, 2] += lift.clips
    return steps
