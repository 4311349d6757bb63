"""Checks that a workspace belongs to one user, and no other user can write to it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.services.workspace import Workspace, WorkspaceError, _make_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_workspace_is_open_to_its_user_alone(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "new" / ".tilewright")
    _make_private(workspace)
    assert mode(workspace.root) == 0o700


@pytest.mark.attack
@pytest.mark.parametrize("rights", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_can_write_to_becomes_no_workspace(
    rights: int, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(rights)
    with pytest.raises(WorkspaceError, match=f"chmod go-w {tmp_path / 'home'}"):
        _make_private(Workspace(tmp_path / "home"))
    assert mode(tmp_path / "home") == rights


def test_a_workspace_of_an_earlier_version_is_closed_to_writers(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "home")
    workspace.root.mkdir()
    workspace.version_file.write_text('{"version": 1}')
    workspace.root.chmod(0o775)
    _make_private(workspace)
    assert mode(workspace.root) == 0o755


@pytest.mark.attack
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_workspace_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    os.chown(tmp_path / "home", 12345, -1)
    with pytest.raises(WorkspaceError, match="belongs to another user"):
        _make_private(Workspace(tmp_path / "home"))


@pytest.mark.slow(seconds=2)
def test_a_workspace_that_is_a_link_is_used(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / ".tilewright").symlink_to(tmp_path / "large disk")
    program = "from tilewright.services.workspace import use_workspace; print(use_workspace().root)"
    kept = {name: value for name, value in os.environ.items() if name != "TILEWRIGHT_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True,
        env=kept | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.stdout.strip() == str((tmp_path / "large disk").resolve())
