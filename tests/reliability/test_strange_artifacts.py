"""Checks that an untrusted artifact cannot touch files outside its folder.

Its code must not run without permission.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import tracemalloc
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Place
from tests.networks.small_artifacts import build_small, rewrite_manifest
from tilewright.core.files import MAX_JSON_BYTES, Json, UnsafeFile, digest, pack_arrays
from tilewright.networks.artifact import ArtifactError, load
from tilewright.networks.artifact.manifest import MOST_BYTES
from tilewright.targets import make_target
from tilewright.targets.capabilities import HasSpecification, capability
from tilewright.targets.vta.board.runtime import SOURCES, source, sources_digest

pytestmark = pytest.mark.attack

MINE = b"mine\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an artifact, which tests only read."""
    out = tmp_path_factory.mktemp("strange") / "art"
    build_small(out)
    return out


@pytest.fixture
def art(built: Path, tmp_path: Path) -> Path:
    """Return a copy of the artifact, which plays an attacker's, next to a file of the user."""
    shutil.copytree(built, tmp_path / "art")
    (tmp_path / "victim").write_bytes(MINE)
    return tmp_path / "art"


def listing(art: Path, name: str) -> None:
    """Add a file to the manifest, with the size and digest of the user's file."""
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
    with pytest.raises(ArtifactError, match="which is not a valid file name in an artifact"):
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


# -- sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 6])
def test_files_that_are_large_together_are_not_read(count: int, art: Path) -> None:
    """Sparse files, for example, take no space on a disk."""
    size = MOST_BYTES // count
    said = {"bytes": size, "sha256": digest(b"")}
    for number in range(count):
        (art / f"f{number}").touch()
        os.truncate(art / f"f{number}", size)
        rewrite_manifest(art, lambda m, n=number: m["files"].update({f"f{n}": said}))  # type: ignore[misc]
    tracemalloc.start()
    with pytest.raises(ArtifactError, match="lists files of more than 1 GiB"):
        load(art)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_large_manifest_is_not_read(art: Path) -> None:
    os.truncate(art / "manifest.json", MAX_JSON_BYTES + 1)
    with pytest.raises(UnsafeFile, match="larger than the limit of 33554432 bytes"):
        load(art)


# -- code --------------------------------------------------------------------------------------

MARKS = '__attribute__((constructor)) static void run(void) {{ fopen("{}", "w"); }}\n'


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Return the path of a file that exists once code of the artifact has run."""
    return tmp_path / "ran"


def add_code(art: Path, name: str, mark: Path) -> None:
    """Add a library to the artifact that leaves a mark as soon as it is loaded."""
    source, path = art.parent / "code.c", art / name
    source.write_text("#include <stdio.h>\n" + MARKS.format(mark))
    path.parent.mkdir(exist_ok=True)
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    said = {"bytes": path.stat().st_size, "sha256": digest(path.read_bytes())}
    rewrite_manifest(art, lambda manifest: manifest["files"].update({name: said}))


def as_library(manifest: dict[str, Any]) -> None:
    """Change a manifest to that of a CPU library with the name of an accelerator."""
    described = capability(make_target("cpu"), HasSpecification)
    assert described is not None
    manifest["kind"], manifest["tvm"] = "library", version("apache-tvm")
    manifest["specification"] |= {"kind": "cpu", "keys": described.specification}


def test_a_library_named_for_an_accelerator_does_not_run(art: Path, mark: Path) -> None:
    add_code(art, "network.so", mark)
    (art / "check.npz").write_bytes(pack_arrays({"input image": np.zeros((1, 1, 12, 12))}))
    raw = (art / "check.npz").read_bytes()
    said = {"bytes": len(raw), "sha256": digest(raw)}
    rewrite_manifest(art, lambda manifest: manifest["files"].update({"check.npz": said}))
    rewrite_manifest(art, as_library)
    with pytest.raises(ArtifactError, match=r"machine code, .*: network\.so \(the whole network\)"):
        load(art)
    assert not mark.exists()
    ctypes.CDLL(str(art / "network.so"))
    assert mark.exists()  # the code runs if it is allowed


def test_islands_that_would_not_run_are_refused_too(art: Path, mark: Path) -> None:
    add_code(art, "cpu/islands.so", mark)
    with pytest.raises(ArtifactError, match=r"cpu/islands\.so \(changes of layout\)"):
        load(art)
    assert [check.wrong for check in load(art, allow_code=True).verify()] == [0] * 4
    assert not mark.exists()


@pytest.mark.slow(seconds=1.5)
def test_code_of_an_artifact_is_named_with_what_it_computes(art: Path) -> None:
    said = {"bytes": 0, "sha256": digest(b"")}
    rows = [{"name": "a", "operator": name} for name in ("Softmax", "\x9b31m", "Softmax")]
    island = {"name": "i", "inputs": [], "outputs": [], "operators": rows}
    rewrite_manifest(
        art, lambda manifest: manifest.update(cpu=[island]) or manifest["files"].update(
            {"cpu/islands.so": said}
        )
    )  # fmt: skip
    done = Place(art.parent).run("verify", "art")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cpu/islands.so (Softmax, \\x9b31m)" in done.stderr


@pytest.mark.slow(seconds=1.5)
def test_an_artifact_holds_no_sources_and_names_those_of_the_installation(art: Path) -> None:
    manifest = json.loads((art / "manifest.json").read_text())
    assert not [name for name in manifest["files"] if not name.endswith((".bin", ".npz"))]
    (art / "runtime").mkdir()
    (art / "runtime" / "Makefile").write_text("all:\n\ttouch ran\n")
    place = Place(art.parent)
    done = place.run("board", "runtime", "sources", "--for", "art")
    assert (done.returncode, done.stderr) == (0, "")
    assert manifest["runtime_sha256"] == sources_digest()
    assert sources_digest() in done.stdout
    for name in SOURCES:
        assert (art.parent / "sources" / name).read_bytes() == source(name)
    rewrite_manifest(art, lambda manifest: manifest.update(runtime_sha256="0" * 64))
    done = place.run("board", "runtime", "sources", "--for", "art")
    assert done.returncode == 0
    assert "note: art was built for a different version of these sources" in done.stderr
