"""Does a schedule compute the right numbers? Runs its program on the functional simulator."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targets.vta.functional import FunctionalError, simulate
from targets.vta.functional.semantics import SemanticsName
from targets.vta.lowering.batch import Lowering
from targets.vta.lowering.geometry import PAGE_BYTES
from targets.vta.lowering.tensors import (
    Tensors,
    pack_image,
    random_tensors,
    reference,
    unpack_output,
)
from targets.vta.program import Program


def program_with_data(
    lowering: Lowering, values: NDArray[np.int64], tensors: Tensors
) -> Program | None:
    """The program of one config (knob *values*) with its DRAM image, or None if it has none."""
    code, insns, uops, _ = lowering.program(values)
    if code:
        return None
    image = pack_image(lowering.workload, lowering.machine, lowering.geometry, tensors, uops)
    return Program(insns, image, PAGE_BYTES)


def mismatches(
    lowering: Lowering,
    values: NDArray[np.int64],
    seed: int = 0,
    semantics: SemanticsName = "functional",
) -> int:
    """Output values that differ from the integer reference, on random tensors of the full range.

    -1 if the config has no program or its program does not run to its end.
    """
    tensors = random_tensors(lowering.workload, lowering.machine, seed)
    program = program_with_data(lowering, values, tensors)
    if program is None:
        return -1
    try:
        after = simulate(program, lowering.spec, semantics).dram
    except FunctionalError:
        return -1
    got = unpack_output(lowering.workload, lowering.machine, lowering.geometry, after)
    return int((got != reference(lowering.workload, lowering.machine, tensors)).sum())
