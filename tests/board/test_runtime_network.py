"""Checks that C gives what Python does for a network of layers, built as a user builds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.board.boards import HERE, SANITIZED, compile_c, make, run
from tilewright.targets.artifact_types import LayerGraph, Pick
from tilewright.targets.im2col import Unfold
from tilewright.targets.layer import Layer, Scale, Value
from tilewright.targets.vta.board.artifact_builder import VtaProgram, build
from tilewright.targets.vta.board.runtime import FILES, copy_runtime
from tilewright.targets.vta.lowering.batch import Lowering
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import Workload, parse_workload

PYNQ = VtaSpec.load("vta-pynq")


def layer(name: str, data: str, output: str, workload: Workload) -> Layer:
    """With random weights and biases."""
    rng = np.random.default_rng(len(name))
    w = workload
    return Layer(
        name, (name,), "Conv", w, data, output,
        weight=rng.integers(
            -20, 20, (w.out_channels, w.in_channels // w.groups, w.kernel_h, w.kernel_w)
        ).astype(np.int8),
        bias=rng.integers(-3000, 3000, w.out_channels).astype(np.int32), macs=w.macs,
    )  # fmt: skip


def first_pick(workload: Workload) -> Pick:
    """The first schedule that lowers."""
    lowering = Lowering.of(workload, PYNQ, "extended")
    for flat in range(lowering.space.size):
        config = lowering.space.unravel(np.array([flat]))
        if lowering.program(lowering.space.values(config)[0])[0] == 0:
            return Pick("extended", tuple(int(knob) for knob in config[0]))
    raise AssertionError("no schedule fits")


def small_network() -> LayerGraph:
    """A convolution on an unfolded float image, and a dense layer on all of its pixels."""
    epilogue = "bias, >> 9, min 127, max 0"
    whole = parse_workload("conv2d:c=1,h=8,w=8,o=16,k=3,s=2,p=1", epilogue)
    fold = Unfold.of(whole, 3, 3)
    layers = (
        replace(layer("conv", "image.q", "a", fold.workload(whole)), unfold=fold),
        layer("fc", "a", "y", parse_workload("dense:n=1,c=256,o=10", "bias, >> 8, max -128")),
    )
    values = [
        Value("image.q", (1, 1, 8, 8), "int8", Scale(0.0371, 5)),
        Value("a", (1, 16, 4, 4), "int8", Scale(1 / 16)),
        Value("y", (1, 10), "int8", Scale(0.118, -9)), Value("image", (1, 1, 8, 8), "float32"),
        Value("logits", (1, 10), "float32"),
    ]  # fmt: skip
    named = {value.name: value for value in values}
    return LayerGraph(layers, named, ("y",), {"image.q": named["image"]}, {"y": named["logits"]})


@pytest.mark.slow(seconds=4)
def test_a_built_network_runs_as_in_python(tmp_path: Path) -> None:
    graph = small_network()
    built = build(graph, [first_pick(each.workload) for each in graph.layers], PYNQ)
    assert set(built.files) == set(FILES)
    for name, data in built.files.items():
        (tmp_path / name).write_bytes(data)
    runtime = tmp_path / "runtime"
    copy_runtime(runtime, PYNQ)
    driver = compile_c(HERE / "driver_shim.c", tmp_path / "driver.o", *SANITIZED.split(),
                       f"-I{runtime}", "-c")  # fmt: skip
    made = make(runtime, f"DRIVER={driver}", f"CFLAGS={SANITIZED}")
    assert (made.returncode, made.stderr) == (0, "")

    image = np.random.default_rng(0).normal(0, 1, (1, 1, 8, 8)).astype(np.float32)
    program = VtaProgram.open(built.files, built.layers, PYNQ)
    expected = program.run(0, {"image": image})["logits"]
    done = run(runtime, tmp_path, image.tobytes(), PYNQ, base=1 << 31)
    assert (done.code, done.said) == (0, "")
    assert done.output is not None
    got = np.frombuffer(done.output, "<f4")
    assert len(set(got.tolist())) > 3
    np.testing.assert_array_equal(got, expected.ravel())
