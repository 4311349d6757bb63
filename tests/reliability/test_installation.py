"""Tests which folders an installation from a checkout (`make setup`) adds to the module path."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tilewright
from tests.reliability.hostile_folder import plant

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])"
USE = """
import os, runpy, site, sys
site.addsitedir(sys.argv[1])
site.execsitecustomize()
import tilewright.targets.vta
assert tilewright.targets.__path__ == [sys.argv[2]], tilewright.targets.__path__
print([path for path in sys.path if not os.path.isabs(path)])
"""


ROOMS = ("flows", "tasks", "models")
"""Folders beside the package that are linked into it."""


def sources_in(folder: Path) -> Path:
    """Copy the checkout, keeping symbolic links. Skip the test if this is not a checkout."""
    sources = folder / "sources"
    if not sources.exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.split("\0")
        for name in filter(None, listed):
            here, there = ROOT / name, sources / name
            if not name.startswith("tests/") and (here.is_file() or here.is_symlink()):
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(here, there, follow_symlinks=False)
    if not (sources / "pyproject.toml").exists():
        pytest.skip("no checkout")
    return sources


def built(folder: Path, kind: str, *, sources: Path | None = None) -> Path:
    """Build an `editable`, a `wheel` or an `sdist` and return its path."""
    place = folder / kind
    place.mkdir()
    subprocess.run(
        [sys.executable, "-c", BUILD.format(kind), str(place)],
        cwd=sources or sources_in(folder), check=True, capture_output=True,
    )  # fmt: skip
    (made,) = place.iterdir()
    return made


@pytest.mark.attack
@pytest.mark.slow(seconds=1)
def test_modules_are_found_in_folders_of_the_installation_alone(tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(built(tmp_path, "editable")) as wheel:
        wheel.extractall(site)
    folder = tmp_path / "hostile"
    folder.mkdir()
    plant(folder, tmp_path / "marks", "editable")
    done = subprocess.run(
        [
            sys.executable, "-I", "-S", "-c", USE, str(site),
            str(tmp_path / "sources" / "tilewright" / "targets"),
        ],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert list((tmp_path / "marks").iterdir()) == []


@pytest.mark.slow(seconds=1.5)
def test_a_wheel_has_all_that_is_read_at_run_time(tmp_path: Path) -> None:
    with zipfile.ZipFile(built(tmp_path, "wheel")) as wheel:
        names = set(wheel.namelist())
    wanted = [
        (Path("tilewright") / path.relative_to(folder)).as_posix()
        for folder in (ROOT / "tilewright", ROOT)
        for room in (ROOMS if folder == ROOT else ["."])
        for suffix in ("*.json", "*.jinja", "*.npz", "*.ubj", "*.c", "*.h", "*.py")
        for path in (folder / room).rglob(suffix)
    ]
    assert {name.partition("/")[0] for name in names} == {
        "tilewright", f"tilewright-{tilewright.__version__}.dist-info"
    }  # fmt: skip
    assert [name for name in wanted if name not in names and "__pycache__" not in name] == []
