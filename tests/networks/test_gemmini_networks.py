"""Runs networks on the Gemmini simulator and compares them with onnxruntime."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from integer_nets import random_inputs
from onnx_graphs import session
from quantised_graphs import Graph
from test_integer_networks import attention_net, depthwise_net, residual_net
from typer.testing import CliRunner

from tests.draws import nightly_after
from tilewright.cli.app import app
from tilewright.flows.build import tuned_picks
from tilewright.networks import artifact
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.networks.integer_network import quantised_graph
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.onnx.normalise import fixed_graph
from tilewright.networks.quantisation import samples_for
from tilewright.targets import make_target


def strips_net(g: Graph) -> onnx.ModelProto:
    """Return a net that slices channels in place and joins them again after two layers."""
    x = g.quantise(g.input("x", (1, 16, 7, 7)), -5)
    whole = g.quantise(g.conv(x, "conv", (32, 16, 3, 3), (-5, -6)), -1)
    parts = []
    for first in (0, 16):
        places = (("begin", first), ("end", first + 16), ("axis", 1))
        bounds = [g.constant(f"{name}{first}", np.array([at])) for name, at in places]
        part = g.quantise(g.op("Slice", f"slice{first}", [whole, *bounds]), -1)
        parts.append(g.quantise(g.conv(part, f"own{first}", (16, 16, 1, 1), (-1, -7)), 1))
    joined = g.quantise(g.op("Concat", "joined", parts, axis=1), 1)
    last = g.conv(joined, "last", (20, 32, 1, 1), (1, -8))
    return g.model((g.quantise(last, 2), (1, 20, 5, 5)), (whole, (1, 32, 5, 5)))


def gaps_net(g: Graph) -> onnx.ModelProto:
    """Return a network whose 40 channels are stored in rows with gaps between them.

    A convolution reads the rows with gaps. A product reads the image as one row without gaps.
    """
    x = g.quantise(g.input("x", (1, 40, 6, 6)), -5)
    y = g.quantise(g.conv(x, "first", (40, 40, 3, 3), (-5, -7)), -1)
    y = g.quantise(g.conv(y, "second", (40, 40, 3, 3), (-1, -7)), 3)
    flat = g.op("Flatten", "flat", [y])
    product = g.op("MatMul", "fc", [flat, g.weight("fc", (40 * 4, 50), -7)])
    return g.model((g.quantise(product, 8), (1, 50)))


def channels_last_net(g: Graph) -> onnx.ModelProto:
    """Return a dense layer after an image that is flattened with the channels last.

    TensorFlow Lite files have such layers. The sums need a large shift.
    """
    x = g.quantise(g.input("x", (1, 4, 10, 20)), -5)
    y = g.quantise(g.conv(x, "first", (8, 4, 3, 3), (-5, -7)), -1)
    turned = g.op("Transpose", "turned", [y], perm=[0, 2, 3, 1])
    flat = g.op("Flatten", "flat", [turned])
    product = g.op("MatMul", "fc", [flat, g.weight("fc", (8 * 8 * 18, 4), -7)])
    return g.model((g.quantise(product, 6), (1, 4)))


def pools_net(g: Graph) -> onnx.ModelProto:
    """Return three max-pools after convolutions.

    The first pool may be padded with zeros, the second one has no padding, and zeros would be wrong
    for the third one.
    """
    x = g.quantise(g.input("x", (1, 16, 30, 30)), -5)
    y = g.conv(x, "first", (24, 16, 3, 3), (-5, -7))
    y = g.quantise(g.op("Relu", "relu", [y]), -1)
    wide = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    y = g.quantise(g.op("MaxPool", "pool.first", [y], **wide), -1)
    y = g.quantise(g.conv(y, "second", (32, 24, 1, 1), (-1, -7)), 1)
    pool = g.op("MaxPool", "pool.second", [y], kernel_shape=[2, 2], strides=[2, 2])
    y = g.quantise(g.conv(g.quantise(pool, 1), "third", (16, 32, 1, 1), (1, -7)), 3)
    return g.model((g.quantise(g.op("MaxPool", "pool.third", [y], **wide), 3), (1, 16, 4, 4)))


NETS: dict[str, tuple[Callable[[Graph], onnx.ModelProto], int]] = {
    "residual": (residual_net, 5), "depthwise": (depthwise_net, 2),
    "attention": (attention_net, 5), "strips": (strips_net, 4),
    "gaps": (gaps_net, 3), "pools": (pools_net, 3), "channels_last": (channels_last_net, 2),
}  # fmt: skip
"""The networks, and the minimum number of layers that each gives to the accelerator."""


def layers_of(model: onnx.ModelProto) -> IntegerGraph:
    accelerator = Accelerator.for_target(make_target("gemmini"))
    return quantised_graph(fixed_graph(model, {}), accelerator, [], samples=samples_for(model))


def built(model: onnx.ModelProto, folder: Path) -> tuple[IntegerGraph, artifact.Artifact]:
    """Build everything that the accelerator can run, with the schedules of lowest estimate."""
    target = make_target("gemmini")
    graph = layers_of(model)
    picks = tuned_picks(artifact.canonical_workloads(graph), target, trials=0)
    artifact.build(graph, picks, target, "gemmini", folder)
    loaded = artifact.load(folder, allow_code=True)
    assert isinstance(loaded, artifact.Artifact)
    return graph, loaded


@pytest.mark.slow(seconds=4)
@pytest.mark.parametrize("name", nightly_after(3, NETS, 4))
def test_a_network_gives_what_onnxruntime_gives(name: str, tmp_path: Path) -> None:
    """The values are equal except for float rounding differences. Both round ties to even."""
    make, layers = NETS[name]
    model = make(Graph())
    graph, loaded = built(model, tmp_path / "built")
    assert len(graph.layers) >= layers, graph.left
    assert [check.wrong for check in loaded.verify()] == [0] * len(graph.layers)
    inputs = random_inputs(graph)
    names = [value.name for value in graph.outputs]
    theirs = dict(zip(names, session(model).run(names, inputs), strict=True))
    for output, ours in loaded.infer(inputs).items():
        assert (ours == theirs[output]).mean() > 0.99, output
        step = next(value.scale.step for value in graph.outputs if value.name == output)
        np.testing.assert_allclose(ours, theirs[output], rtol=0, atol=step)


@pytest.mark.slow(seconds=2)
def test_max_pools_are_stored_with_the_convolutions_before_them() -> None:
    graph = layers_of(pools_net(Graph()))
    results = [layer.names for layer in graph.layers if layer.workload.pool is not None]
    assert ["pool.first" in results[0], "pool.second" in results[1], len(results)] == [
        True,
        True,
        2,
    ]
    assert "Gemmini computes conv2d and dense" in graph.left["pool.third"]


MAIN = """\
#include <inttypes.h>
#include <stdio.h>
#define GEMMINI_COMMAND(funct, rs1, rs2) printf("%d %" PRIu64 " %" PRIu64 "\\n", funct, rs1, rs2)
#define GEMMINI_FENCE() puts("127 0 0")
#include "net.c"
static int8_t image[GEMMINI_NETWORK_BYTES];
int main(int count, char **words)
{
  (void)words;
  if (count > 1) {
    gemmini_network_load(image);
    fwrite(image, 1, sizeof image, stdout);
    return 0;
  }
  CALLS
  return 0;
}
"""


@pytest.mark.slow(seconds=4)
def test_a_network_as_c_issues_its_commands_and_holds_its_weights(tmp_path: Path) -> None:
    """The exported C file is compiled with a macro that logs every command."""
    folder = tmp_path / "built"
    _, loaded = built(gaps_net(Graph()), folder)
    out = tmp_path / "net.c"
    done = CliRunner().invoke(
        app, ["export", str(folder), "--format", "gemmini-c", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert "weights in net_weights.h" in done.output
    manifest = json.loads((folder / "manifest.json").read_text())
    segments = len(loaded.program.ports)
    calls = " ".join(f"gemmini_segment_{n}((int8_t *)0x80000000ull);" for n in range(segments))
    (tmp_path / "main.c").write_text(MAIN.replace("CALLS", calls))
    options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-o", "main", "main.c"]
    subprocess.run(["cc", *options], cwd=tmp_path, check=True)
    said = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout
    every = np.frombuffer((folder / "commands.bin").read_bytes(), "<u8").reshape(-1, 3)
    expected = []
    for layer in manifest["layers"]:
        first, count = layer["instructions"]
        expected += [*every[first : first + count].tolist(), [127, 0, 0]]
    assert [[int(word) for word in line.split()] for line in said.splitlines()] == expected
    command = [tmp_path / "main", "image"]
    image = subprocess.run(command, check=True, capture_output=True).stdout
    program = json.loads((folder / "program.json").read_text())
    constants, expected_image = (folder / "constants.bin").read_bytes(), bytearray(len(image))
    assert len(image) == program["memory_bytes"]
    for address, count in program["constants"]:
        at = address - 0x80000000
        expected_image[at : at + count], constants = constants[:count], constants[count:]
    assert constants == b""
    assert image == expected_image


def test_what_no_store_clips_to_is_left_to_the_host() -> None:
    """The layer has a ReLU6 whose upper limit is 96, not 127."""
    graph = layers_of(depthwise_net(Graph()))
    assert "clips to 0…96" in graph.left["deep"]
    assert {step.kind for layer in graph.layers for step in layer.workload.epilogue} <= {
        "bias", "offset", "shr_even", "min", "max"
    }  # fmt: skip
