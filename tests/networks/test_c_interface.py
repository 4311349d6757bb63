"""Tests the C interface of compiled libraries: outputs and errors in a program without Python."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_graphs import normal, reference
from test_compiled_libraries import built

from tests import in_process
from tilewright.networks import zoo
from tilewright.networks.compiled.c_interface import write_c_interface
from tilewright.networks.zoo.builder import Builder

SHAPE = ("1", "1", "8", "8")
NO_PYTHON = {"PATH": "/nonexistent"}

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, digits_library: Path) -> Path:
    """Return a folder with the compiled C example and a library of `digits_cnn`."""
    made = tmp_path_factory.mktemp("capi")
    write_c_interface(made)
    subprocess.run(["make", "-s", "-C", made, "CFLAGS=-Werror -g"], check=True)
    shutil.copytree(digits_library, made / "art")
    return made


def run(
    folder: Path, library: Path, into: Path, out: Path, *sizes: str, threads: str = "2"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [folder / "example", library, threads, into, out, *sizes],
        env=NO_PYTHON, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow(seconds=4)
@pytest.mark.parametrize("threads", ["1", "2"])
def test_outputs_are_those_of_onnxruntime(folder: Path, tmp_path: Path, threads: str) -> None:
    image = normal(1, 1, 8, 8, seed=11)
    image.tofile(tmp_path / "in")
    library = folder / "art" / "network.so"
    done = run(folder, library, tmp_path / "in", tmp_path / "out", *SHAPE, threads=threads)
    assert (done.returncode, done.stderr) == (0, "")
    result = np.fromfile(tmp_path / "out", np.float32).reshape(1, 10)
    expected = reference(zoo.build("digits_cnn"), image)
    assert np.abs(result - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.slow(seconds=2)
def test_what_cannot_be_is_said(folder: Path, tmp_path: Path) -> None:
    normal(1, 1, 8, 9).tofile(tmp_path / "in")
    library = folder / "art" / "network.so"
    wrong = run(folder, library, tmp_path / "in", tmp_path / "out", "1", "1", "8", "9")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("error: the network")  # weights may be too few for a file
    missing = run(folder, tmp_path / "no.so", tmp_path / "in", tmp_path / "out", *SHAPE)
    assert missing.returncode == 1
    assert "no.so" in missing.stderr
    none = run(folder, library, tmp_path / "in", tmp_path / "out", *SHAPE, threads="0")
    assert none.stderr == "error: a library computes with one thread or more\n"


@pytest.mark.slow(seconds=2)
def test_weights_that_are_missing_or_damaged_are_named(folder: Path, tmp_path: Path) -> None:
    net = Builder("wide", (1, 256), 0, weights=True)
    source = net.model(net.dense(net.input, "fc", 256))
    onnx.save(source, tmp_path / "wide.onnx")
    built(str(tmp_path / "wide.onnx"), tmp_path)
    x = normal(1, 256, seed=3)
    x.tofile(tmp_path / "in")
    library = shutil.copy(tmp_path / "art" / "network.so", tmp_path)
    good = (tmp_path / "art" / "weights.bin").read_bytes()

    def said(weights: bytes | None) -> str:
        if weights is not None:
            (tmp_path / "weights.bin").write_bytes(weights)
        done = run(folder, Path(library), tmp_path / "in", tmp_path / "out", "1", "256")
        assert done.returncode == (0 if weights == good else 1)
        return done.stderr

    assert said(None).startswith("error: the network, without a weights.bin beside it: ")
    assert said(b"TWWEIGHT") == "error: weights.bin is no file of weights\n"
    assert said(good[:16] + good[:8]) == "error: weights.bin ends in its table\n"
    assert said(good[:8] + b"\x09" + good[9:]).startswith(
        "error: weights.bin is of another version"
    )
    assert "does not lie in it" in said(good[: len(good) // 2])
    assert said(good) == ""
    result, expected = np.fromfile(tmp_path / "out", np.float32), reference(source, x)
    assert np.abs(result - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.slow(seconds=3)
def test_the_command_writes_what_builds(tmp_path: Path) -> None:
    done = in_process.run(("cpu", "runtime", "capi"), tmp_path, NO_PYTHON)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "capi").iterdir()} == {
        "Makefile", "example.c", "include", "libtvm_ffi.so", "libtvm_runtime.so",
        "tilewright_cpu.c", "tilewright_cpu.h",
    }  # fmt: skip
