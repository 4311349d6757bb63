"""Runs the commands of docs/guides/cluster.md as they stand there, but for the port."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.clusters import ROOT
from tests.documents import blocks
from tests.sharing import OURS, free_port


def _environment(folder: Path) -> dict[str, str]:
    """With `tilewright` of these sources before the installed one."""
    (binary := folder / "bin").mkdir()
    (script := binary / "tilewright").write_text(
        f'#!/bin/sh\nexec {sys.executable} -P -m tilewright "$@"\n'
    )
    script.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
    path = f"{binary}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    workspace, config = str(folder / "home"), str(folder / "config")
    return kept | {
        "PATH": path, "PYTHONPATH": str(ROOT), "TILEWRIGHT_HOME": workspace,
        "XDG_CONFIG_HOME": config,
    }  # fmt: skip


@pytest.mark.nightly(seconds=10)
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    start, run, *_ = blocks(ROOT / "docs" / "guides" / "cluster.md")
    port = str(free_port())
    script = f"trap 'kill $(jobs -p)' EXIT\n{start.text}\n{run.text}".replace("8786", port)
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env=_environment(tmp_path), capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "every schedule timed again and verified bit for bit" in done.stdout
