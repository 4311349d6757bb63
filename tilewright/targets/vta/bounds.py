"""Bounds what no schedule of a layer can beat."""

from __future__ import annotations

import math
from functools import lru_cache

from tilewright.targets.epilogue import RESIDUALS, usual
from tilewright.targets.vta.lowering.geometry import (
    ADDITIONS,
    IDENTITY_BITS,
    Geometry,
    channel_vectors,
    geometry_of,
)
from tilewright.targets.vta.lowering.max_pool_plan import fewest_maxima
from tilewright.targets.vta.spec import Machine, VtaSpec
from tilewright.targets.workload import Pool, Workload


def bounds(workload: Workload, spec: VtaSpec) -> dict[str, int]:
    """Cycles that each resource needs at least: the compute module, the read channel, the write
    channel. Raises `WorkloadError` for a layer that the machine cannot run.

    One module executes GEMM, accumulator reset and epilogue, an iteration a cycle, on whole blocks,
    and loads accumulators, a beat a cycle. Maxima of pooled sums and additions of averaged results
    take two cycles each. Read are the pixels that some output needs, weights, bias and residual
    once, a shortcut's too; written the output once; both in packed blocks.
    """
    if workload.operator == "max_pool":
        return _pool_bounds(workload, spec)
    m, g = spec.machine, geometry_of(workload, spec.machine)
    planes = g.batches * g.out_blocks
    outputs = planes * g.oh * g.ow
    other = _other_cycles(workload, outputs, m)
    if workload.average is not None:
        other += planes * (2 * (g.oh * g.ow - 1) + len(workload.average.epilogue))
    sums = outputs
    if workload.pool is not None:
        rows, cols = _pooled_sides(workload)
        sums = planes * rows * cols
        other = _pooled_cycles(workload, workload.pool, g, sums, rows, cols)
    pixels = g.batches * g.inp_blocks * needed_pixels(workload) * m.inp_bytes
    parameters = _parameter_bytes(workload, g, m)
    if workload.of_shortcut is not None:
        other += outputs * g.beside_ci + _shortcut_cycles(workload.of_shortcut, outputs, m)
        parameters -= g.res_bytes
        pixels += g.batches * g.beside_ci * needed_pixels(workload.of_shortcut) * m.inp_bytes
    return {
        "compute": sums * g.ci * g.kh * g.kw + other,
        "read": (pixels + parameters) // m.bus_bytes,
        "write": planes * math.prod(g.output) * m.out_bytes // m.bus_bytes,
    }


def _pooled_cycles(
    workload: Workload, pool: Pool, g: Geometry, sums: int, rows: int, cols: int
) -> int:
    """Cycles of compute besides the reduction of so many sums, (rows × cols) a block of channels.
    Each is reset; a bias takes one cycle at least of what is left, as other operations do."""
    planes, outputs = g.batches * g.out_blocks, g.oh * g.ow
    maxima = _fewest_maxima(pool, g.oh, g.ow, rows, cols)
    operations = len(workload.epilogue)
    operations += sum(op.kind == "shr_channel" for op in workload.epilogue)
    return sums + planes * (2 * maxima + outputs * operations)


def _fewest_maxima(windows: Workload | Pool, oh: int, ow: int, rows: int, cols: int) -> int:
    """Maxima, of rows and of columns apart, of windows that read so many rows and columns."""
    by_row = fewest_maxima(windows.kernel_h, windows.stride_h, oh)
    by_col = fewest_maxima(windows.kernel_w, windows.stride_w, ow)
    return min(by_row * cols + by_col * oh, by_col * rows + by_row * ow)


def _pool_bounds(workload: Workload, spec: VtaSpec) -> dict[str, int]:
    """Those of a max-pool. Every pixel that an output reads is reset and brought by the GEMM core;
    maxima, of rows and of columns apart, take two cycles each."""
    w, m, g = workload, spec.machine, geometry_of(workload, spec.machine)
    rows, cols = _needed_sides(w)
    maxima = _fewest_maxima(w, g.oh, g.ow, rows, cols)
    images, outputs = g.batches * g.groups, g.oh * g.ow
    pixels = rows * cols
    return {
        "compute": images * (2 * pixels + 2 * maxima + outputs * len(w.epilogue)),
        "read": (images * pixels * m.inp_bytes + g.wgt_bytes) // m.bus_bytes,
        "write": images * outputs * m.out_bytes // m.bus_bytes,
    }


def bound_cycles(workload: Workload, spec: VtaSpec) -> int:
    """The largest of `bounds`. Raises as it does."""
    return max(bounds(workload, spec).values())


def _other_cycles(workload: Workload, outputs: int, m: Machine) -> int:
    """Cycles of compute besides the reduction, for so many accumulators.

    Each begins with a reset, or with an int32 tensor that is loaded anyway and, behind a reset,
    takes two cycles to add. A bias takes one at least (as weights of a constant), unless it is
    loaded as such a tensor; a residual one by the identity, and a shift beyond what a weight holds.
    A shift by an amount a channel takes two: only the ALU shifts, and there the amounts are a
    second operand.
    """
    kinds = [op.kind for op in workload.epilogue]
    plain = sum(kind not in ("bias", "add") for kind in kinds) + shifted_residuals(workload)
    plain += kinds.count("shr_channel")
    tensor = outputs * m.acc_bytes // m.bus_bytes
    if "add" not in kinds:
        begin = min(2 * outputs, tensor) if "bias" in kinds else outputs
        return begin + outputs * plain
    first = all(kind in ADDITIONS for kind in kinds[: kinds.index("add")])
    return tensor + outputs * (plain + ("bias" in kinds) + (0 if first else 3))


def _shortcut_cycles(shortcut: Workload, outputs: int, m: Machine) -> int:
    """Cycles of what follows a shortcut's sums, for so many accumulators, besides the first value
    of these: a bias takes one at least, or is loaded."""
    kinds = [op.kind for op in shortcut.epilogue]
    plain = sum(kind != "bias" for kind in kinds) + kinds.count("shr_channel")
    bias = min(outputs, outputs * m.acc_bytes // m.bus_bytes) if "bias" in kinds else 0
    return outputs * plain + bias


def shifted_residuals(workload: Workload) -> int:
    """Residuals that take a second iteration: the identity cannot hold their power of two."""
    return sum(op.kind in RESIDUALS and usual(op).value > IDENTITY_BITS for op in workload.epilogue)


def _parameter_bytes(workload: Workload, g: Geometry, m: Machine) -> int:
    """Without those of output blocks that no image has, see `Geometry`."""
    surplus = g.groups * g.co - g.out_blocks
    block = g.ci * g.kh * g.kw * m.wgt_bytes + len(channel_vectors(workload)) * m.acc_bytes
    return g.wgt_bytes + g.bias_bytes + g.add_bytes + g.res_bytes - surplus * block


def roofline_cycles(workload: Workload, spec: VtaSpec) -> int:
    """max(MACs / (BATCH·BLOCK_IN·BLOCK_OUT), compulsory DRAM bytes / bus bytes), rounded up.

    Compulsory are the input pixels some output needs, the weights, bias and residual once, those of
    a shortcut too, and the output once. The element widths are the machine's; blocks that are only
    padding do not count.
    """
    w, m = workload, spec.machine
    bits = _operand_bits(w, m) + w.batch * w.out_channels * w.out_height * w.out_width * m.inp_bits
    if w.of_shortcut is not None:
        bits += _operand_bits(w.of_shortcut, m)
    return max(-(-w.macs // spec.macs_per_cycle), -(-bits // (8 * m.bus_bytes)))


def _operand_bits(w: Workload, m: Machine) -> int:
    """What is read at least, a shortcut's operands excepted."""
    weights = w.out_channels * (w.in_channels // w.groups) * w.kernel_h * w.kernel_w
    if w.operator == "max_pool":
        weights = 0  # the identity is the machine's need, not the layer's
    outputs = w.batch * w.out_channels * w.results_height * w.results_width
    kinds = [op.kind for op in w.epilogue]
    return (
        w.batch * w.in_channels * needed_pixels(w) * m.inp_bits
        + weights * m.wgt_bits
        + len(channel_vectors(w)) * w.out_channels * m.acc_bits
        + ("add" in kinds) * outputs * m.acc_bits
        + any(kind in RESIDUALS for kind in kinds) * outputs * m.inp_bits
    )


def needed_pixels(workload: Workload) -> int:
    """Pixels of the input image that at least one output reads."""
    rows, cols = _needed_sides(workload)
    return rows * cols


def _needed_sides(workload: Workload) -> tuple[int, int]:
    """Rows and columns of the input image that at least one output reads."""
    w = workload
    rows, cols = (w.sums_height, w.sums_width) if w.pool is None else _pooled_sides(w)
    rows = _needed(w.height, rows, w.stride_h, w.kernel_h, w.dilation_h, w.pad_top)
    cols = _needed(w.width, cols, w.stride_w, w.kernel_w, w.dilation_w, w.pad_left)
    return rows, cols


def _pooled_sides(workload: Workload) -> tuple[int, int]:
    """Rows and columns of the sums that a pool behind them reads: the first ones, since its windows
    leave none out between."""
    w, p = workload, workload.pool or Pool(1, 1)
    rows = _needed(w.sums_height, w.out_height, p.stride_h, p.kernel_h, 1, p.pad_top)
    cols = _needed(w.sums_width, w.out_width, p.stride_w, p.kernel_w, 1, p.pad_left)
    return rows, cols


@lru_cache(maxsize=4096)
def _needed(size: int, outputs: int, stride: int, kernel: int, dilation: int, pad: int) -> int:
    """Input rows (columns) inside the image that at least one output reads."""
    read = {o * stride + k * dilation - pad for o in range(outputs) for k in range(kernel)}
    return sum(0 <= row < size for row in read)
