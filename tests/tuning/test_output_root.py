"""Checks that the results of deployed runs stay below the configured root folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.tuning.output_dir import OutputError, below_root

pytestmark = pytest.mark.attack


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("root/in", "root-beside", "else"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "root" / "out").symlink_to(tmp_path / "else")
    (tmp_path / "root" / "back").symlink_to(tmp_path / "root" / "in")
    (tmp_path / "root" / "loop").symlink_to("loop")
    (tmp_path / "root" / "dangling").symlink_to(tmp_path / "later")
    return tmp_path / "root"


@pytest.mark.parametrize("out", ["in", "new/deep", "in/../in", "back/x", ".", "a/../b"])
def test_folders_below_it_count_from_it(root: Path, out: str) -> None:
    place = below_root(Path(out), str(root))
    assert place.is_relative_to(root)
    assert below_root(root / out, str(root)) == place


def test_names_stay_as_they_are_in_the_working_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    assert below_root(Path("tuned/x"), str(root)) == Path("tuned/x")


@pytest.mark.parametrize("out", ["..", "../root-beside", "/", "/tmp", "in/../../else", "out",
                                 "out/x", "out/../x", "dangling/x", "new/../../else"])  # fmt: skip
def test_folders_elsewhere_are_one_message_that_names_both(root: Path, out: str) -> None:
    with pytest.raises(OutputError, match="outside") as refused:
        below_root(Path(out), str(root))
    assert str(root) in str(refused.value)
    assert f"the output directory {out} is /" in str(refused.value)


@pytest.mark.parametrize("out", ["loop/x", "zero\0byte"])
def test_what_is_no_name_of_a_folder_is_one_message(root: Path, out: str) -> None:
    with pytest.raises(OutputError, match="not a folder below"):
        below_root(Path(out), str(root))


def test_without_a_root_any_folder_is_taken(root: Path) -> None:
    assert below_root(Path("/anywhere"), "") == Path("/anywhere")
