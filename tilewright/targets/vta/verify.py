"""Runs schedules on the functional simulator and compares the output with an integer reference."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.functional import FunctionalError, simulate
from tilewright.targets.vta.functional.semantics import SemanticsName
from tilewright.targets.vta.lowering.batch import Lowering, over_chunks
from tilewright.targets.vta.lowering.geometry import PAGE_BYTES
from tilewright.targets.vta.lowering.ml2tuner_space import EVERY_GROUP, fits, stored_blocks
from tilewright.targets.vta.lowering.tensor_packing import (
    pack_image,
    random_tensors,
    reference,
    unpack_output,
)
from tilewright.targets.vta.program import Program


def wrong_values(
    lowering: Lowering,
    insns: NDArray[np.uint64],
    uops: NDArray[np.uint64],
    seed: int = 0,
    semantics: SemanticsName = "functional",
) -> int:
    """Run a lowered program on random tensors and count the wrong output values.

    Args:
        lowering: lowering of the workload.
        insns: instructions, uint64, shape (n, 2).
        uops: micro-ops, uint64, shape (m,).
        seed: seed of the random tensors.
        semantics: implementation of the instruction set that the simulator follows.

    Returns:
        Number of output values that differ from the integer reference; -1 if the program does not
        finish.
    """
    workload, machine, geometry = lowering.workload, lowering.machine, lowering.geometry
    tensors = random_tensors(workload, machine, seed)
    program = Program(insns, pack_image(workload, machine, geometry, tensors, uops), PAGE_BYTES)
    try:
        after = simulate(program, lowering.spec, semantics).dram
    except FunctionalError:
        return -1
    got = unpack_output(workload, machine, geometry, after)
    return int((got != reference(workload, machine, tensors)).sum())


def wrong_rows(lowering: Lowering, values: NDArray[np.int64], seed: int = 0) -> NDArray[np.bool_]:
    """Find the configs of the unchecked space that compute wrong results.

    Programs behave as on the hardware: indices that exceed a scratchpad wrap around. A config that
    fits into all scratchpads is correct (see `ml2tuner_space.fits`). Every other config is run on a
    workload with fewer channels, in which indices collide in the same way. First, only two groups
    of tiles are run, because nearly every error shows there; the whole program is run if these are
    correct.

    Args:
        lowering: lowering of the workload.
        values: knob values (not indices), shape (n, 3).
        seed: seed of the random tensors.

    Returns:
        Mask of the wrong configs, shape (n,).
    """
    geo, m = lowering.geometry, lowering.machine
    wrong = np.zeros(len(values), np.bool_)
    threads = sorted({int(row[0]) for row in values})
    bound = {v: _Bound.for_lowering(_fewer_channels(lowering, v), seed) for v in threads}

    def run(begin: int, end: int) -> None:
        for r in range(begin, end):
            if not fits(geo, m, values[r]):
                small = bound[int(values[r, 0])]
                wrong[r] = any(small.differs(values[r], groups) for groups in (2, EVERY_GROUP))

    over_chunks(len(values), run)
    return wrong


def _fewer_channels(lowering: Lowering, threads: int) -> Lowering:
    """Create the lowering of a workload with fewer channels but the same collisions of indices.

    Programs with fewer channels are faster to run. Two input blocks behave like any larger number
    of input blocks. Consecutive threads compute consecutive output blocks. The new number of output
    blocks equals the old one modulo `threads`, so that the same thread is the first to compute the
    next pixels.

    Args:
        lowering: lowering of the original workload.
        threads: number of virtual threads of the schedules.
    """
    workload, geo, m = lowering.workload, lowering.geometry, lowering.machine
    if geo.groups > 1:
        return lowering
    co = min(geo.co, geo.co % threads + threads)
    small = replace(
        workload,
        in_channels=min(workload.in_channels, 2 * m.block_in),
        out_channels=workload.out_channels if co == geo.co else co * m.block_out,
    )
    return Lowering.for_workload(small, lowering.spec, lowering.kind, lowering.stock)


@dataclass(frozen=True)
class _Bound:
    """A lowering with random operands in a memory image, and the expected output of its programs.

    Attributes:
        lowering: the lowering.
        image: memory image with the operands, uint8, shape (bytes,).
        expected: expected output, int64, shape (n, o, oh, ow).
    """

    lowering: Lowering
    image: NDArray[np.uint8]
    expected: NDArray[np.int64]

    @classmethod
    def for_lowering(cls, lowering: Lowering, seed: int) -> _Bound:
        workload, m = lowering.workload, lowering.machine
        tensors = random_tensors(workload, m, seed)
        no_uops = np.zeros(1 << m.log_uop_depth, np.uint64)
        image = pack_image(workload, m, lowering.geometry, tensors, no_uops)
        return cls(lowering, image, reference(workload, m, tensors))

    def differs(self, values: NDArray[np.int64], groups: int) -> bool:
        """Run a program that ends early, and return whether it stores wrong values.

        Args:
            values: knob values of the schedule, shape (knobs,).
            groups: number of groups of tiles after which the program ends.
        """
        geo, m = self.lowering.geometry, self.lowering.machine
        insns, uops = self.lowering.cut_program(values, groups)
        words = uops.astype(f"<u{m.uop_bytes}").view(np.uint8)
        at = geo.uop_base * m.uop_bytes - PAGE_BYTES
        before = self.image.copy()
        before[at : at + words.size] = words
        try:
            after = simulate(Program(insns, before, PAGE_BYTES), self.lowering.spec, "chisel").dram
        except FunctionalError:
            return True
        wrong = unpack_output(self.lowering.workload, m, geo, after) != self.expected
        if groups < EVERY_GROUP and geo.groups == 1:
            n, o = wrong.shape[:2]
            blocks = stored_blocks(geo, values, groups)
            wrong &= blocks.repeat(m.batch, axis=0).repeat(m.block_out, axis=1)[:n, :o]
        return bool(wrong.any())
