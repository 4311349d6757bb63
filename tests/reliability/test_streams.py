"""Tests closed or full output streams, narrow encodings, and undecodable arguments."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.conftest import TILEWRIGHT, Place
from tests.trial_tables import frame

pytestmark = [pytest.mark.attack, pytest.mark.slow(seconds=1.5)]


def shell(place: Place, command: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a shell, in which `$0` is `tilewright`."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}", str(TILEWRIGHT)],
        cwd=place.folder, env=place.environment | variables, capture_output=True, check=False,
        timeout=120,
    )  # fmt: skip


LONG, FOREIGN = b"x" * 5000, b"caf\xe9"
PATHS = (
    "inspect {}.onnx",
    "tune {}.onnx --bare",
    "tune digits_cnn --bare --out {}",
    "tune digits_cnn --bare --target {}.json",
    "trials {}",
    "explain {}",
    "compare --replay {}.csv",
    "vta cycles --insns {} --spec vta-pynq",
    "enumerate --workload dense:n=1,c=16,o=16 --out {}.csv",
)
TUNE = "tune --workload dense:n=1,c=16,o=16 --bare --trials 2 --batch 2 --out out"


@pytest.mark.parametrize("command", ["zoo", TUNE])
@pytest.mark.parametrize("streams", [">&-", ">&- 2>&- <&-"])
def test_closed_streams_are_nothing_to_a_command(place: Place, command: str, streams: str) -> None:
    done = shell(place, f'"$0" {command} {streams}')
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    if command == TUNE:
        assert len(frame(place.folder / "out")) > 0


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def buffering(request: pytest.FixtureRequest) -> dict[str, str]:
    """Run with and without output buffering.

    With a buffer, output fails when it is flushed. Without one, it fails when it is printed.
    """
    return {"PYTHONUNBUFFERED": request.param}


@pytest.mark.parametrize("command", ["zoo", "--version", TUNE])
def test_a_reader_that_leaves_ends_a_command_without_a_word(
    place: Place, command: str, buffering: dict[str, str]
) -> None:
    """The reader is gone before the command prints anything."""
    arguments = [str(TILEWRIGHT), *command.split()]
    assert run_without_reader(arguments, place, buffering) == (1, b"")


CHATTY = """
import sys
from tilewright.cli import command
from tilewright.cli.views import terminal
terminal.FIRST_WORD = terminal.QUIET = 0.001
command()
"""
"""Program that runs the command with constant progress messages."""


def test_a_thread_that_finds_the_reader_gone_says_nothing(
    place: Place, buffering: dict[str, str]
) -> None:
    """A progress thread prints first. The command ends when it prints its own first line."""
    arguments = [sys.executable, "-c", CHATTY, *TUNE.split()]
    assert run_without_reader(arguments, place, buffering) == (1, b"")


LATE = """
import atexit, os, sys
reader, writer = os.pipe()
os.dup2(writer, 1)

def leave() -> None:
    os.close(reader)
    print("at exit")

atexit.register(leave)
from tilewright.cli import command
command()
"""
"""Program that runs the command and closes the reader of its output while the interpreter exits,
before a last line is printed."""


def test_a_reader_may_leave_while_the_interpreter_ends(
    place: Place, buffering: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE, "zoo"],
        cwd=place.folder, env=place.environment | buffering, capture_output=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


def run_without_reader(
    arguments: list[str], place: Place, variables: dict[str, str]
) -> tuple[int, bytes]:
    """Run a command whose standard output is a pipe that nobody reads.

    Return its exit status and what it wrote to standard error.
    """
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            arguments, cwd=place.folder, env=place.environment | variables, stdout=writer,
            stderr=subprocess.PIPE, check=False, timeout=120,
        )  # fmt: skip
    finally:
        os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["zoo", "tuners"])
@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    ],
)
def test_a_narrow_encoding_is_enough(place: Place, command: str, variables: dict[str, str]) -> None:
    done = shell(place, f'"$0" {command}', **variables)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    done.stdout.decode("latin-1" if "latin" in str(variables) else "ascii")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("program", ["zoo", TUNE, "chatty"])
def test_output_to_a_full_disk_is_one_message(place: Place, program: str) -> None:
    """In the case `chatty`, a progress thread prints first."""
    if program == "chatty":
        done = shell(place, f"{sys.executable} -c '{CHATTY}' {TUNE} > /dev/full")
    else:
        done = shell(place, f'"$0" {program} > /dev/full')
    assert done.returncode == 2
    (message,) = done.stderr.splitlines()
    assert message.startswith(b"error: No space left on device")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((command, LONG) for command in PATHS),
        ("inspect {}.onnx", FOREIGN),
        ("tune digits_cnn --bare --out {}", FOREIGN),
    ],
)
def test_paths_that_cannot_be_are_one_message(place: Place, command: str, name: bytes) -> None:
    words = [word.encode().replace(b"{}", name) for word in command.split()]
    done = subprocess.run(
        [str(TILEWRIGHT).encode(), *words], cwd=place.folder, env=place.environment,
        capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    (message,) = done.stderr.decode().splitlines()
    assert message.startswith("error: ")
    assert name != FOREIGN or "caf\\udce9" in message


def test_a_folder_that_is_gone_is_one_message(place: Place) -> None:
    done = shell(place, 'mkdir gone; cd gone; rmdir ../gone; "$0" zoo')
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: the current folder was deleted")
