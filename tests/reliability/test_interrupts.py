"""Tests Ctrl-C and SIGTERM at any moment of a command.

The command prints one sentence that says what is kept and how to resume. A second signal ends it at
once.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import TILEWRIGHT, Place
from tests.reliability.commands import recorded, wait_for
from tests.trial_tables import frame

pytestmark = pytest.mark.attack

TUNE = ("tune", "digits_cnn", "--trials", "400", "--batch", "4", "--out", "out")
KEPT = re.compile(
    r"error: stopped; ([\d,]+) trials? (is|are) kept: start the same command again to resume"
)


def imports(place: Place, pid: int) -> bool:
    """Return whether the process has started to import the first slow library."""
    return any("pydantic_core" in map_.path for map_ in psutil.Process(pid).memory_maps())


def servers_start(place: Place, pid: int) -> bool:
    return (place.folder / "home").exists()


def trials_come(place: Place, pid: int) -> bool:
    return len(frame(place.folder / "out")) > 0


def stopped(place: Place, moment: Callable[[Place, int], bool], wait: float, *more: str) -> str:
    """Interrupt a run some seconds after a given moment. Return its last output."""
    command = place.start(*TUNE, *more)
    try:
        wait_for(lambda: moment(place, command.pid), command)
        time.sleep(wait)
        command.send_signal(signal.SIGINT)
        printed, _ = command.communicate(timeout=600)
    finally:
        command.kill()
    assert command.returncode == 130, printed
    assert "Traceback" not in printed
    assert printed.count("error: stopped; ") == 1, printed
    return printed.splitlines()[-1]


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("wait", [0.0, 0.3])
def test_interrupts_at_the_first_imports_are_answered(tmp_path: Path, wait: float) -> None:
    assert stopped(Place(tmp_path), imports, wait).startswith("error: stopped; ")


@pytest.mark.slow(seconds=2.5)
@pytest.mark.parametrize("wait", [0.2, pytest.param(2.0, marks=pytest.mark.nightly(seconds=4))])
def test_while_servers_start_and_libraries_are_imported(tmp_path: Path, wait: float) -> None:
    place = Place(tmp_path)
    match = KEPT.fullmatch(stopped(place, servers_start, wait))
    assert match is not None
    assert int(match[1].replace(",", "")) == (recorded(place) if trials_come(place, 0) else 0)


@pytest.mark.slow(seconds=5)
@pytest.mark.parametrize(
    "more",
    [("--bare", "--tuner", "random"), pytest.param((), marks=pytest.mark.nightly(seconds=15))],
)
def test_interrupts_in_the_middle_of_rounds_are_answered(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    place = Place(tmp_path)
    match = KEPT.fullmatch(stopped(place, trials_come, 1.0, *more))
    assert match is not None
    shown = place.run("trials", "out").stdout.splitlines()[-1]
    assert shown.startswith(f"{match[1]} trials")
    assert int(match[1].replace(",", "")) > 0


@pytest.mark.slow(seconds=0.5)
def test_a_second_one_ends_at_once(tmp_path: Path) -> None:
    """The command's clean-up would take for ever."""
    program = (
        "import time\n"
        "from tilewright.cli.signals import heed_signals\n"
        "heed_signals()\n"
        "try: print('ready', flush=True); time.sleep(600)\n"
        "finally: print('ending', flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True,
        env=Place(tmp_path).environment,
    ) as command:  # fmt: skip
        assert command.stdout is not None
        for line in ("ready", "ending"):
            assert command.stdout.readline() == f"{line}\n"
            command.send_signal(signal.SIGINT)
        assert command.wait(60) == 130


@pytest.mark.slow(seconds=0.5)
def test_sigterm_ends_in_order_too(tmp_path: Path) -> None:
    """Service managers send SIGTERM. Temporary folders must be removed."""
    program = (
        "import tempfile, time, typer\n"
        "from tilewright.cli import app, command\n"
        "def wait():\n"
        "    with tempfile.TemporaryDirectory(): print('ready', flush=True); time.sleep(60)\n"
        "app.app = wait\n"
        "command()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=Place(tmp_path).environment | {"TMPDIR": str(tmp_path)},
    ) as command:  # fmt: skip
        assert command.stdout is not None
        assert command.stderr is not None
        assert command.stdout.readline() == "ready\n"
        assert len(list(tmp_path.iterdir())) == 1
        command.send_signal(signal.SIGTERM)
        assert command.wait(30) == 143
        assert command.stderr.read() == "error: stopped; start the same command again\n"
    assert list(tmp_path.iterdir()) == []


LOSING = {
    "a finaliser": "class Lost:\n    def __del__(self): os.kill(os.getpid(), 2); spin()\nLost()\n",
    "compiled code's callback": (
        "def callback(): os.kill(os.getpid(), 2); spin()\nctypes.CFUNCTYPE(None)(callback)()\n"
    ),
}


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("where", LOSING)
def test_one_that_python_cannot_raise_comes_again(tmp_path: Path, where: str) -> None:
    """A signal whose exception Python swallows (for example in `__del__`) is raised again later.

    It is not printed and does not count as a second signal. Other errors at that place are reported
    as usual.
    """
    program = (
        "import ctypes, os, time\n"
        "from tilewright.cli.signals import heed_signals\n"
        "heed_signals()\n"
        "def spin(): sum(range(1000))\n"
        "class Failing:\n    def __del__(self): raise ValueError('as ever')\n"
        f"{LOSING[where]}"
        "try: time.sleep(60)\n"
        "except KeyboardInterrupt: Failing(); print('ending', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=Place(tmp_path).environment,
    ) as command:  # fmt: skip
        assert command.stdout is not None
        assert command.stderr is not None
        try:
            assert command.stdout.readline() == "ending\n"
            command.send_signal(signal.SIGINT)
            assert command.wait(60) == 130
            printed = command.stderr.read()
        finally:
            command.kill()
    assert printed.count("Exception ignored") == 1
    assert printed.endswith("ValueError: as ever\n")


@pytest.mark.slow(seconds=3)
def test_who_has_it_ignored_is_left_alone(tmp_path: Path) -> None:
    """`nohup`, or `&` in a script, lets a command ignore Ctrl-C. The command must continue."""
    place = Place(tmp_path)
    tune = "tune --workload dense:n=1,c=16,o=16 --bare --trials 2 --batch 2 --out out"
    script = f"trap '' INT; {TILEWRIGHT} {tune} & sleep 1; kill -INT $!; wait $!"
    done = subprocess.run(
        ["bash", "-c", script], cwd=place.folder, env=place.environment, capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (place.folder / "out" / "summary.json").is_file()


@pytest.mark.nightly(seconds=6)
def test_a_suite_in_the_background_ends(tmp_path: Path) -> None:
    """The suite's commands react to Ctrl-C although the shell made the suite ignore it."""
    test = f"{__file__}::test_interrupts_at_the_first_imports_are_answered"
    script = f"trap '' INT; {sys.executable} -P -m pytest -q {test} -p no:cacheprovider & wait $!"
    done = subprocess.run(
        ["bash", "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
