"""Checks that a multi-threaded library works in a forked process, in Python and in C.

The child must not wait for worker threads, because a fork does not copy the threads of its parent.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_graphs import normal, reference

from tilewright.flows.build import build_artifact
from tilewright.networks.compiled.c_interface import write_c_interface
from tilewright.networks.zoo.builder import Builder
from tilewright.search import LocalRunner
from tilewright.tuning.build_options import BuildOptions

pytestmark = pytest.mark.attack

SHAPE = (1, 32, 56, 56)
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    # Workers of TVM that spin for long hold up the end of a process on a busy machine.
    "TVM_THREAD_POOL_SPIN_COUNT": "100",
    "PYTHONPATH": str(ROOT),
    "PATH": os.environ["PATH"],
}
PROGRAM = """\
import multiprocessing, os, sys, threading
import numpy as np
import onnxruntime
import tilewright
from tilewright.core.thread_pools import PerProcess

folder, model = sys.argv[1:3]
image = np.load(sys.argv[3])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
region = PerProcess(lambda: onnxruntime.InferenceSession(model, options))
lock = PerProcess(threading.Lock)
session = tilewright.load(folder, threads=2, allow_code=True)


def run():
    return session.run(None, {"x": image})[0]


def check(depth):
    theirs = region.get().run(None, {"x": image})[0]
    with lock.get():
        good = np.array_equal(run(), expected)
    other = tilewright.load(folder, threads=2, allow_code=True).run(None, {"x": image})[0]
    good = good and np.array_equal(other, expected)
    good = good and np.allclose(theirs, expected, rtol=1e-3, atol=1e-3)
    if good and depth:
        good = in_child(depth - 1)
    return good


def in_child(depth):
    child = os.fork()
    if child == 0:
        os._exit(0 if check(depth) else 1)
    return os.waitpid(child, 0)[1] == 0


def in_pool(_):
    return bool(np.array_equal(run(), expected))


if __name__ == "__main__":
    expected = run()
    region.get()
    held = threading.Event()
    threading.Thread(
        target=lambda: lock.get().acquire() and held.set(), daemon=True
    ).start()
    held.wait()  # for ever held, by a thread that is in no child
    assert in_child(1)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert all(pool.map(in_pool, range(4)))
    assert np.array_equal(run(), expected)
    print("good")
    sys.stdout.flush()
    os._exit(0)
"""


def source() -> onnx.ModelProto:
    net = Builder("wide", SHAPE, 0, weights=True, input_name="x")
    hidden = net.conv(net.input, "first", 64, (3, 3))
    return net.model(net.conv(hidden, "second", 64, (3, 3)))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the model `net.onnx` and its multi-threaded library `art`."""
    folder = tmp_path_factory.mktemp("forks")
    onnx.save(source(), folder / "net.onnx")
    options = BuildOptions(
        model=str(folder / "net.onnx"), out=folder / "art", target="cpu", trials=0
    )
    build_artifact(LocalRunner(), options)
    return folder


@pytest.mark.slow(seconds=9)
def test_children_of_a_process_run_its_library(built: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", normal(*SHAPE, seed=5))
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py", built / "art", built / "net.onnx", "x.npy"], cwd=tmp_path,
        env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("good\n", 0), done.stderr


@pytest.mark.slow(seconds=5)
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_children_of_a_c_program_run_its_library(built: Path, tmp_path: Path) -> None:
    write_c_interface(tmp_path)
    shutil.copy(Path(__file__).with_name("forked_library.c"), tmp_path)
    options = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-Iinclude", "-L."]
    libraries = ["-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_ffi"]
    sources = ["forked_library.c", "tilewright_cpu.c"]
    subprocess.run(["cc", *options, *sources, "-o", "forked", *libraries], cwd=tmp_path, check=True)
    done = subprocess.run(
        [tmp_path / "forked", built / "art" / "network.so"],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.slow(seconds=1.5)
def test_the_library_computes_what_onnxruntime_does(built: Path) -> None:
    import tilewright

    image = normal(*SHAPE, seed=6)
    (result,) = tilewright.load(built / "art", allow_code=True).run(None, {"x": image})
    expected = reference(onnx.load(built / "net.onnx"), image)
    assert np.abs(result - expected).max() <= 1e-4 * np.abs(expected).max()
