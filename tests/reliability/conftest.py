"""The uninterrupted run that the interrupted ones are held against."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Place
from tests.reliability.commands import Whole, killed, left


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    place = Place(tmp_path_factory.mktemp("whole"))
    assert killed(place, -1) == 0
    note = (place.folder / "notes").read_text().splitlines()[-1]
    assert "unwatched 0" in note, note
    return left(place)
