"""Runs the commands of docs/guides/cluster.md on another port, and TLS as the page describes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import dask
import pytest

from tests.cluster.clusters import ROOT, Cluster
from tests.sharing import OURS, free_port
from tilewright.targets.cluster import connection
from tilewright.targets.cluster.connection import ClusterError, connect

PAGE = (ROOT / "docs" / "guides" / "cluster.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


def _environment(folder: Path) -> dict[str, str]:
    """With `tilewright` of these sources before the installed one."""
    (binary := folder / "bin").mkdir()
    (script := binary / "tilewright").write_text(
        f'#!/bin/sh\nexec {sys.executable} -P -m tilewright "$@"\n'
    )
    script.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith((*OURS, "DASK_"))}
    path = f"{binary}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    workspace = str(folder / "home")
    return kept | {"PATH": path, "PYTHONPATH": str(ROOT), "TILEWRIGHT_HOME": workspace}


@pytest.mark.nightly(seconds=10)
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    start, run, *_ = BLOCKS
    port = str(free_port())
    script = f"trap 'kill $(jobs -p)' EXIT\n{start}\n{run}".replace("8786", port)
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env=_environment(tmp_path), capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "every schedule timed again and verified bit for bit" in done.stdout


@pytest.mark.slow(seconds=1)
def test_with_tls_only_holders_of_a_certificate_get_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-subj", "/CN=127.0.0.1", "-days", "1", "-keyout", "host.key", "-out",
         "host.pem"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    files = ("host.pem", "host.pem", "host.key")
    flags = [
        part for name, file in zip(("ca-file", "cert", "key"), files, strict=True)
        for part in (f"--tls-{name}", str(tmp_path / file))
    ]  # fmt: skip
    names = ("CA_FILE", "CLIENT__CERT", "CLIENT__KEY")
    variables = {
        f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(tmp_path / file)
        for name, file in zip(names, files, strict=True)
    }
    assert all(name in PAGE for name in variables)
    monkeypatch.setattr(connection, "REACH_SECONDS", 3.0)
    with Cluster(tmp_path, "tls", *flags) as own:
        own.worker("one", *flags)
        with pytest.raises(ClusterError, match="no Dask scheduler answers at tls://"):
            connect(own.address)
        with monkeypatch.context() as environment:
            for name, value in variables.items():
                environment.setenv(name, value)
            dask.config.refresh()
            cluster = connect(own.address)
            assert (cluster.call(abs, -3), cluster.slots()) == (3, 1)
            cluster.client.close()
        dask.config.refresh()
