"""Compiles programs of single configs with their data, and checks their results."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.functional.semantics import SemanticsName
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.lowering.geometry import PAGE_BYTES
from tilewright.targets.vta.lowering.tensor_packing import Tensors, pack_image
from tilewright.targets.vta.program import Program
from tilewright.targets.vta.verify import wrong_values


def program_with_data(
    lowering: Lowering, values: NDArray[np.int64], tensors: Tensors
) -> Program | None:
    """Return the program of a config with its DRAM image; None if the config has no program.

    `values` are knob values, shape (knobs,).
    """
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
    """Count the output values of a config that differ from the integer reference.

    `values` are knob values, shape (knobs,), not knob indices. The count is -1 if the config has no
    program, or if its program does not run to its end.
    """
    code, insns, uops, _ = lowering.program(values)
    if code:
        return -1
    return wrong_values(lowering, insns, uops, seed, semantics)
