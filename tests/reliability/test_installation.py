"""What an installation from a checkout, as by `make setup`, adds to where modules are found."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.reliability.hostile_folder import plant

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])"
USE = """
import os, runpy, site, sys
site.addsitedir(sys.argv[1])
site.execsitecustomize()
import tilewright.targets.vta
assert targets.__path__ == [sys.argv[2]], targets.__path__
print([path for path in sys.path if not os.path.isabs(path)])
"""


def built(folder: Path, kind: str) -> Path:
    """A wheel of a copy of these sources."""
    sources = folder / "sources"
    if not sources.exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.split("\0")
        for name in filter(None, listed):
            if not name.startswith("tests/") and (ROOT / name).is_file():
                (sources / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, sources / name)
    if not (sources / "pyproject.toml").exists():
        pytest.skip("no checkout")
    wheels = folder / kind
    wheels.mkdir()
    subprocess.run(
        [sys.executable, "-c", BUILD.format(kind), str(wheels)], cwd=sources, check=True,
        capture_output=True,
    )  # fmt: skip
    (wheel,) = wheels.glob("*.whl")
    return wheel


@pytest.mark.attack
@pytest.mark.slow(seconds=6)
def test_modules_are_found_in_folders_of_the_installation_alone(tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(built(tmp_path, "editable")) as wheel:
        wheel.extractall(site)
    folder = tmp_path / "hostile"
    folder.mkdir()
    plant(folder, folder / "home", tmp_path / "marks", "editable")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", USE, str(site), str(tmp_path / "sources" / "targets")],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert list((tmp_path / "marks").iterdir()) == []


@pytest.mark.slow(seconds=6)
def test_a_wheel_has_all_that_is_read_at_run_time(tmp_path: Path) -> None:
    with zipfile.ZipFile(built(tmp_path, "wheel")) as wheel:
        names = set(wheel.namelist())
    wanted = [
        path.relative_to(ROOT).as_posix()
        for room in ("targets", "networks", "reports", "flows", "cli", "services")
        for suffix in ("*.json", "*.jinja", "*.npz", "*.py")
        for path in (ROOT / room).rglob(suffix)
    ]
    assert [name for name in wanted if name not in names and "__pycache__" not in name] == []
