"""Runs two commands at the same time.

In the same folder the second command is refused, even from another container. In two folders of one
workspace each command keeps its own records.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests import warm
from tests.cli.conftest import TILEWRIGHT, Place
from tests.reliability.commands import ROOT, mlflow, recorded, wait_for
from tests.reliability.stored_runs import whole_run
from tests.trial_tables import frame, tables
from tilewright.search.trial_store import FILE
from tilewright.services.prefect_server import Login

pytestmark = [pytest.mark.attack, pytest.mark.nightly(seconds=8)]

CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""Command line that starts a PID namespace. Its process IDs also exist outside, and the host name
is the same."""

SLOW_COMMAND = """
import sys
from pathlib import Path
from tilewright.search import RunInUse, TrialStore
from tilewright.targets.fault_injection import FaultyTarget
from tests.reliability.stored_runs import tune_into

class Slow(FaultyTarget):
    def measure(self, lowered):
        print("measuring", flush=True)
        sys.stdin.readline()
        return super().measure(lowered)

try:
    with TrialStore(Path(sys.argv[1]), lease_seconds=float(sys.argv[2])) as store:
        tune_into(store, Slow({}))
except RunInUse as error:
    sys.exit(str(error))
"""


@pytest.fixture(scope="module")
def container() -> list[str]:
    """Return the command line that starts a command in its own PID namespace."""
    for more in ([], ["--user", "--map-root-user"]):
        wanted = [*CONTAINER, *more]
        if (
            shutil.which("unshare")
            and not subprocess.run([*wanted, "true"], capture_output=True).returncode
        ):
            return wanted
    pytest.skip("this machine makes no PID namespaces for this user")


@contextmanager
def _started(
    container: list[str], path: Path, lease_seconds: float = 30.0
) -> Iterator[subprocess.Popen[str]]:
    command = subprocess.Popen(
        [*container, sys.executable, "-c", SLOW_COMMAND, str(path), str(lease_seconds)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield command
    finally:
        command.kill()
        command.communicate()


def _wait_until_measuring(command: subprocess.Popen[str]) -> None:
    assert command.stdout is not None
    assert command.stdout.readline() == "measuring\n"


def test_of_two_writers_in_two_containers_the_second_is_refused(
    container: list[str], tmp_path: Path
) -> None:
    path = tmp_path / FILE
    with _started(container, path, 3.0) as one:
        _wait_until_measuring(one)
        with _started(container, path, 3.0) as other:
            _, refusal = other.communicate(timeout=120)
        assert other.returncode == 1
        assert "is in use by process 1 on" in refusal
        assert "in another container" in refusal
        _, said = one.communicate(timeout=120)
    assert one.returncode == 0, said
    assert tables(tmp_path) == whole_run(tmp_path)


def test_of_two_commands_in_two_containers_the_second_is_refused(
    container: list[str], tmp_path: Path
) -> None:
    place = Place(tmp_path)
    tune = [*container, str(TILEWRIGHT), "tune", "--bare", "--workload",
            "conv2d:n=1,c=64,h=56,w=56,o=64,k=3,s=1,p=1", "--tuner", "random",
            "--trials", "5000", "--batch", "1", "--out", "out"]  # fmt: skip
    with subprocess.Popen(
        tune, cwd=tmp_path, env=place.environment, stdout=subprocess.PIPE, text=True
    ) as one:
        wait_for(lambda: recorded(place) > 0, one)
        other = subprocess.run(
            tune, cwd=tmp_path, env=place.environment, capture_output=True, text=True, timeout=120
        )
        (command,) = psutil.Process(one.pid).children()
        command.send_signal(signal.SIGINT)
        one.communicate(timeout=120)
    assert other.returncode == 2
    assert other.stderr.startswith("error: out is in use by process 1 on ")
    assert other.stderr.count("\n") == 1
    trials = frame(tmp_path / "out")
    assert len(trials) == trials["config"].map(str).nunique() > 0


def test_a_container_that_is_killed_frees_the_folder_after_the_time_of_a_heartbeat(
    container: list[str], tmp_path: Path
) -> None:
    path = tmp_path / FILE
    with _started(container, path, 1.0) as one:
        _wait_until_measuring(one)
        one.kill()
        one.wait()
        with _started(container, path, 1.0) as other:
            _, said = other.communicate(timeout=120)
    assert other.returncode == 0, said
    assert tables(tmp_path) == whole_run(tmp_path)


# -- one workspace, several folders ------------------------------------------------------------

TUNE = ["tune", "--workload", "dense:n=1,c=64,o=64"]
EQUAL = [
    *TUNE,
    "--tuner",
    "ml2tuner-published",
    "--trials",
    "16",
    "--batch",
    "8",
]  # models are stored too
OTHER = [*TUNE, "--tuner", "random", "--trials", "2", "--batch", "2", "--seed"]


@pytest.mark.alone  # nine processes at once
@pytest.mark.nightly(seconds=40)
def test_eight_commands_at_once_keep_records_apart(tmp_path: Path, prefect_server: Login) -> None:
    """Eight commands that start at once in a new workspace keep separate records.

    Three are equal except for their folders. Five have other seeds.
    """
    place = Place(tmp_path, prefect_server)
    asked = [EQUAL] * 3 + [[*OTHER, str(seed)] for seed in range(5)]
    commands = [[*item, "--out", f"out-{i}"] for i, item in enumerate(asked)]
    done = warm.run(
        [json.dumps(commands)], tmp_path, place.environment, 600,
        module="tests.reliability.commands_at_once",
    )  # fmt: skip
    said = [(tmp_path / f"said-{i}").read_text() for i in range(len(commands))]
    assert done.stdout.strip() == str([0] * len(commands)), said
    runs = {place.json(f"out-{i}/summary.json")["mlflow_run_id"] for i in range(len(commands))}
    assert len(runs) == len(commands)
    statuses, steps = mlflow(place)
    assert statuses == {"FINISHED": 2 * len(commands)}
    assert [step for step in steps if step[3] > 1] == []
    equal = [(tmp_path / f"out-{i}" / "schedules.json").read_bytes() for i in range(3)]
    assert len(set(equal)) == 1
