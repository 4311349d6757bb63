"""An artifact from a stranger: whatever it says, nothing outside of it is touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.networks.small_artifacts import build_small, rewrite_manifest
from tilewright.core.files import Json, digest
from tilewright.networks.artifact import ArtifactError, load

pytestmark = pytest.mark.attack

MINE = b"mine\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact that tests only read."""
    out = tmp_path_factory.mktemp("strange") / "art"
    build_small(out)
    return out


@pytest.fixture
def art(built: Path, tmp_path: Path) -> Path:
    """A stranger's artifact, beside a file of the user's."""
    shutil.copytree(built, tmp_path / "art")
    (tmp_path / "victim").write_bytes(MINE)
    return tmp_path / "art"


def listing(art: Path, name: str) -> None:
    """Let the manifest list another file, as what the user's file is."""
    said = {"bytes": len(MINE), "sha256": digest(MINE)}
    rewrite_manifest(art, lambda manifest: manifest["files"].update({name: said}))


NAMES = (
    "../victim", "runtime/../../victim", "../art/../victim", "./../victim", "..", "", "runtime/",
    "/{}/victim", "//{}/victim", ".hidden", "runtime/.git/config", "a//b", "a\\..\\b", "a\nb", "é",
    "a/b/c/d/e", "x" * 65,
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leads_elsewhere_is_neither_read_nor_removed(name: str, art: Path) -> None:
    listing(art, name.format(str(art.parent).lstrip("/")))
    with pytest.raises(ArtifactError, match="which is no name of a file in an artifact"):
        load(art)
    build_small(art, 4)
    assert (art.parent / "victim").read_bytes() == MINE
    assert load(art).name == "small"


def test_a_link_in_it_is_not_followed(art: Path) -> None:
    (art / "back").symlink_to("..")
    listing(art, "back/victim")
    with pytest.raises(ArtifactError, match="back is a symbolic link"):
        load(art)
    build_small(art, 4)
    assert (art.parent / "victim").read_bytes() == MINE


def test_a_file_of_the_users_that_it_claims_stays(art: Path) -> None:
    (art / "notes.txt").write_bytes(MINE[:-1])
    listing(art, "notes.txt")
    build_small(art, 4)
    assert (art / "notes.txt").read_bytes() == MINE[:-1]
    assert "notes.txt" not in json.loads((art / "manifest.json").read_text())["files"]


@pytest.mark.parametrize("files", [None, [], "network.bin"])
def test_a_manifest_without_a_list_of_files_is_one_message(files: Json, art: Path) -> None:
    rewrite_manifest(art, lambda manifest: manifest.update(files=files))
    with pytest.raises(ArtifactError, match=r"manifest\.json does not list the artifact's files"):
        load(art)
    build_small(art, 4)
    assert load(art).name == "small"
