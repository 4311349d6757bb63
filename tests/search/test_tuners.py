"""Every registered tuner keeps the contract of `search.conformance`."""

import pytest

from models import make_explorer
from search.conformance import CHECKS
from search.registry import tuners

SLOW = {"optuna": pytest.mark.slow(seconds=3)}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SLOW.get(name, ())) for name in tuners()]
)
def test_tuner_keeps_the_contract(name: str, check: str) -> None:
    if missing := tuners()[name].missing:
        pytest.skip(f"{name} needs {missing}")
    CHECKS[check](lambda: make_explorer(name))
