"""Tests the deletion of a run's files. Most tests forge a record to delete other files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tune_bare import tune_bare
from tilewright.search import TrialStore
from tilewright.search.trial_store import FILE, RunInUse
from tilewright.tuning import delete_output as deletion
from tilewright.tuning.delete_output import NotDeleted, check_deletable, delete_output

pytestmark = [pytest.mark.attack, pytest.mark.slow(seconds=2)]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an output directory with a finished run."""
    out = tmp_path_factory.mktemp("deleted") / "out"
    tune_bare(model="digits_cnn", layers=["fc"], trials=2, batch=2, tuner="random", out=str(out))
    return out


@pytest.fixture
def root(tuned: Path, tmp_path: Path) -> Path:
    """Return a root folder with a copy of the run in `tuned/one`. A victim is beside the root."""
    shutil.copytree(tuned, tmp_path / "root" / "tuned" / "one")
    shutil.copytree(tuned, tmp_path / "victim")
    return tmp_path / "root"


def files(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def test_all_files_of_a_run_and_its_directory_are_deleted(root: Path) -> None:
    out = root / "tuned" / "one"
    before = files(out)
    done = delete_output(out, root, keep_trials=False)
    assert before <= set(done.files)
    assert done.left == ()
    assert files(root / "tuned") == set()


def test_files_of_the_user_stay_with_the_directory(root: Path) -> None:
    out = root / "tuned" / "one"
    (out / "notes.txt").write_text("mine")
    (out / "explain.html").mkdir()  # a folder where a file could be
    done = delete_output(out, root, keep_trials=False)
    assert done.left == ("explain.html", "notes.txt")
    assert files(out) == {"notes.txt", "explain.html"}


def test_trials_that_other_runs_use_stay(root: Path) -> None:
    out = root / "tuned" / "one"
    delete_output(out, root, keep_trials=True)
    assert files(out) == {FILE}
    with TrialStore(out / FILE, read_only=True) as store:
        assert store.runs()


def test_trials_elsewhere_are_deleted_with_the_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second SQLite file stands in for a team's PostgreSQL database."""
    out, elsewhere = root / "tuned" / "one", root / "team.sqlite"
    shutil.copy(out / FILE, elsewhere)
    monkeypatch.setattr(TrialStore, "postgres_location", lambda store: (elsewhere, ""))
    delete_output(out, root, keep_trials=False)
    with TrialStore(elsewhere, read_only=True) as store:
        assert store.runs() == {}


Attack = Callable[[Path], Path]


def _outside(root: Path) -> Path:
    return root.parent / "victim"


def _dots(root: Path) -> Path:
    return root / "tuned" / ".." / ".." / "victim"


def _root_itself(root: Path) -> Path:
    shutil.copytree(root / "tuned" / "one", root, dirs_exist_ok=True)
    return root


def _link_to_it(root: Path) -> Path:
    (root / "link").symlink_to(root.parent / "victim")
    return root / "link"


def _link_on_the_way(root: Path) -> Path:
    (root / "way").symlink_to(root.parent)
    return root / "way" / "victim"


def _link_inside(root: Path) -> Path:
    (root / "near").symlink_to(root / "tuned" / "one")
    return root / "near"


def _link_to_itself(root: Path) -> Path:
    (root / "loop").symlink_to(root / "loop")
    return root / "loop"


def _without_a_run(root: Path) -> Path:
    (root / "tuned" / "one" / "run.json").unlink()
    return root / "tuned" / "one"


def _zero_byte(root: Path) -> Path:
    return root / "a\0b"


def _a_file(root: Path) -> Path:
    return root / "tuned" / "one" / "summary.json"


def _gone(root: Path) -> Path:
    return root / "tuned" / "two"


@pytest.mark.parametrize(
    "attack",
    [
        _outside, _dots, _root_itself, _link_to_it, _link_on_the_way, _link_inside,
        _link_to_itself, _without_a_run, _zero_byte, _a_file, _gone,
    ],
)  # fmt: skip
def test_nothing_is_deleted_elsewhere(root: Path, attack: Attack) -> None:
    folder = attack(root)
    before = _tree(root.parent)
    with pytest.raises(NotDeleted):
        delete_output(folder, root, keep_trials=False)
    assert _tree(root.parent) == before


def test_nothing_of_another_user_is_deleted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _tree(root.parent)
    monkeypatch.setattr(os, "getuid", lambda: 1 + os.geteuid())
    with pytest.raises(NotDeleted, match="another user"):
        delete_output(root / "tuned" / "one", root, keep_trials=False)
    assert _tree(root.parent) == before


def test_a_run_that_goes_on_is_not_deleted(root: Path) -> None:
    out = root / "tuned" / "one"
    with TrialStore(out / FILE):
        for attempt in (
            lambda: check_deletable(out, root),
            lambda: delete_output(out, root, keep_trials=False),
        ):
            with pytest.raises(RunInUse):
                attempt()
    assert (out / "run.json").exists()
    assert (out / "summary.json").exists()


def test_links_are_deleted_and_not_what_they_lead_to(root: Path) -> None:
    out, victim = root / "tuned" / "one", root.parent / "victim"
    for name in (FILE, "summary.json", "trials.parquet"):
        (out / name).unlink()
        (out / name).symlink_to(victim / name)
    before = _tree(victim)
    delete_output(out, root, keep_trials=False)
    assert _tree(victim) == before
    assert not out.exists()


def test_a_directory_that_becomes_a_link_meanwhile_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory becomes a link after its path was checked."""
    out, victim, before = root / "tuned" / "one", root.parent / "victim", _tree(root / "tuned")

    def swap(folder: Path, root: Path) -> Path:
        out.rename(root / "moved")
        out.symlink_to(victim)
        return Path("tuned/one")

    monkeypatch.setattr(deletion, "_below", swap)
    kept = _tree(victim)
    with pytest.raises(NotDeleted, match="link"):
        delete_output(out, root, keep_trials=False)
    assert _tree(victim) == kept
    assert len(_tree(root / "moved")) == len(before) - 1


def test_a_damaged_database_does_not_keep_a_run(root: Path) -> None:
    out = root / "tuned" / "one"
    (out / FILE).write_bytes(b"SQLite format 3\0" + b"x" * 4096)
    delete_output(out, root, keep_trials=False)
    assert not out.exists()


def _tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(each.relative_to(folder)): each.read_bytes() if each.is_file() else None
        for each in folder.rglob("*")
    }
