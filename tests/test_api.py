"""Checks that `import tilewright` is fast, and its public names and examples are documented."""

from __future__ import annotations

import doctest
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright import api, inference

HEAVY = (
    "tvm", "prefect", "mlflow", "numpy", "numba", "pandas", "onnx", "xgboost", "typer", "pydantic",
)  # fmt: skip
CHOSEN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_importing_the_package_loads_no_library() -> None:
    code = f"import sys, tilewright; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_public_name_is_there_and_documented() -> None:
    for name in tilewright.__all__:
        value = getattr(tilewright, name)
        if name != "__version__":
            assert inspect.getdoc(value), name
    assert sorted(tilewright.__all__) == dir(tilewright)
    with pytest.raises(AttributeError, match="has no attribute 'tunes'"):
        _ = tilewright.tunes


@pytest.mark.parametrize("room", ["tuning", "targets", "hardware_search", "networks", "models"])
def test_no_module_takes_the_place_of_a_function(room: str) -> None:
    """Importing `tilewright.x` sets the attribute `x` of the package."""
    importlib.import_module(f"tilewright.{room}")
    assert callable(tilewright.codesign)
    assert room not in tilewright.__all__


ORDER = (
    "tune", "build", "load", "run", "compare", "codesign", "runs", "trials", "load_model",
)  # fmt: skip
"""Functions with examples; later examples use what earlier ones wrote."""


@pytest.mark.nightly(seconds=60)
def test_the_examples_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"tilewright": tilewright, "np": np}
    values = [
        item
        for module in (api, inference)
        for item in doctest.DocTestFinder().find(module, "api", globs=names)
        if item.examples
    ]
    order = [f"api.{name}" for name in ORDER]
    tests = sorted(values, key=lambda item: order.index(item.name))
    assert [test.name for test in tests] == order
    runner = doctest.DocTestRunner(optionflags=CHOSEN)
    assert [test.name for test in tests if runner.run(test, clear_globs=False).failed] == []
