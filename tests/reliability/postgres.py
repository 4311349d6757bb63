"""Starts Debian's PostgreSQL server for tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sharing import free_port

PROGRAMS = Path("/usr/lib/postgresql")


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the URL of an empty database. Its server is stopped when the context ends."""
    result = sorted(PROGRAMS.glob("*/bin"))
    if not result:
        pytest.skip("PostgreSQL is missing; sudo apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    own = []
    if not os.geteuid():  # PostgreSQL does not run as root
        own = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--"]
        shutil.chown(folder, "postgres", "postgres")
    data, port = folder / "data", free_port()
    settings = ["-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", str(folder), "-F"]
    try:
        subprocess.run(
            [*own, result[-1] / "initdb", "-D", data, "-U", "tilewright", "-A", "trust", "-N",
             "-E", "UTF8", "--locale=C"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        subprocess.run(
            [*own, result[-1] / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o",
             " ".join(settings[2:]), "start"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        yield f"postgresql+psycopg://tilewright@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run(
            [*own, result[-1] / "pg_ctl", "-D", data, "-m", "immediate", "stop"],
            check=False, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        shutil.rmtree(folder, ignore_errors=True)
