"""Tests the progress report of kernel compilation: the current kernel and the total number."""

from __future__ import annotations

import gc
from pathlib import Path

import numba as nb
import numpy as np
import pytest
from numba.extending import overload
from numpy.typing import NDArray

from tilewright.targets.gemmini import numba_decorators as gemmini_decorators
from tilewright.targets.kernel_compilation import KernelSet, describe_compilation
from tilewright.targets.kernel_listener import announce
from tilewright.targets.vta import numba_decorators as vta_decorators
from tilewright.targets.vta.lowering.batch import _LOWERINGS, row_lowering

TARGETS = Path(vta_decorators.__file__).parents[1]


def count_decorated(folder: Path, decorator: str) -> int:
    sources = (path.read_text() for path in folder.rglob("*.py"))
    return sum(
        line.strip() == f"@{decorator}" for source in sources for line in source.splitlines()
    )


def test_totals_are_the_kernels_in_the_sources() -> None:
    vta = count_decorated(TARGETS / "vta", "kernel") + len(_LOWERINGS)
    assert vta == vta_decorators.KERNELS
    assert count_decorated(TARGETS / "gemmini", "compiled") == gemmini_decorators.KERNELS


def test_a_kernel_is_named_while_it_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "kept.1.nbc").touch()
    heard: list[str] = []

    def probe() -> int:
        return 1

    @overload(probe)
    def compile_probe() -> object:
        heard.append(describe_compilation())
        return lambda: 1

    kernel = nb.njit(lambda: probe())
    announce(kernel, KernelSet("test kernels", 3, str(tmp_path)))
    assert describe_compilation() == ""
    assert kernel() == 1
    assert heard[0] == "compiling test kernels, 2 of 3 (once per installation)"
    assert describe_compilation() == ""


def test_a_kernel_that_cannot_be_compiled_is_not_named_for_ever(tmp_path: Path) -> None:
    kernel = nb.njit(lambda: unknown_name)  # type: ignore[name-defined]  # noqa: F821
    announce(kernel, KernelSet("test kernels", 3, str(tmp_path)))
    with pytest.raises(nb.core.errors.TypingError):
        kernel()
    assert describe_compilation() == ""


@vta_decorators.helper
def triple(number: int) -> int:
    return 3 * number + 1


@vta_decorators.stage
def fill(values: NDArray[np.int64], first: int) -> tuple[int, int]:
    for index in range(len(values)):
        if values[index] < 0:
            raise ValueError("a negative value")
        values[index] += triple(first + index)
    return values[0], triple(len(values))


@nb.njit
def fill_and_sum(values: NDArray[np.int64], first: int) -> int:
    lowest, number = fill(values, first)
    return lowest + number * values.sum() + triple(first)


def test_parts_of_a_kernel_compute_and_raise_as_in_python() -> None:
    compiled, interpreted = np.arange(6), np.arange(6)
    assert fill_and_sum(compiled, 4) == fill_and_sum.py_func(interpreted, 4)
    assert (compiled == interpreted).all()
    with pytest.raises(ValueError, match="a negative value"):
        fill_and_sum(np.arange(-1, 4), 4)


def test_garbage_is_collected_again_after_a_compilation(tmp_path: Path) -> None:
    heard: list[bool] = []

    def probe() -> int:
        return 1

    @overload(probe)
    def compile_probe() -> object:
        heard.append(gc.isenabled())
        return lambda: 1

    kernel = nb.njit(lambda: probe())
    broken = nb.njit(lambda: unknown_name)  # type: ignore[name-defined]  # noqa: F821
    for function in (kernel, broken):
        announce(function, KernelSet("test kernels", 3, str(tmp_path)))
    assert kernel() == 1
    assert heard[0] is False
    assert gc.isenabled()
    with pytest.raises(nb.core.errors.TypingError):
        broken()
    assert gc.isenabled()


def test_compiled_symbols_of_lowerings_have_different_names() -> None:
    """One process may load caches that different processes wrote."""
    names = {row_lowering(pipeline).py_func.__qualname__ for pipeline in _LOWERINGS}
    assert len(names) == len(_LOWERINGS) > 1
