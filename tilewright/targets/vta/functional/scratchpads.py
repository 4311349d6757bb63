"""Scratchpads of the accelerator, in the layout that the compute kernels need."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import SpecError
from tilewright.targets.vta.functional.semantics import SemanticRules
from tilewright.targets.vta.functional.vector import LANES, TILE
from tilewright.targets.vta.spec import Machine


class Scratchpads(NamedTuple):
    """Contents of the scratchpads as flat arrays.

    The arrays use wider integers than the hardware, and rows are padded to multiples of 16 values.
    An input element consists of `batch` rows of `inp_row` values. An accumulator element consists
    of `batch` rows of `acc_row` values. A weight element consists of (acc_row/16)·(inp_row/16)
    tiles of [input pair][output][2].
    """

    uop: NDArray[np.uint64]
    inp: NDArray[np.int16]
    wgt: NDArray[np.int16]
    acc: NDArray[np.int32]
    # values that STORE reads for elements that are not `fresh`; empty without OUT
    out: NDArray[np.int32]
    # per accumulator element: whether the last write was by a GEMM (no reset) or ALU
    fresh: NDArray[np.uint8]
    inp_row: int
    acc_row: int


def allocate(m: Machine, rules: SemanticRules, seed: int | None = None) -> Scratchpads:
    """Allocate the scratchpads of a simulated machine.

    Args:
        m: the machine.
        rules: the semantic rules, which contain the depths of the scratchpads.
        seed: seed of pseudo-random initial content; None for zeros.

    Raises:
        SpecError: inputs or weights are wider than 16 bits.
    """
    if max(m.inp_bits, m.wgt_bits) > 16:
        raise SpecError(
            "the functional simulator supports inputs and weights of at most 16 bits, not "
            f"{m.inp_bits} and {m.wgt_bits}; lower LOG_INP_WIDTH and LOG_WGT_WIDTH to 4"
        )
    inp_row, acc_row = _padded(m.block_in), _padded(m.block_out)
    tiles = (inp_row // LANES) * (acc_row // LANES)
    pads = Scratchpads(
        uop=np.zeros(rules.uop_depth, np.uint64),
        inp=np.zeros(rules.inp_depth * m.batch * inp_row, np.int16),
        wgt=np.zeros(rules.wgt_depth * tiles * TILE, np.int16),
        acc=np.zeros(rules.acc_depth * m.batch * acc_row, np.int32),
        out=np.zeros(rules.acc_depth * m.batch * acc_row if rules.out_scratchpad else 0, np.int32),
        fresh=np.zeros(rules.acc_depth, np.uint8),
        inp_row=inp_row,
        acc_row=acc_row,
    )
    if seed is not None:
        _fill(pads, m, np.random.default_rng(seed))
    return pads


def clear(pads: Scratchpads) -> None:
    """Set all scratchpads to zero, for the next program.

    Args:
        pads: the scratchpads; changed in place.
    """
    for array in (pads.uop, pads.inp, pads.wgt, pads.acc, pads.out, pads.fresh):
        array.fill(0)


def _padded(values: int) -> int:
    return -(-values // LANES) * LANES


def _fill(pads: Scratchpads, m: Machine, rng: np.random.Generator) -> None:
    pads.uop[:] = rng.integers(0, 1 << (8 * m.uop_bytes), pads.uop.size, np.uint64, endpoint=False)
    pads.acc[:] = rng.integers(-(1 << 31), 1 << 31, pads.acc.size)
    pads.acc[:] = (pads.acc << (32 - m.acc_bits)) >> (32 - m.acc_bits)
    pads.out[:] = rng.integers(-128, 128, pads.out.size)
    pads.inp[:] = rng.integers(-1 << (m.inp_bits - 1), 1 << (m.inp_bits - 1), pads.inp.size)
    wgt = pads.wgt.reshape(-1, LANES // 2, LANES, 2)
    wgt[:] = rng.integers(-1 << (m.wgt_bits - 1), 1 << (m.wgt_bits - 1), wgt.shape)
    # Padding inputs are multiplied by zero weights, so their values do not matter.
    if m.block_in < LANES:
        wgt[:, (m.block_in + 1) // 2 :] = 0
        if m.block_in == 1:
            wgt[:, 0, :, 1] = 0
