"""Adds a constant (the lift) to biases, so that a bias can replace the reset of accumulators.

When a tile is finished, its accumulators hold clipped values of at most `high`. Suppose that a bias
plus the lift is greater than `high`. Then the maximum of the old value and the lifted bias is the
lifted bias. A single maximum operation therefore replaces a reset and an addition.

The lift is a multiple of 256 << shift. After the right shift of the epilogue, a part of the lift
remains, and the constants of the clips are raised by this part. It is a multiple of 256, so STORE,
which keeps only the low eight bits, removes it.

For the bias of a shortcut, the remaining part would stay in the accumulators to which the
convolution is added. The bias of the convolution therefore subtracts it. If the results are
averaged, their sum starts with a value that subtracts the remaining part once per result.
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
"""Maximum of `Lift.clips`: the largest multiple of 256 to which the constant of a clip can be added
without exceeding a signed 16-bit immediate."""
ENOUGH = 1 << 24
"""Magnitude of the most negative bias for which the lift should suffice. The lift is smaller if
immediates or 32-bit accumulators require it."""
SUMS = 1 << 29
"""Exclusive upper limit of the magnitudes of the accumulators and of the lift, so that adding them
and the bias does not overflow int32."""


class Lift(NamedTuple):
    """Constant that is added to the biases of a workload; all fields are 0 if there is no lift.

    Attributes:
        bias: value that is added to the bias. With one shift per channel, it is the value for the
            smallest shift, and it doubles with each further bit of the shift.
        clips: part of the lift that remains after the right shift.
        lowest: smallest bias for which the lift is large enough.
    """

    bias: int
    clips: int
    lowest: int


NONE = Lift(0, 0, 0)


def lift_of(workload: Workload, m: Machine) -> Lift:
    """Compute the constant (lift) to add to a workload's bias, so that it replaces a reset.

    The maximum of an accumulator's old value and the lifted bias is then the lifted bias. The
    epilogue allows a lift only if it consists of additions, one right shift, a minimum and a
    maximum, in this order.

    Args:
        workload: the workload.
        m: the machine.

    Returns:
        The lift, or `NONE` if the epilogue does not allow it.
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
    """Return the sum of the lifts in all averaged results of a channel, divided by 256.

    Each averaged result contains the same lift, which can therefore be subtracted from their sum.

    Args:
        workload: the workload with the average.
        clips: part of the lift that remains in each result.
    """
    return workload.results_height * workload.results_width * (clips >> 8)


def lift_of_shortcut(workload: Workload, m: Machine) -> tuple[Lift, int]:
    """Compute the constant (lift) to add to a shortcut's bias, so that it replaces a reset.

    There is no lift if the final values of the accumulators are not clipped to eight bits. There is
    also none if the convolution has no bias that can subtract the remaining part of the lift before
    the right shift.

    Args:
        workload: the workload with the shortcut.
        m: the machine.

    Returns:
        The lift, and the part of it that remains in the accumulators after the shortcut's epilogue.
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
    """Return an upper bound on the magnitude of a sum before the right shift, without the bias.

    The bound adds up the largest products, residual and offsets. The accumulator also contains the
    bias, which is not included.

    Args:
        w: the workload.
        m: the machine.
    """
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
    """Record in the geometry of a workload that a constant (lift) is added to the bias.

    The bias in memory then includes the lift. The geometry also records what a fused average has to
    subtract.

    Args:
        geo: geometry of the workload.
        lift: the lift of the bias.
    """
    average = lift.clips >> 8 if geo.average_taps else 0
    return geo._replace(bias_lift=lift.bias, bias_lowest=lift.lowest, average_lift=average)


def lifted_shortcut(geo: Geometry, lift: Lift, left: int) -> Geometry:
    """Record in the geometry of a workload that a constant (lift) is added to the shortcut's bias.

    Args:
        geo: geometry of the layer.
        lift: lift of the shortcut's bias.
        left: part of the lift that remains in the accumulators, and that the layer's own bias
            subtracts.
    """
    return geo._replace(beside_lift=lift.bias, beside_lowest=lift.lowest, beside_left=left)


def lifted_epilogue(epilogue: NDArray[np.int64], lift: Lift, behind: int = 0) -> NDArray[np.int64]:
    """Raise the minima and maxima of an epilogue by what remains of the bias's lift.

    The lift is a constant that is added to the bias. A part of it remains after the right shift.

    Args:
        epilogue: ALU operations as rows (operand kind, opcode, immediate) of `epilogue_steps`,
            shape (steps, 3).
        lift: the lift.
        behind: number of final steps that are not changed.

    Returns:
        The changed copy, shape (steps, 3).
    """
    steps = epilogue.copy()
    clips = np.isin(steps[:, 1], (ALU_MIN, ALU_MAX))
    clips[len(steps) - behind :] = False
    steps[clips, 2] += lift.clips
    return steps
