"""Makes folders to run commands in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tilewright.services.prefect_server import Login


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def guest(tmp_path: Path, prefect_server: Login) -> Place:
    return Place(tmp_path, prefect_server)
