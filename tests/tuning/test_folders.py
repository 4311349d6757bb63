"""Checks that an unusable output directory is refused before any work, without creating files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.tuning.output_dir import OutputError, check_folder


def test_a_folder_that_can_be_made_is_fine_and_is_not_made(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b")
    check_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    for folder in (locked, locked / "below"):
        with pytest.raises(OutputError, match=r"locked.*--out"):
            check_folder(folder)


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="not a folder"):
        check_folder(tmp_path / "file" / "below")
