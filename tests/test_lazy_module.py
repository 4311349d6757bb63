"""Checks that a library behind `lazy_module` is imported on its first use, and not before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tilewright.core.lazy_module import lazy_module


def test_the_first_attribute_imports_the_library() -> None:
    program = (
        "import sys\n"
        "from tilewright.core.lazy_module import lazy_module\n"
        "parser = lazy_module('xml.etree.ElementTree')\n"
        "assert 'xml' not in sys.modules\n"
        "assert parser.fromstring('<a/>').tag == 'a'\n"
        "assert 'xml.etree.ElementTree' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True)


def test_what_is_missing_is_told_when_it_is_used() -> None:
    absent = lazy_module("tilewright_has_no_such_library")
    with pytest.raises(ModuleNotFoundError, match="tilewright_has_no_such_library"):
        _ = absent.anything
    with pytest.raises(AttributeError, match="anything"):
        _ = lazy_module("json").anything


def test_kernels_for_a_processor_are_known_without_tvm() -> None:
    program = (
        "import sys\n"
        "import tilewright.targets.cpu.kernels.kernel_registry, tilewright.targets.cpu.compile\n"
        "assert 'tvm' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True)
