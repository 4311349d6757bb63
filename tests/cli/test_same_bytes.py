"""Checks that repeating a command in the same workspace writes identical bytes."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Place

OF_A_RUN = re.compile(r'^ *"(begun|wall_seconds|\w+_run_id)": .*$', re.M)
"""Lines of JSON that differ between runs: times and run IDs."""
OF_A_FOLDER = (".tune", "trials.sqlite")
"""Files that differ between folders: one identifies its folder, and equal databases may order their
pages differently."""


@pytest.mark.slow(seconds=13)
def test_the_second_time_every_file_has_the_same_bytes(guest: Place) -> None:
    """The first command computes the results; the second one finds them in the cache."""
    command = ("tune", "digits_cnn", "--layers", "fc", "--tuner", "random", "--trials", "8")
    written = []
    for out in "first", "second":
        done = guest.run(*command, "--out", out)
        assert done.returncode == 0, done.stderr
        files = {
            path.name: path.read_bytes()
            for path in sorted((guest.folder / out).iterdir())
            if path.name not in OF_A_FOLDER
        }
        written.append(files)
    first, second = written
    assert set(first) == set(second) >= {"schedules.json", "summary.json", "trials.parquet"}
    for name, data in first.items():
        if name in ("run.json", "summary.json"):
            assert OF_A_RUN.sub("", data.decode()) == OF_A_RUN.sub("", second[name].decode()), name
        else:
            assert data == second[name], name
