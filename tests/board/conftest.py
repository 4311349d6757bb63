"""Fixtures with compiled C runtimes. Each variant is built once per test session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.board.boards import PAIRED, SANITIZED, STRICT, built_runtime


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a runtime built with `-Werror` and the address and undefined-behaviour sanitizers."""
    return built_runtime(tmp_path_factory.mktemp("sanitized"), SANITIZED)


@pytest.fixture(scope="session")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a sanitized runtime for a machine with two rows and eight channels per block."""
    return built_runtime(tmp_path_factory.mktemp("paired"), SANITIZED, PAIRED)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a runtime built as a user builds it, for a driver with 64-bit addresses."""
    return built_runtime(tmp_path_factory.mktemp("plain"), f"{STRICT} -DUSE_VTA64")
