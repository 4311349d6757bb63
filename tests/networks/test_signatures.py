"""Checks that artifacts built by the user run without a flag, and all others need the flag."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tilewright.core.files import Json, digest
from tilewright.core.signing import KEY_FILE
from tilewright.networks.artifact import ArtifactError, load
from tilewright.networks.artifact.manifest import (
    read_files,
    read_manifest,
    reason_for_doubt,
    serialise_manifest,
    write_folder,
)

pytestmark = pytest.mark.attack

ROOT = Path(__file__).parents[2]
MANIFEST: Mapping[str, Json] = {
    "network": "net", "layers": [{"name": "ä\u2028", "macs": 2**60, "step": 0.1, "sizes": (1, 2)}],
    "specification": {"kind": "cpu", "keys": {}}, "kind": "no kind",
}  # fmt: skip
CODE = {"network.so": b"\x7fELF code", "check.npz": b"data"}
FOREIGN = "was built by someone else or in another workspace, or was copied or changed afterwards"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def art(workspace: Path, tmp_path: Path) -> Path:
    write_folder(tmp_path / "art", CODE, MANIFEST)
    return tmp_path / "art"


def doubt(folder: Path) -> str:
    return reason_for_doubt(read_manifest(folder), folder)


def rewritten(folder: Path, change: Callable[[dict[str, Json]], object]) -> Path:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("sha256")
    change(manifest)
    (folder / "manifest.json").write_bytes(serialise_manifest(manifest))
    return folder


def test_what_the_user_built_counts_as_allowed(art: Path, workspace: Path) -> None:
    assert doubt(art) == ""
    art.rename(art.with_name("moved"))
    assert doubt(art.with_name("moved")) == ""
    write_folder(art.with_name("moved"), {**CODE, "more.bin": b""}, MANIFEST)
    assert doubt(art.with_name("moved")) == ""
    assert {path.name for path in workspace.iterdir()} == {KEY_FILE, f"{KEY_FILE}.seal"}


def test_the_key_is_the_users_alone(art: Path, workspace: Path) -> None:
    state = (workspace / KEY_FILE).lstat()
    assert stat.filemode(state.st_mode) == "-rw-------"
    key = (workspace / KEY_FILE).read_text()
    assert len(bytes.fromhex(key)) == 32
    assert key not in "".join(path.read_text("latin1") for path in art.iterdir())


def test_a_copy_still_needs_the_flag(art: Path) -> None:
    copy = shutil.copytree(art, art.with_name("copy"))
    assert FOREIGN in doubt(copy)
    with pytest.raises(ArtifactError, match=f"machine code.*{FOREIGN}.*--allow-code"):
        load(copy)


def test_an_artifact_of_another_workspace_needs_the_flag(
    art: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "other"))
    assert FOREIGN in doubt(art)
    assert not (tmp_path / "other").exists()  # reading creates no key
    write_folder(tmp_path / "second", CODE, MANIFEST)
    assert FOREIGN in doubt(art)
    assert doubt(tmp_path / "second") == ""


def test_a_workspace_that_came_with_the_artifact_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attacker packs a folder with an artifact and the key that signed it."""
    monkeypatch.delenv("TILEWRIGHT_HOME", raising=False)
    (tmp_path / "theirs").mkdir()
    monkeypatch.chdir(tmp_path / "theirs")
    write_folder(Path("art"), CODE, MANIFEST)
    assert doubt(Path("art")) == ""
    shutil.copytree(tmp_path / "theirs", tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    # even if the folder has the inode number of the signed one
    monkeypatch.setattr(os, "stat", _with_inode(os.stat, (tmp_path / "theirs" / "art").stat()))
    assert FOREIGN in doubt(Path("art"))


def _with_inode(real: Callable[..., os.stat_result], other: os.stat_result) -> object:
    def faked(path: object, *args: object, **kwargs: object) -> os.stat_result:
        result = real(path, *args, **kwargs)
        same = str(path) == "art"
        return os.stat_result((result[0], other.st_ino, *result[2:])) if same else result

    return faked


CHANGES: Mapping[str, Callable[[dict[str, Json]], object]] = {
    "another file": lambda m: m["files"].update({"evil.so": {"bytes": 0, "sha256": digest(b"")}}),
    "other bytes": lambda m: m["files"]["network.so"].update(sha256=digest(b"evil")),
    "another network": lambda m: m.update(network="evil"),
    "a number": lambda m: m["layers"][0].update(macs=2**60 + 1),
    "another signature": lambda m: m.update(signature="0" * 64),
    "no text": lambda m: m.update(signature=["é"]),
    "no ASCII": lambda m: m.update(signature="é" * 64),
    "no signature": lambda m: m.pop("signature"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_refused(art: Path, change: str) -> None:
    with pytest.raises(ArtifactError, match="--allow-code"):
        load(rewritten(art, CHANGES[change]))


def test_changed_bytes_of_a_signed_artifact_are_refused(art: Path) -> None:
    (art / "network.so").write_bytes(b"\x7fELF evil")
    assert doubt(art) == ""
    with pytest.raises(ArtifactError, match=r"network\.so has other bytes"):
        read_files(art, read_manifest(art))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_may_know_signs_nothing(art: Path, workspace: Path, mode: int) -> None:
    (workspace / KEY_FILE).chmod(mode)
    assert "its signature cannot be checked" in doubt(art)
    made = write_folder(art, CODE, MANIFEST)
    assert "other users may read or write it" in str(made["unsigned"])


def test_a_folder_without_code_is_not_signed(workspace: Path, tmp_path: Path) -> None:
    made = write_folder(tmp_path / "art", {"network.bin": b"data"}, MANIFEST)
    assert not {"signature", "unsigned"} & set(made)
    assert not workspace.exists()


@pytest.mark.slow(seconds=3)
def test_builds_that_start_at_once_sign_with_one_key(workspace: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from tilewright.networks.artifact.manifest import write_folder\n"
        "sys.stdin.read(); write_folder(Path(sys.argv[1]), {'network.so': b'x'}, {'layers': []})"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    commands = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", program, tmp_path / f"art{number}"], env=environment,
            stdin=subprocess.PIPE, text=True,
        )
        for number in range(6)
    ]  # fmt: skip
    for command in commands:
        assert command.stdin is not None
        command.stdin.close()
    assert [command.wait() for command in commands] == [0] * len(commands)
    assert [doubt(tmp_path / f"art{number}") for number in range(6)] == [""] * 6
    assert len(list(workspace.iterdir())) == 2
