"""Tests the default tuner with wrong estimates, and with many configs that give one program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.flows.tuning import tune, tune_session
from tilewright.models import make_explorer
from tilewright.search.task import make_task
from tilewright.targets.base import Configs
from tilewright.targets.features import Features
from tilewright.targets.vta.estimates import CYCLES
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload, parse_workload

FEW_PROGRAMS = parse_workload("dense:n=1,c=2048,o=16")  # 992 valid configs, 40 programs
PYNQ = VtaSpec.load("vta-pynq")


class Misled(VtaTarget):
    """A target with wrong estimates.

    They are three times too high for schedules with a single reduction step.
    """

    def estimate(self, workload: Workload, configs: Configs) -> Features:
        result = super().estimate(workload, configs)
        tile_ci = self.space(workload).values(configs)[:, 3]
        matrix = result.matrix.copy()
        matrix[tile_ci == -(-workload.in_channels // self.spec.block_in), CYCLES] *= 3.0
        return replace(result, matrix=matrix)


def _best(target: VtaTarget, workload: Workload, seed: int, trials: int = 64) -> int:
    rounds = list(tune(target, workload, make_explorer("default"), trials=trials, seed=seed))
    best = rounds[-1].best_cycles
    assert best is not None
    return best


@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_estimate_does_not_hide_the_optimum(seed: int) -> None:
    _, measured = VtaTarget(PYNQ).enumerate(FEW_PROGRAMS)
    optimum = measured.cycles[measured.valid].min()
    assert _best(Misled(PYNQ), FEW_PROGRAMS, seed) <= 1.01 * optimum


@pytest.mark.parametrize("tuner", ["default", "default-blind"])
def test_no_program_is_measured_twice_while_others_are_left(tuner: str) -> None:
    workload = parse_workload("conv2d:n=1,c=271,h=1,w=7,o=64,k=1,s=2,p=0")
    session = tune_session(make_task(VtaTarget(PYNQ), workload, make_explorer(tuner), 0), 32, 8)
    valid = session.history.hidden.rows(session.history.valid).matrix
    assert len(np.unique(valid, axis=0)) == len(valid)
