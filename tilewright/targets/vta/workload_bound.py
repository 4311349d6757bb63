"""Lower bounds on the latency of workloads: cycles that no schedule can beat."""

from __future__ import annotations

import math

from tilewright.targets.epilogue import RESIDUALS, usual
from tilewright.targets.vta.bound_terms import (
    BoundTerms,
    fewest_maxima_of,
    needed_pixels,
    needed_sides,
)
from tilewright.targets.vta.fused_patterns import patterns_of
from tilewright.targets.vta.lowering.geometry import (
    ADDITIONS,
    IDENTITY_BITS,
    Geometry,
    channel_vectors,
    composed_cycles,
    composed_rows,
    geometry_of,
)
from tilewright.targets.vta.spec import Machine, VtaSpec
from tilewright.targets.workload import Workload


def bounds(workload: Workload, spec: VtaSpec) -> dict[str, int]:
    """Return the minimum number of cycles that a workload occupies each resource of the machine.

    - `compute`: The compute module executes GEMM, accumulator reset and epilogue with one iteration
      per cycle, on whole blocks, and loads accumulators with one beat per cycle. Maxima of a fused
      max-pool and additions of a fused average take two cycles each.
    - `read`: The read channel transfers the pixels that at least one output needs, and the weights,
      biases and residual once. The operands of a shortcut are included.
    - `write`: The write channel transfers the output once.

    Both channels transfer packed blocks.

    Args:
        workload: the workload.
        spec: the machine.

    Returns:
        Cycles, by resource name.

    Raises:
        WorkloadError: the machine cannot run the workload.
    """
    if workload.operator == "max_pool":
        return _pool_bounds(workload, spec)
    m, g = spec.machine, geometry_of(workload, spec.machine)
    pixels = g.batches * g.inp_blocks * _needed_pixels(workload) * m.inp_bytes
    terms = BoundTerms(g, m, 0, 0, pixels, _parameter_bytes(workload, g, m))
    other = _other_cycles(workload, terms.results, m)
    terms = terms._replace(sums=terms.results, other=other)
    for pattern in patterns_of(workload):
        terms = pattern.bound(workload, terms)
    return {
        "compute": terms.sums * g.ci * g.kh * g.kw + terms.other,
        "read": (terms.pixels + terms.parameters) // m.bus_bytes,
        "write": terms.planes * math.prod(g.output) * m.out_bytes // m.bus_bytes,
    }


def _pool_bounds(workload: Workload, spec: VtaSpec) -> dict[str, int]:
    """Return the minimum number of cycles of each resource for a max-pool layer, like `bounds`.

    The GEMM core resets and copies each pixel that an output reads. Maxima along one axis and
    maxima along the other axis are computed one after the other and take two cycles each.
    """
    w, m, g = workload, spec.machine, geometry_of(workload, spec.machine)
    rows, cols = needed_sides(w)
    maxima = fewest_maxima_of(w, g.oh, g.ow, rows, cols)
    images, outputs = g.batches * g.groups, g.oh * g.ow
    pixels = rows * cols
    return {
        "compute": images * (2 * pixels + 2 * maxima + outputs * len(w.epilogue)),
        "read": (images * pixels * m.inp_bytes + g.wgt_bytes) // m.bus_bytes,
        "write": images * outputs * m.out_bytes // m.bus_bytes,
    }


def bound_cycles(workload: Workload, spec: VtaSpec) -> int:
    """Return a lower bound on the cycles of every program that computes a workload.

    It is the maximum over the resources of the machine, see `bounds`.

    Args:
        workload: the workload.
        spec: the machine.

    Raises:
        WorkloadError: the machine cannot run the workload.
    """
    return max(bounds(workload, spec).values())


def _other_cycles(workload: Workload, outputs: int, m: Machine) -> int:
    """Return the minimum cycles of the compute module in addition to the multiply-accumulates.

    - Each accumulator is initialised by a reset, or by the int32 tensor that the epilogue adds,
      which has to be loaded in any case. If the tensor cannot be the initial value, there are three
      more cycles per accumulator: one for a reset and two for an addition.
    - A bias takes at least one cycle, as a product of weights and a constant, unless it is loaded
      as the initial value.
    - A residual takes one cycle, in which the GEMM core multiplies it by the identity matrix. It
      takes a second cycle if its scale exceeds the range of a weight.
    - A shift per channel takes two cycles, because only the ALU can shift and reads the amounts as
      a second operand.

    Args:
        workload: the workload.
        outputs: number of accumulator elements.
        m: the machine.
    """
    kinds = [op.kind for op in workload.epilogue]
    plain = sum(kind not in ("bias", "add") for kind in kinds) + shifted_residuals(workload)
    plain += kinds.count("shr_channel")
    plain += sum(composed_cycles(op) - 1 for op in workload.epilogue if composed_rows(op))
    tensor = outputs * m.acc_bytes // m.bus_bytes
    if "add" not in kinds:
        begin = min(2 * outputs, tensor) if "bias" in kinds else outputs
        return begin + outputs * plain
    first = all(kind in ADDITIONS for kind in kinds[: kinds.index("add")])
    return tensor + outputs * (plain + ("bias" in kinds) + (0 if first else 3))


def shifted_residuals(workload: Workload) -> int:
    """Count the residuals of a workload that need two cycles per accumulator instead of one.

    The GEMM core multiplies a residual by an identity matrix that holds the residual's factor, a
    power of two. A second cycle is necessary if the factor exceeds the largest power of two in an
    int8 weight.
    """
    return sum(op.kind in RESIDUALS and usual(op).value > IDENTITY_BITS for op in workload.epilogue)


def _parameter_bytes(workload: Workload, g: Geometry, m: Machine) -> int:
    """Return the bytes of weights, biases, added tensors and residuals that a workload loads.

    The last group of channels may be padded with empty output blocks, which are not counted.
    """
    surplus = g.groups * g.co - g.out_blocks
    block = g.ci * g.kh * g.kw * m.wgt_bytes + len(channel_vectors(workload)) * m.acc_bytes
    return g.wgt_bytes + g.bias_bytes + g.add_bytes + g.res_bytes - surplus * block


def roofline_cycles(workload: Workload, spec: VtaSpec) -> int:
    """Return the roofline of a workload in cycles.

    It is max(MACs / (BATCH·BLOCK_IN·BLOCK_OUT), compulsory DRAM bytes / bus bytes), rounded up.
    Compulsory transfers are one read of the input pixels that at least one output needs, one read
    of weights, biases and residual, and one write of the output. The operands of a shortcut are
    included. Element widths are those of the machine. Padding to whole blocks is not counted.

    Args:
        workload: the workload.
        spec: the machine.
    """
    w, m = workload, spec.machine
    bits = _operand_bits(w, m) + w.batch * w.out_channels * w.out_height * w.out_width * m.inp_bits
    if w.of_shortcut is not None:
        bits += _operand_bits(w.of_shortcut, m)
    return max(-(-w.macs // spec.macs_per_cycle), -(-bits // (8 * m.bus_bytes)))


def _operand_bits(w: Workload, m: Machine) -> int:
    """Return the minimum number of operand bits that every program of a workload reads.

    The operands of a shortcut are not counted.
    """
    weights = w.out_channels * (w.in_channels // w.groups) * w.kernel_h * w.kernel_w
    if w.operator == "max_pool":
        weights = 0  # the identity matrix is needed by this machine, not by the layer
    outputs = w.batch * w.out_channels * w.results_height * w.results_width
    kinds = [op.kind for op in w.epilogue]
    return (
        w.batch * w.in_channels * _needed_pixels(w) * m.inp_bits
        + weights * m.wgt_bits
        + len(channel_vectors(w)) * w.out_channels * m.acc_bits
        + ("add" in kinds) * outputs * m.acc_bits
        + any(kind in RESIDUALS for kind in kinds) * outputs * m.inp_bits
    )


def _needed_pixels(workload: Workload) -> int:
    """Count the pixels per input channel of a workload that at least one output reads."""
    if workload.operator == "max_pool":
        return needed_pixels(workload)
    sides = (
        pattern.sums_sides for pattern in patterns_of(workload) if pattern.sums_sides is not None
    )
    return needed_pixels(workload, next((of(workload) for of in sides), None))
