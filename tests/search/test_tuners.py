"""Checks every registered tuner against the contract in `evaluation.tuner_conformance`."""

import pytest

from tilewright.evaluation.tuner_conformance import CHECKS
from tilewright.models import make_explorer
from tilewright.search.registry import registered_tuners

SLOW = {
    name: pytest.mark.slow(seconds=seconds)
    for name, seconds in [
        ("optuna", 3),
        ("chameleon", 1),
        ("default-blind", 4),
        ("p+a", 1),
        ("p+v", 1),
        ("ml2tuner", 4),
    ]
}
OPTIONS = {name: {"batch": 8} for name in ("default", "default-blind", "ml2tuner")}
"""Larger batches for slow tuners. Rounds of two trials would take four times as long and test
nothing more."""


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SLOW.get(name, ())) for name in registered_tuners()]
)
def test_tuner_keeps_the_contract(name: str, check: str) -> None:
    CHECKS[check](lambda: make_explorer(name, OPTIONS.get(name)))
