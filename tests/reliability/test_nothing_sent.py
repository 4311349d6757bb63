"""Checks that no command sends anything to another machine.

The tests watch for name look-ups and connections to other machines, in Python and in C libraries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

from benchmarks.schedule_spaces.vta_programs import program_with_data
from tests.reliability.commands import ROOT
from tests.sharing import OURS, free_port
from tilewright.cli.app import app
from tilewright.targets.vta.baseline import baseline_of
from tilewright.targets.vta.lowering.tensor_packing import random_tensors
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import parse_workload

pytestmark = pytest.mark.attack

SLICE = str(ROOT / "tests" / "data" / "transfer" / "slice")
INSNS = ("--insns", "p.insns", "--spec", "vta-pynq")
TUNE = ("tune", "digits_cnn", "--layers", "fc", "--batch", "8")


def _commands() -> list[tuple[tuple[str, ...], str]]:
    """Return every command with the output at which it is interrupted ("": it is not)."""
    prefect, mlflow = ("--prefect-port", str(free_port())), ("--mlflow-port", str(free_port()))
    return [
        ((*TUNE, "--tuner", "ml2tuner-published", "--trials", "32", "--out", "a"), ""),
        ((*TUNE, "--space", "template", "--trials", "8", "--bare", "--out", "b"), ""),
        ((*TUNE, "--trials", "8", "--bare", "--out", "c", "--cluster", "local:1"), ""),
        (("diff", "a", "a"), ""),
        (("trials", "a"), ""),
        (("explain", "a", "--samples", "16"), ""),
        (("export", "b", "--format", "autotvm", "--out", "log.json"), ""),
        (("tuners",), ""),
        (("zoo",), ""),
        (("targets",), ""),
        (("target", "show", "vta-pynq"), ""),
        (("inspect", "digits_cnn"), ""),
        (("build", "digits_cnn", "--trials", "0", "--out", "art"), ""),
        (("run", "art", "--input", "x.npz", "--output", "y.npz"), ""),
        (("verify", "art"), ""),
        (("vta", "cycles", *INSNS), ""),
        (("vta", "run", *INSNS, "--dram", "p.dram", "--out", "after"), ""),
        (("vta", "lint", *INSNS, "--dram", "p.dram"), ""),
        (("vta", "disasm", *INSNS), ""),
        (("vta", "asm", "--listing", "p.asm", "--spec", "vta-pynq", "--out", "again"), ""),
        (("enumerate", "--workload", "dense:n=1,c=32,o=32", "--out", "t.csv"), ""),
        (
            ("compare", "--tuners", "random,ga", "--workloads", "dense:n=1,c=32,o=32", "--trials",
             "8", "--seeds", "0", "--jobs", "1"),
            "",
        ),
        (
            ("dataset", "build", "--rows", "16", "--cpu-rows", "0", "--target", "vta-pynq", "--out",
             "rows", "--bare"),
            "",
        ),
        (
            ("model", "train", "--dataset", SLICE, "--out", "model", "--kind", "xgboost",
             "--option", "trees=4", "--threads", "1", "--bare"),
            "",
        ),
        (("model", "score", "model", "--dataset", SLICE), ""),
        (("model", "trust", "model"), ""),
        (
            ("codesign", "--networks", "digits_cnn", "--budget", "1", "--trials", "8", "--method",
             "random", "--bound", "log_block_in=4:4", "--bare", "--out", "front"),
            "",
        ),
        (("ui", "--port", str(free_port()), *prefect, *mlflow), "Ctrl-C"),
        (("serve", "digits_cnn", "--trials", "1", "--out", "s", *prefect), "serving"),
        (("cluster", "keys", "keys"), ""),
        (("cpu", "runtime", "cpu-runtime"), ""),
        (("benchmark", "digits_cnn", "--rounds", "3", "--seconds", "0.01", "--threads", "1"), ""),
        (("clean",), ""),
        (("runs", "list"), ""),
        (("runs", "show", "a"), ""),
        (("runs", "delete", "b"), ""),
        (("board", "list", "--cluster", f"tls://127.0.0.1:{free_port()}"), ""),
        (("board", "runtime", "runtime"), ""),
        (("board", "serve", "lab", "--driver", "/nowhere.o", "--reset", "true"), ""),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def watcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile `watch_calls.c`, a library to be preloaded."""
    library = tmp_path_factory.mktemp("watcher") / "watch_calls.so"
    source = Path(__file__).with_name("watch_calls.c")
    subprocess.run(
        ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", str(source), "-o",
         str(library), "-ldl"],
        check=True,
    )  # fmt: skip
    return library


def _environment(folder: Path, **more: str) -> dict[str, str]:
    """Return a plain user environment with its own home folder.

    Variables of CI systems are left out, because onnxruntime sends nothing if it sees them.
    """
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "TMPDIR")}
    assert not any(name.startswith(OURS) for name in kept)
    return kept | {"HOME": str(folder), "PYTHONPATH": str(ROOT)} | more


def _watched(watcher: Path, folder: Path, *words: str) -> tuple[list[str], str]:
    """Run `python …` and return the watched calls and the printed output."""
    calls = folder / "calls"
    environment = _environment(
        folder / "user", LD_PRELOAD=str(watcher), WATCHED_CALLS=str(calls),
        TILEWRIGHT_HOME=str(folder / "home"),
    )  # fmt: skip
    (folder / "user").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-P", *words], cwd=folder, env=environment, capture_output=True, text=True,
        check=True, timeout=1200,
    )  # fmt: skip
    return calls.read_text().splitlines() if calls.exists() else [], done.stdout


def test_onnxruntime_keeps_no_number_of_this_machine(tmp_path: Path) -> None:
    """To send events, onnxruntime first creates an ID of the machine and writes it to a file."""
    subprocess.run(
        [sys.executable, "-P", "-c", "import tilewright, onnxruntime"],
        env=_environment(tmp_path), check=True,
    )  # fmt: skip
    assert list(tmp_path.rglob("*")) == []


def test_a_call_elsewhere_is_seen(tmp_path: Path, watcher: Path) -> None:
    program = (
        "import socket, contextlib, subprocess, sys\n"
        "with contextlib.suppress(OSError):\n"
        "    socket.getaddrinfo('nowhere.invalid', 443)\n"
        "with contextlib.suppress(OSError), socket.socket() as one:\n"
        "    one.settimeout(0.1)\n"
        "    one.connect(('192.0.2.1', 9))\n"
        "with socket.create_server(('127.0.0.1', 0)) as here:\n"
        "    socket.create_connection(here.getsockname()).close()\n"
        "if len(sys.argv) < 2:\n"
        "    subprocess.run([sys.executable, '-c', sys.stdin.read() or 'import socket;'\n"
        "                    'socket.socket(type=socket.SOCK_DGRAM).connect((\"192.0.2.2\", 53))'])"
    )
    calls, _ = _watched(watcher, tmp_path, "-c", program)
    assert [line.partition(" ")[2] for line in calls] == [
        "getaddrinfo nowhere.invalid", "connect 192.0.2.1", "connect 192.0.2.2",
    ]  # fmt: skip


def test_every_command_is_watched() -> None:
    named = {_named(words) for words, _ in _commands()}
    assert named == set(_leaves(typer.main.get_command(app)))


@pytest.mark.nightly(seconds=50)
def test_no_command_asks_for_anybody_elsewhere(tmp_path: Path, watcher: Path) -> None:
    commands = _commands()
    _program(tmp_path)
    calls, printed = _watched(
        watcher, tmp_path, "-m", "tests.reliability.watched_commands", json.dumps(commands)
    )
    statuses = json.loads(printed.splitlines()[-1])
    odd = {}
    for number, ((words, until), status) in enumerate(zip(commands, statuses, strict=True)):
        expected = 2 if words[:2] in (("board", "list"), ("board", "serve")) else 0
        if status != expected and not (until and status == 130):
            odd[words] = (status, (tmp_path / f"said-{number}" / "err").read_text())
    assert odd == {}
    assert calls == []
    assert [path.name for path in (tmp_path / "user").rglob("*icrosoft*")] == []


def _leaves(command: object, *path: str) -> list[tuple[str, ...]]:
    """Return all commands that a user can type, without hidden ones such as `warm-up`."""
    below: dict[str, object] = getattr(command, "commands", {})
    if not below:
        return [] if getattr(command, "hidden", False) else [path]
    return [leaf for name, item in below.items() for leaf in _leaves(item, *path, name)]


def _named(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a command line that name the command."""
    return words[
        : 2
        if words[0] in ("target", "vta", "dataset", "model", "cluster", "board", "cpu", "runs")
        else 1
    ]


def _program(folder: Path) -> None:
    """Write a lowered layer to files, and an input of `digits_cnn`."""
    spec = VtaSpec.load("vta-pynq")
    workload = parse_workload("conv2d:n=1,c=32,h=8,w=8,o=32,k=3,s=1,p=1")
    baseline = baseline_of(workload, spec)
    tensors = random_tensors(workload, spec.machine, 0)
    lowered = program_with_data(baseline.lowering, baseline.values, tensors)
    assert lowered is not None
    (folder / "p.insns").write_bytes(lowered.insn_bytes)
    (folder / "p.dram").write_bytes(lowered.dram.tobytes())
    (folder / "p.asm").write_text("FINISH\n")
    np.savez(folder / "x.npz", input=np.zeros((1, 1, 8, 8), np.float32))
