"""Bounds cycles from below: rows that the array takes, and bytes that the memory port moves."""

from __future__ import annotations

from tilewright.targets.gemmini.lowering.geometry import BlockGeometry
from tilewright.targets.gemmini.spec import BUS_BYTES, DIM, GemminiSpec
from tilewright.targets.workload import Workload


def roofline_cycles(workload: Workload, spec: GemminiSpec) -> int:
    """The larger of all multiplications at the array's peak and all bytes at the port's."""
    w = workload
    g = BlockGeometry.of(w)
    weights = w.out_channels * (w.in_channels // w.groups) * w.kernel_h * w.kernel_w
    rows, columns = g.least_sums
    arithmetic = -(-weights * g.images * rows * columns // (DIM * DIM))
    return max(1, arithmetic, _read_cycles(g, weights, spec), _write_cycles(g))


def bound_cycles(workload: Workload, spec: GemminiSpec) -> int:
    """What no program beats: each block of weights meets each row of data, a row a cycle, behind
    the first response of the memory."""
    g = BlockGeometry.of(workload)
    taps = g.kernel_h * g.kernel_w
    per_in = workload.in_channels // workload.groups
    blocks = -(-per_in * taps // DIM) * -(-workload.out_channels // DIM)
    rows, columns = g.least_sums
    least = max(blocks * g.images * rows * columns, roofline_cycles(workload, spec))
    return least + spec.memory_latency_cycles


def _read_cycles(g: BlockGeometry, weights: int, spec: GemminiSpec) -> int:
    """Of the pixels that taps read, once each, the weights, biases and the residual."""
    rows, columns = g.least_sums
    height, width = min(g.height, rows * g.kernel_h), min(g.width, columns * g.kernel_w)
    read = g.images * height * width * g.all_in_channels + weights
    if g.epilogue.loads_sums:
        read += 4 * g.all_out_channels
    if g.epilogue.residual:
        read += g.pixels * g.all_out_channels
    return -(-read // BUS_BYTES) * spec.cycles_per_beat


def _write_cycles(g: BlockGeometry) -> int:
    """A beat on the request channel for 16 bytes."""
    return g.pixels * -(-g.all_out_channels // BUS_BYTES)
