"""Every registered tuner keeps the contract of `search.conformance`."""

import pytest

from models import make_explorer
from search.conformance import CHECKS
from search.registry import tuners


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", tuners())
def test_tuner_keeps_the_contract(name: str, check: str) -> None:
    if missing := tuners()[name].missing:
        pytest.skip(f"{name} needs {missing}")
    CHECKS[check](lambda: make_explorer(name))
