"""Checks that numba's cache folder changes when the kernels' source files change."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOW = "import os, tilewright.targets; print(os.environ['NUMBA_CACHE_DIR'])"


def _folder(checkout: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        cwd=checkout, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_a_changed_kernel_starts_a_new_cache(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tilewright", tmp_path / "tilewright", ignore=ignored)
    before = _folder(tmp_path)
    assert before == _folder(tmp_path)
    kernel = tmp_path / "tilewright" / "targets" / "vta" / "instruction_format.py"
    kernel.write_text(kernel.read_text() + "\n# changed\n")
    after = _folder(tmp_path)
    assert after != before
    assert Path(after).parent == Path(before).parent


def test_the_users_own_choice_stands() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        cwd=ROOT, env=os.environ | {"NUMBA_CACHE_DIR": "elsewhere"}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "elsewhere"
