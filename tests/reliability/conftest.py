"""Fixture with an uninterrupted run, to which the interrupted runs are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.reliability.commands import Whole, killed, left
from tests.sharing import made_once
from tilewright.services.prefect_server import Login


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, prefect_server: Login) -> Whole:
    """Return one finished run. All tests of all workers share it and only read it."""

    def tune(folder: Path) -> None:
        assert killed(Place(folder, prefect_server), -1) == 0
        note = (folder / "notes").read_text().splitlines()[-1]
        assert "unwatched 0" in note, note

    return left(Place(made_once(tmp_path_factory, "whole", tune)))
