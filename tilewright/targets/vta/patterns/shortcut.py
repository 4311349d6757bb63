"""Implements shortcuts in the accumulators; `lowering.fused_shortcut` writes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.patterns.shortcut import Shortcut
from tilewright.targets.vta.bound_terms import BoundTerms, needed_pixels
from tilewright.targets.vta.estimates.fused_shortcut import estimate_summed
from tilewright.targets.vta.lowering.bias_lifting import (
    lift_of_shortcut,
    lifted_epilogue,
    lifted_shortcut,
)
from tilewright.targets.vta.lowering.codes import SUMMED
from tilewright.targets.vta.lowering.extended import extended_space
from tilewright.targets.vta.lowering.fused_shortcut import check_summed
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.patterns.pattern import Lifted, VtaPattern
from tilewright.targets.vta.spec import Machine
from tilewright.targets.workload import Workload


def _lifted(
    workload: Workload, machine: Machine, geometry: Geometry, epilogue: NDArray[np.int64]
) -> Lifted:
    own, left = lift_of_shortcut(workload, machine)
    steps = geometry.beside_steps
    first = lifted_epilogue(epilogue[:steps], own)
    return lifted_shortcut(geometry, own, left), np.concatenate([first, epilogue[steps:]])


def _bound(workload: Workload, terms: BoundTerms) -> BoundTerms:
    """Its own reduction and epilogue, and its image in the place of a residual."""
    own, g, m = workload.of_shortcut, terms.geo, terms.machine
    assert own is not None
    cycles = terms.results * g.beside_ci + _cycles(own, terms.results, m)
    return terms._replace(
        other=terms.other + cycles,
        parameters=terms.parameters - g.res_bytes,
        pixels=terms.pixels + g.batches * g.beside_ci * needed_pixels(own) * m.inp_bytes,
    )


def _cycles(shortcut: Workload, outputs: int, m: Machine) -> int:
    """Cycles of what follows a shortcut's sums, for so many accumulators, besides the first value
    of these: a bias takes one at least, or is loaded."""
    kinds = [op.kind for op in shortcut.epilogue]
    plain = sum(kind != "bias" for kind in kinds) + kinds.count("shr_channel")
    bias = min(outputs, outputs * m.acc_bytes // m.bus_bytes) if "bias" in kinds else 0
    return outputs * plain + bias


SHORTCUT = VtaPattern(
    Shortcut, check_summed, _bound, SUMMED, extended_space, estimate_summed, _lifted
)
