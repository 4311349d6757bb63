"""Runs the examples in docstrings. Modules without examples are not imported."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("targets", "networks", "search", "models", "evaluation", "tuning", "hardware_search")
CHOSEN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def failures(module: ModuleType) -> int:
    return doctest.testmod(module, optionflags=CHOSEN).failed  # doctest prints the differences


@pytest.mark.parametrize("room", ROOMS)
def test_examples_in_docstrings_hold(room: str) -> None:
    files = [
        path for path in (ROOT / "tilewright" / room).rglob("*.py") if ">>> " in path.read_text()
    ]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(files)]
    modules = [importlib.import_module(name.removesuffix(".__init__")) for name in names]
    assert [module.__name__ for module in modules if failures(module)] == []


@pytest.mark.parametrize("decorator", ["", "@numba.njit"], ids=["python", "kernel"])
@pytest.mark.parametrize(("said", "wrong"), [(3, 0), (4, 1)])
def test_an_example_that_does_not_hold_is_noticed(decorator: str, said: int, wrong: int) -> None:
    module = ModuleType("example")
    text = f"import numba\n{decorator}\ndef after(n):\n  '>>> after(2)\\n{said}'\n  return n + 1\n"
    exec(text, module.__dict__)
    assert failures(module) == wrong
