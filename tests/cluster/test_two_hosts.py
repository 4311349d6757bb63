"""Tests a cluster of two hosts, simulated by network namespaces of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cluster import DaskOnHosts, Hosts
from tests.cli.conftest import TUNE, Tuned
from tests.cluster.test_cluster_command import same_trials

WAIT = """
import sys, distributed
client = distributed.Client(sys.argv[1])
while not any(calls and sys.argv[2] in worker for worker, calls in client.processing().items()):
    pass
"""
"""Program that waits until the worker on a host is processing a call."""


def _has_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        with Hosts("probe"):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@pytest.mark.nightly(seconds=25)
@pytest.mark.skipif(not _has_namespaces(), reason="needs root and network namespaces")
def test_a_host_lost_in_the_middle_changes_no_trial(tmp_path: Path, tuned: Tuned) -> None:
    """Scheduler, command and one worker are on the first host. The second host is lost.

    The second host has the other worker.
    """
    with Hosts() as hosts, DaskOnHosts(hosts, tmp_path) as dask:
        command = subprocess.Popen(
            hosts.command_on(
                0, sys.executable, "-P", "-m", "tilewright", *TUNE, "--out", "out", "--bare",
                "--cluster", dask.address,
            ),
            env=dask.environment | {"TILEWRIGHT_HOME": str(tmp_path / "home")}, cwd=tmp_path,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        subprocess.run(
            hosts.command_on(0, sys.executable, "-P", "-c", WAIT, dask.address, hosts.addresses[1]),
            env=dask.environment, cwd=tmp_path, check=True, timeout=120,
        )  # fmt: skip
        dask.workers[1].kill()
        said, _ = command.communicate(timeout=300)
        assert command.returncode == 0, said
    same_trials(tmp_path / "out", tuned.out)
