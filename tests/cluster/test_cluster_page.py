"""Runs the first commands of docs/guides/cluster.md unchanged, except for the port."""

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
    """Return an environment in which `tilewright` is this checkout, not the installed package."""
    (binary := folder / "bin").mkdir()
    (script := binary / "tilewright").write_text(
        f'#!/bin/sh\nexec {sys.executable} -P -m tilewright "$@"\n'
    )
    script.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith((*OURS, "DASK_"))}
    path = f"{binary}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return kept | {
        "PATH": path, "PYTHONPATH": str(ROOT), "TILEWRIGHT_HOME": str(folder / "home"),
    }  # fmt: skip


@pytest.mark.nightly(seconds=30)
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    """The page starts a local cluster, two commands that share a run, and a cluster with keys."""
    local, shared, start, run, *_ = blocks(ROOT / "docs" / "guides" / "cluster.md")
    port = str(free_port())
    text = f"{local.text}\n{shared.text}\n{start.text}\n{run.text}".replace("8786", port)
    same = "cmp on-dask/trials.parquet on-cluster/trials.parquet"
    script = f"trap 'kill $(jobs -p)' EXIT\n{text}\n{same}"
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env=_environment(tmp_path), capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("every schedule timed again and verified bit for bit") == 5
