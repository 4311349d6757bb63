"""Every command of the README runs as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import warm
from tilewright.networks import zoo
from tilewright.services.prefect_server import Login

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip() for block in BLOCKS for line in block.splitlines() if line.strip()
]
BIN = Path(sys.executable).parent
SERVERS = {"tilewright ui"}
"""Runs until Ctrl-C: `test_ui_shows_both_pages_on_loopback_until_ctrl_c` starts it."""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, an instruction stream, tables, and a home of its own for records."""
    folder = tmp_path_factory.mktemp("readme")
    zoo.write("digits_cnn", folder / "model.onnx", 0)
    with np.load(ROOT / "tests/data/vta/cycles_pynq.npz", allow_pickle=False) as streams:
        first = streams["insn"][: streams["insn_off"][1]]
    (folder / "program.bin").write_bytes(first.tobytes())
    for data in ("tests/data/tvm-vta", "examples/data"):
        shutil.copytree(ROOT / data, folder / data)
    return folder


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "TILEWRIGHT_HOME": str(folder / ".tilewright"),
    }


def test_the_readme_has_the_two_commands_first() -> None:
    assert COMMANDS[:2] == ["make tune", "make test"]


@pytest.mark.slow(seconds=5)
@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c.startswith("tilewright") and c not in SERVERS]
)
def test_command_runs(command: str, workplace: Path, prefect_server: Login) -> None:
    environment = _environment(workplace) | prefect_server.settings
    done = warm.run(shlex.split(command)[1:], workplace, environment, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.slow(seconds=15)
def test_make_tune_tunes(workplace: Path, prefect_server: Login) -> None:
    """The same recipe on the smallest network: setting up is done, or this test would not run."""
    done = subprocess.run(
        ["make", "--no-print-directory", "tune", "NETWORK=digits_cnn", "TRIALS=8",
         f"OUT={workplace / 'made'}"],
        cwd=ROOT, env=_environment(workplace) | prefect_server.settings,
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (workplace / "made" / "summary.json").exists()


@pytest.mark.parametrize(("target", "left_out"), [("test", False), ("check", True)])
def test_make_runs_this_suite(target: str, left_out: bool) -> None:
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "-m pytest" in done.stdout
    assert ("not slow" in done.stdout) == left_out
