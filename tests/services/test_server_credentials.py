"""Checks that only the user knows a workspace's secret, and that a planted secret is not used."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.core.private_files import SecretError
from tilewright.services.server_credentials import secret_path, workspace_secret
from tilewright.services.workspace import Workspace, WorkspaceError

pytestmark = pytest.mark.attack

ROOT = Path(__file__).parents[2]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "home").mkdir()
    return Workspace(tmp_path / "home")


def test_it_is_made_once_for_its_user_alone(workspace: Workspace) -> None:
    before = os.umask(0)
    try:
        secret = workspace_secret(workspace)
    finally:
        os.umask(before)
    assert len(bytes.fromhex(secret)) == 32
    assert workspace_secret(workspace) == secret
    state = secret_path(workspace).lstat()
    assert stat.filemode(state.st_mode) == "-rw-------"
    assert state.st_uid == os.geteuid()
    assert len(list(workspace.root.iterdir())) == 2


@pytest.mark.slow(seconds=2)
def test_commands_that_start_at_once_know_the_same(workspace: Workspace) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from tilewright.services.workspace import Workspace\n"
        "from tilewright.services.server_credentials import workspace_secret\n"
        "sys.stdin.read(); print(workspace_secret(Workspace(Path(sys.argv[1]))))"
    )
    commands = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", program, str(workspace.root)], cwd=ROOT, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(8)
    ]  # fmt: skip
    for command in commands:
        assert command.stdin is not None
        command.stdin.close()
    result = {command.stdout.read() for command in commands if command.stdout is not None}
    assert [command.wait() for command in commands] == [0] * 8
    assert result == {workspace_secret(workspace) + "\n"}


def _copied(workspace: Workspace, there: Path) -> None:
    shutil.copytree(workspace.root, there)


def _unpacked(workspace: Workspace, there: Path) -> None:
    with tarfile.open(there.with_suffix(".tar"), "w") as archive:
        archive.add(workspace.root, there.name)
    with tarfile.open(there.with_suffix(".tar")) as archive:
        archive.extractall(there.parent, filter="tar")


@pytest.mark.parametrize("bring", [_copied, _unpacked])
def test_one_that_came_with_a_folder_is_not_believed(
    workspace: Workspace, tmp_path: Path, bring: Callable[[Workspace, Path], None]
) -> None:
    planted = workspace_secret(workspace)
    bring(workspace, tmp_path / "brought")
    brought = Workspace(tmp_path / "brought")
    assert secret_path(brought).read_text() == planted
    assert stat.S_IMODE(secret_path(brought).stat().st_mode) == 0o600
    assert workspace_secret(brought) != planted
    assert workspace_secret(brought) == workspace_secret(brought)
    assert workspace_secret(workspace) == planted


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 64, "z" * 64, "0" * 10_000])
def test_one_that_was_edited_is_made_anew(workspace: Workspace, text: str) -> None:
    secret = workspace_secret(workspace)
    secret_path(workspace).write_text(text)
    assert workspace_secret(workspace) not in (secret, text)


def _link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def _hard_link(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


def _pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path, 0o600)


def _folder(path: Path, victim: Path) -> None:
    path.mkdir(0o700)


def _readable(path: Path, victim: Path) -> None:
    path.write_text("0" * 64)
    path.chmod(0o640)


def _writable(path: Path, victim: Path) -> None:
    path.write_text("0" * 64)
    path.chmod(0o602)


def _foreign(path: Path, victim: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path.write_text("0" * 64)
    path.chmod(0o600)
    os.chown(path, 65534, 65534)


@pytest.mark.parametrize("name", ["secret", "secret.seal"])
@pytest.mark.parametrize("lay", [_link, _hard_link, _pipe, _folder, _readable, _writable, _foreign])
def test_what_others_may_know_is_one_message(
    workspace: Workspace, tmp_path: Path, lay: Callable[[Path, Path], None], name: str
) -> None:
    workspace_secret(workspace)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    victim.chmod(0o600)
    (workspace.root / name).unlink()
    lay(workspace.root / name, victim)
    with pytest.raises(SecretError, match=rf"{name} cannot be used .*; remove the file and repeat"):
        workspace_secret(workspace)
    assert victim.read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkspaceError, match="cannot store a secret"):
        workspace_secret(Workspace(tmp_path / "file"))
