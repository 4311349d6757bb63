"""Tests that the wheel and the sdist can be installed and run outside the checkout.

`make release-check` runs all of these tests. `make test` skips those that install and run a
package, because an installation compiles its kernels again, which takes minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from packaging.metadata import Metadata

import tilewright
from tests.reliability.test_installation import built

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
ROOMS = ("models", "tasks", "cli", "search", "flows", "targets")
SERVED = """
from prefect.flows import load_flow_from_entrypoint
from tilewright.services.start_servers import embedded
from tilewright.tasks import tracking

with embedded(tracking.connect):
    flow = load_flow_from_entrypoint("tilewright.flows.nightly.tune_network")
    print(flow.name)
"""

pytestmark = pytest.mark.slow(seconds=10)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `bin` folder of an environment with the wheel and the current packages."""
    return _installed(wheel, tmp_path_factory.mktemp("site"))


def _installed(wheel: Path, folder: Path) -> Path:
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install",
            "--quiet", "--no-deps", "--no-index", str(wheel),
        ],
        check=True,
    )  # fmt: skip
    beside = [path for path in map(Path, sys.path) if path.name == "site-packages"]
    (site / "packages.pth").write_text("".join(f"{path}\n" for path in beside))
    return folder / "bin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a user's project whose folders have the same names as those of this package."""
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise ImportError('of the project')\n")
    return tmp_path


def _run(project: Path, *command: str | Path) -> str:
    home = {"HOME": str(project / "home"), "PYTHONPATH": "", "TILEWRIGHT_HOME": ""}
    kept = {k: v for k, v in os.environ.items() if k not in home and not k.startswith("PREFECT_")}
    done = subprocess.run(
        list(map(str, command)), cwd=project, env=kept | {"HOME": home["HOME"]},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_wheel_installs_one_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        result = Metadata.from_email(archive.read(metadata), validate=True)
    assert {name.partition("/")[0] for name in names} == {
        "tilewright", f"tilewright-{tilewright.__version__}.dist-info"
    }  # fmt: skip
    assert str(result.version) == tilewright.__version__
    assert result.description_content_type == "text/markdown"
    assert result.description == (ROOT / "README.md").read_text()
    assert "tilewright/flows/tuning.py" in names


def test_a_wheel_of_an_sdist_holds_the_same(wheel: Path, tmp_path: Path) -> None:
    source = built(tmp_path, "sdist")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    again = built(tmp_path, "wheel", sources=unpacked)
    names = [zipfile.ZipFile(path).namelist() for path in (wheel, again)]
    assert sorted(names[0]) == sorted(names[1])


@pytest.mark.release
def test_a_network_is_tuned_built_and_run_beside_folders_of_the_same_names(
    installed: Path, project: Path
) -> None:
    command = installed / "tilewright"
    _run(project, command, "tune", "digits_cnn", "--trials", "4", "--tuner", "random", "--bare",
         "--out", "tuned")  # fmt: skip
    _run(project, command, "build", "digits_cnn", "--schedules", "tuned", "--out", "built")
    np.savez(project / "input.npz", input=np.zeros((1, 1, 8, 8), np.float32))
    _run(project, command, "run", "built", "--input", "input.npz", "--output", "output.npz")
    assert "equal" in _run(project, command, "verify", "built")
    called = "import tilewright, json; print(json.dumps(tilewright.tune(model='digits_cnn', " \
        "trials=4, tuner='random', out='tuned')['total']))"  # fmt: skip
    total = json.loads(_run(project, installed / "python", "-c", called))
    assert total == json.loads((project / "tuned" / "summary.json").read_text())["total"]
    where = "import tilewright; print(tilewright.__file__)"
    assert str(installed.parent) in _run(project, installed / "python", "-c", where)


@pytest.mark.release
def test_a_flow_is_loaded_and_run_beside_folders_of_the_same_names(
    installed: Path, project: Path
) -> None:
    _run(project, installed / "tilewright", "tune", "digits_cnn", "--trials", "4", "--tuner",
         "random", "--out", "tuned")  # fmt: skip
    assert (project / "tuned" / "summary.json").exists()
    assert _run(project, installed / "python", "-P", "-c", SERVED).split()


@pytest.mark.parametrize("version", PYTHONS)
def test_the_package_imports_on_every_python_here(
    version: str, wheel: Path, tmp_path: Path
) -> None:
    python = shutil.which(f"python{version}")
    runs = python and not subprocess.run([python, "-c", "pass"], capture_output=True).returncode
    if not python or not runs:
        pytest.skip(f"no Python {version} here")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "import tilewright; print(tilewright.__version__)"
    done = subprocess.run(
        [python, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.strip() == tilewright.__version__
