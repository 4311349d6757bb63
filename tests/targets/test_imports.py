"""Modules that are changed as they are imported."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tilewright.core.imports import after_import, look_elsewhere

SOURCE = """
FILE = "settings.toml"

def place():
    def candidates():
        yield "settings.toml"
    return [*candidates(), "settings.toml"]
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a module that is not imported yet, another for every test."""
    name = f"library_{request.node.name}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_a_library_looks_for_another_file(library: str) -> None:
    look_elsewhere(library, {"settings.toml": "/dev/null"})
    module = importlib.import_module(library)
    assert module.FILE == "/dev/null"
    assert module.place() == ["/dev/null", "/dev/null"]


def test_or_only_one_of_its_functions_does(library: str) -> None:
    look_elsewhere(library, {"settings.toml": "/dev/null"}, within="candidates")
    module = importlib.import_module(library)
    assert module.FILE == "settings.toml"
    assert module.place() == ["/dev/null", "settings.toml"]


def test_a_name_that_is_gone_stops_the_import(library: str) -> None:
    look_elsewhere(library, {"settings.toml": "/dev/null", "settings.ini": "/dev/null"})
    with pytest.raises(ImportError, match=r"no longer names \['settings.ini'\]"):
        importlib.import_module(library)


def test_a_module_is_changed_when_it_comes_or_at_once(library: str) -> None:
    def name(module: ModuleType) -> None:
        module.FILE = "mine"  # type: ignore[attr-defined]

    after_import(library, name)
    module = importlib.import_module(library)
    assert module.FILE == "mine"
    module.FILE = "theirs"
    after_import(library, name)
    assert module.FILE == "mine"
