"""Tests the separate weights file of a library: its format, and memory-mapped reading."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from onnx_graphs import normal, reference
from test_compiled_libraries import built
from tvm import relax

from tilewright.flows.build import build_artifact
from tilewright.networks.artifact import ArtifactError, library
from tilewright.networks.compiled.weights_file import DTYPES, pack_weights, unpack_weights
from tilewright.networks.compiled.weights_parameter import taking_out
from tilewright.networks.zoo.builder import Builder
from tilewright.search import LocalRunner
from tilewright.tuning.build_options import BuildOptions

WIDTH = 2048
RUN = """
import json, sys
import numpy as np
import tilewright

def of_process(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key))

session = tilewright.load(sys.argv[1], threads=1, allow_code=True)
before = of_process("RssAnon")
(y,) = session.run(None, {"input": np.load(sys.argv[2])})
np.save(sys.argv[3], y)
with open("/proc/self/maps") as file:
    mapped = file.read()
print(json.dumps({
    "private": of_process("RssAnon") - before, "tvm": "tvm" in sys.modules,
    "compiler": "libtvm_compiler" in mapped, "weights": "weights.bin" in mapped,
    "others": sorted({"pydantic", "tilewright.targets.vta"} & set(sys.modules)),
}))
"""

tensors = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_dims=8, max_side=4))
)


@given(st.lists(tensors, max_size=5))
def test_arrays_come_back_aligned_and_in_place(given_: list[np.ndarray]) -> None:
    data = np.frombuffer(pack_weights(given_), np.uint8)
    weights = unpack_weights(data)
    assert [(item.dtype, item.shape) for item in weights] == [(e.dtype, e.shape) for e in given_]
    for mine, theirs in zip(weights, given_, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert (mine.__array_interface__["data"][0] - data.ctypes.data) % 64 == 0
        assert np.shares_memory(mine, data) or not mine.size


@given(st.integers(0, 95), st.binary(min_size=1, max_size=8), st.integers(0, 400))
def test_a_damaged_table_is_refused_or_stays_inside(at: int, what: bytes, kept: int) -> None:
    data = bytearray(pack_weights([np.ones((3, 5), np.float32)]))
    data[at : at + len(what)] = what
    damaged = np.frombuffer(bytes(data[:kept]), np.uint8)
    try:
        weights = unpack_weights(damaged)
    except ArtifactError:
        return
    assert sum(item.nbytes for item in weights) <= len(damaged) * len(weights)


def test_equal_weights_lie_in_the_file_once() -> None:
    """The unrolled steps of a recurrent network, for example, have equal constants."""
    values = normal(128, 128, seed=2)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 128), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for _ in range(3):
                y = builder.emit(relax.op.matmul(y, relax.const(values.copy())))
            y = builder.emit(relax.op.matmul(y, relax.const(2 * values)))
            made = builder.emit_output(y)
        builder.emit_func_output(made)
    module = builder.finalize()
    weights: list[np.ndarray] = []
    taking_out(weights)(module)
    assert len(weights) == 2
    np.testing.assert_array_equal(weights[0], values)


@pytest.mark.slow(seconds=5)
def test_weights_are_mapped_and_no_compiler_is_loaded(tmp_path: Path) -> None:
    """The layer has 16 MB of weights. A process that runs it must use little private memory."""
    net = Builder("wide", (1, WIDTH), 0, weights=True)
    source = net.model(net.dense(net.input, "fc", WIDTH))
    onnx.save(source, tmp_path / "wide.onnx")
    out = tmp_path / "art"
    built(str(tmp_path / "wide.onnx"), tmp_path)
    assert (
        (out / "weights.bin").stat().st_size
        >= 4 * WIDTH**2
        > 20 * (out / "network.so").stat().st_size
    )
    x = normal(1, WIDTH, seed=1)
    np.save(tmp_path / "x.npy", x)
    said = subprocess.run(
        [sys.executable, "-c", RUN, out, tmp_path / "x.npy", tmp_path / "y.npy"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    document = json.loads(said)
    assert (document["tvm"], document["compiler"], document["weights"]) == (False, False, True)
    assert document["private"] < WIDTH**2, document
    assert not document["others"]  # each takes megabytes of memory
    expected = reference(source, x)
    assert np.abs(np.load(tmp_path / "y.npy") - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.slow(seconds=5)
def test_weights_that_would_not_be_read_again_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Builder("wide", (1, 256), 0, weights=True)
    onnx.save(net.model(net.dense(net.input, "fc", 256)), tmp_path / "wide.onnx")
    monkeypatch.setattr(library, "LIBRARY_BYTES", 4 * 256**2 - 1)
    options = BuildOptions(
        model=str(tmp_path / "wide.onnx"), out=tmp_path / "art", target="cpu", trials=0
    )
    with pytest.raises(ArtifactError, match="weights of wide take more than"):
        build_artifact(LocalRunner(), options)
    assert not (tmp_path / "art").exists()
