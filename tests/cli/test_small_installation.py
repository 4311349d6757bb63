"""Tests an installation without optional extras: commands work, or name the missing extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.cli.error_messages import EXTRAS

ROOT = Path(__file__).parents[2]
HIDING = """
import sys

class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hiding())
"""

pytestmark = pytest.mark.slow(seconds=25)


@pytest.fixture
def tilewright(tmp_path: Path) -> _Installation:
    """Return a command that runs in its own folder and finds no package of an optional extra."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(HIDING.format(hidden=set(EXTRAS)))
    return _Installation(tmp_path, site)


class _Installation:
    def __init__(self, folder: Path, site: Path) -> None:
        self.folder = folder
        self._env = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command and capture its output as text."""
        return subprocess.run(
            [sys.executable, "-m", "tilewright", *words], cwd=self.folder, env=self._env,
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip


def test_tune_build_run_and_verify_need_no_extra(
    tilewright: _Installation,
) -> None:
    np.savez(tilewright.folder / "input.npz", input=np.zeros((1, 1, 8, 8), np.float32))
    for words in (
        "tune digits_cnn --bare --trials 4 --tuner random --out tuned",
        "build digits_cnn --schedules tuned --out built",
        "run built --input input.npz --output output.npz",
        "verify built",
    ):
        done = tilewright.run(*words.split())
        assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("tune digits_cnn --trials 4", "flows"),
        ("ui", "flows"),
        ("tune digits_cnn --bare --trials 4 --cluster local:2", "cluster"),
        ("cluster keys keys", "cluster"),
        ("tune digits_cnn --bare --trials 4 --tuner optuna", "optuna"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    tilewright: _Installation, words: str, extra: str
) -> None:
    done = tilewright.run(*words.split())
    assert done.returncode == 2, done.stderr[-2000:]
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert f"pip install 'tilewright[{extra}]'" in message
    assert "Traceback" not in done.stderr
