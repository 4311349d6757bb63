"""Checks every target against the target contract, and that broken targets violate it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.evaluation.tuner_conformance import ToyTarget
from tilewright.targets import Lowered, Measurements, Target, make_target
from tilewright.targets.conformance import CHECKS
from tilewright.targets.features import Features
from tilewright.targets.subprocess_target import NAMED, IsolatedTarget
from tilewright.targets.workload import Workload, parse_workload

DENSE = parse_workload("dense:n=1,c=32,o=48")
POOL = parse_workload("max_pool:n=1,c=32,h=9,w=9,k=3,s=2,p=1")
AVERAGED = parse_workload("conv2d:n=1,c=32,h=9,w=9,o=32,k=3,s=2,p=1,avg=5")
CONV = parse_workload("conv2d:n=1,c=32,h=9,w=9,o=32,k=3,s=2,p=1")
TABLE = Path(__file__).parents[1] / "data" / "tvm-vta" / "C10.csv.gz"


def _isolated() -> Target:
    name = {"text": "vta-pynq", "space": "template"}
    return IsolatedTarget(NAMED, name, beside=make_target("vta-pynq", "template"))


def _replay() -> Target:
    return make_target(f"replay:{TABLE}")


def _replayed_workload() -> Workload:
    return next(iter(_replay().workloads.values()))  # type: ignore[attr-defined]


TARGETS: dict[str, tuple[Callable[[], Target], Workload]] = {
    "toy": (ToyTarget, CONV),
    "replay": (_replay, _replayed_workload()),
    "isolated": (_isolated, DENSE),
    **{
        f"vta-pynq {space}": (lambda space=space: make_target("vta-pynq", space), work)
        for space in ("extended", "template", "unchecked", "stock")
        for work in (CONV,)
    },
    "vta-pynq pool": (lambda: make_target("vta-pynq"), POOL),
    "vta-pynq average": (lambda: make_target("vta-pynq"), AVERAGED),
    "huge dense": (lambda: make_target("huge"), DENSE),
    "gemmini dense": (lambda: make_target("gemmini"), DENSE),
    "gemmini convolution": (lambda: make_target("gemmini"), CONV),
}


SLOW = {
    "isolated": pytest.mark.slow(seconds=2),  # starts and kills processes
    "vta-pynq unchecked": pytest.mark.slow(seconds=0.6),  # verifies measured programs
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in TARGETS])
def test_target_keeps_the_contract(name: str, check: str) -> None:
    make, workload = TARGETS[name]
    CHECKS[check](make, workload)


class Forgetful(ToyTarget):
    """Broken target that has hidden features for configs that did not compile."""

    def lower(self, workload: Workload, configs: np.ndarray) -> Lowered:
        lowered = super().lower(workload, configs)
        numbers = np.nan_to_num(lowered.hidden.matrix)
        return replace(lowered, hidden=Features(numbers, lowered.hidden.columns))


class Optimist(ToyTarget):
    """Broken target that reports all configs as valid."""

    def measure(self, lowered: Lowered) -> Measurements:
        measured = super().measure(lowered)
        measured.status[:] = "valid"
        return measured


class Moody(ToyTarget):
    """Broken target that claims to be deterministic but measures other cycles each time."""

    calls = 0

    def measure(self, lowered: Lowered) -> Measurements:
        measured = super().measure(lowered)
        Moody.calls += 1
        return replace(measured, cycles=np.where(measured.valid, 100 + Moody.calls, -1))


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Forgetful, "types_its_failures"),
        (Optimist, "measures_honestly"),
        (Moody, "measures_what_was_lowered"),
    ],
)
def test_a_broken_target_is_found_out(broken: type[ToyTarget], check: str) -> None:
    with pytest.raises(AssertionError):
        CHECKS[check](broken, CONV)
