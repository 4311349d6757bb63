"""Tests inference sessions: onnxruntime's outputs, inputs read in place, and concurrent threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx_graphs import normal, reference

import tilewright
from tilewright.core.errors import SpecError
from tilewright.flows.build import build_artifact
from tilewright.networks import zoo
from tilewright.networks.artifact import ArtifactError
from tilewright.networks.artifact.session import InferenceSession
from tilewright.networks.compiled import loaded_library
from tilewright.networks.errors import InputError
from tilewright.search import LocalRunner
from tilewright.targets.kernels import ALIGNMENT
from tilewright.tuning.build_options import BuildOptions

MODEL = "digits_cnn"
SHAPE = (1, 1, 8, 8)
TOLERANCE = 1e-4


@pytest.fixture
def session(digits_library: Path) -> InferenceSession:
    return tilewright.load(digits_library, allow_code=True)


@pytest.mark.slow(seconds=5)
def test_outputs_are_those_of_onnxruntime(session: InferenceSession) -> None:
    image = normal(*SHAPE, seed=3)
    (scores,) = session.run(None, {"input": image})
    expected = reference(zoo.build(MODEL), image)
    assert np.abs(scores - expected).max() <= TOLERANCE * np.abs(expected).max()
    (named,) = session.run(["fc.out"], {"input": image})
    np.testing.assert_array_equal(named, scores)
    (put,), (got,) = session.get_inputs(), session.get_outputs()
    assert (put.name, put.shape, put.dtype) == ("input", SHAPE, "float32")
    assert (got.name, got.shape, got.dtype) == ("fc.out", (1, 10), "float32")


@pytest.mark.slow(seconds=1)
def test_what_fits_nothing_is_refused(session: InferenceSession) -> None:
    image = normal(*SHAPE)
    with pytest.raises(
        InputError, match=r"the network has no output 'scores'; its outputs are fc.out"
    ):
        session.run(["scores"], {"input": image})
    with pytest.raises(InputError, match="'input' is missing"):
        session.run(None, {})
    with pytest.raises(InputError, match="the network has no input 'image'; its inputs are input"):
        session.empty("image")


@pytest.mark.slow(seconds=1)
def test_code_of_a_copy_is_refused_without_leave(digits_library: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="allow_code=True"):
        tilewright.load(shutil.copytree(digits_library, tmp_path / "copy"))


@pytest.mark.slow(seconds=1)
def test_an_aligned_input_is_read_in_place_and_any_other_is_read_right(
    session: InferenceSession,
) -> None:
    image = normal(*SHAPE, seed=4)
    expected = session.run(None, {"input": image})[0]
    placed = session.empty("input")
    assert placed.ctypes.data % ALIGNMENT == 0
    placed[...] = image
    assert np.from_dlpack(loaded_library._tensor(placed)).ctypes.data == placed.ctypes.data
    raw = np.zeros(image.nbytes + 4 + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT + 4  # not a multiple of the alignment
    apart = raw[start : start + image.nbytes].view(np.float32).reshape(SHAPE)
    apart[...] = image
    frozen = image.copy()
    frozen.flags.writeable = False
    turned = np.ascontiguousarray(image.transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
    for array in (placed, apart, frozen, turned):
        np.testing.assert_array_equal(session.run(None, {"input": array})[0], expected)


@pytest.mark.slow(seconds=1)
def test_an_output_outlives_later_inferences(session: InferenceSession) -> None:
    first = session.run(None, {"input": normal(*SHAPE, seed=1)})[0]
    kept = first.copy()
    for seed in range(2, 20):
        session.run(None, {"input": normal(*SHAPE, seed=seed)})
    np.testing.assert_array_equal(first, kept)


@pytest.mark.slow(seconds=3)
def test_threads_run_one_session_at_the_same_time(session: InferenceSession) -> None:
    images = [normal(*SHAPE, seed=seed) for seed in range(8)]
    expected = [session.run(None, {"input": image})[0].copy() for image in images]
    together = threading.Barrier(4)

    def infer(worker: int) -> bool:
        together.wait(30)
        return all(
            np.array_equal(session.run(None, {"input": images[i]})[0], expected[i])
            for turn in range(50)
            for i in [(worker + turn) % len(images)]
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(infer, range(4)))


@pytest.mark.slow(seconds=1)
def test_threads_are_as_many_as_asked_for_and_there_are_cores_for(digits_library: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    image = normal(*SHAPE, seed=5)
    (one,) = tilewright.load(digits_library, threads=1, allow_code=True).run(None, {"input": image})
    (more,) = tilewright.load(digits_library, allow_code=True).run(None, {"input": image})
    np.testing.assert_allclose(one, more, rtol=1e-5)
    with pytest.raises(SpecError, match=f"this process may use {cores} core"):
        tilewright.load(digits_library, threads=cores + 1, allow_code=True).run(
            None, {"input": image}
        )


@pytest.mark.slow(seconds=5)
def test_a_library_for_all_cores_runs_on_one(digits_library: Path) -> None:
    code = (
        "import os, sys\n"
        "os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])\n"
        "import numpy as np, tilewright\n"
        f"session = tilewright.load({str(digits_library)!r}, allow_code=True)\n"
        f"print(session.run(None, {{'input': np.zeros({SHAPE}, np.float32)}})[0].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("(1, 10)\n", 0), done.stderr


@pytest.mark.slow(seconds=5)
def test_a_simulated_accelerator_is_a_session_too(tmp_path: Path) -> None:
    build_artifact(LocalRunner(), BuildOptions(model=MODEL, out=tmp_path / "vta", trials=0))
    session = tilewright.load(tmp_path / "vta")
    image = normal(*SHAPE, seed=6)
    (scores,) = session.run(["fc.out"], {"input": image})
    again, _ = tilewright.run(tmp_path / "vta", {"input": image})
    np.testing.assert_array_equal(scores, again["fc.out"])
