"""Run every command of docs/guides/own-hardware.md as it stands there, in order."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "own-hardware.md"
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.nightly(seconds=40)
def test_the_commands_run_and_the_note_is_the_one_shown(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    shown = re.findall(r"^    (note: .*?)…$", PAGE.read_text(), re.MULTILINE)
    printed = ""
    for block in BLOCKS:
        done = subprocess.run(
            ["bash", "-euc", block],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1800,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        printed += done.stdout + done.stderr
    assert shown
    assert all(text in printed for text in shown)
    summary = json.loads((tmp_path / "tuned" / "board" / "summary.json").read_text())
    assert summary["target"] == "board"
