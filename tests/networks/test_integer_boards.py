"""Compares integer networks on the simulated board with the reference, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from integer_nets import random_inputs
from onnx_graphs import session
from quantised_graphs import Graph
from test_integer_networks import attention_net, depthwise_net

from benchmarks.quantisation.integer_graphs import in_memory, run
from tilewright.flows.build import tuned_picks
from tilewright.networks import artifact
from tilewright.networks.integer.extraction import integer_graph
from tilewright.targets.capabilities import traits_of
from tilewright.targets.registry import kind_of, make_target


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("net", [attention_net, depthwise_net])
def test_a_network_runs_on_the_board_as_on_paper(
    net: Callable[[Graph], onnx.ModelProto], tmp_path: Path
) -> None:
    """Some networks have attention heads, whose weights are activations, or grouped layers."""
    target = make_target("vta-pynq")
    graph = integer_graph(net(Graph()), traits_of(target).blocks)
    picks = tuned_picks(artifact.canonical_workloads(graph), target, trials=0)
    kind = kind_of("vta-pynq")[0].name
    artifact.build(graph, picks, target, kind, tmp_path / "built")
    loaded = artifact.load(tmp_path / "built", allow_code=True)
    inputs = random_inputs(graph)
    theirs = run(graph, inputs, in_memory(graph))
    for name, ours in loaded.infer(inputs).items():
        np.testing.assert_array_equal(ours, theirs[name])
    assert [check.wrong for check in loaded.verify()] == [0] * len(graph.layers)


@pytest.mark.slow(seconds=3)
def test_the_host_reads_a_tensor_and_channels_of_it_that_lie_in_it(tmp_path: Path) -> None:
    """The whole tensor is an output, and the CPU reads a slice of its channels."""
    g = Graph()
    x = g.quantise(g.input("x", (1, 16, 7, 7)), -5)
    whole = g.quantise(g.conv(x, "conv", (32, 16, 3, 3), (-5, -6)), -1)
    places = (("begin", 16), ("end", 32), ("axis", 1))
    bounds = [g.constant(name, np.array([at])) for name, at in places]
    part = g.quantise(g.op("Slice", "slice", [whole, *bounds]), -1)
    curved = g.quantise(g.op("Sigmoid", "curved", [part]), -7)
    model = g.model((whole, (1, 32, 5, 5)), (curved, (1, 16, 5, 5)))
    target = make_target("vta-pynq")
    graph = integer_graph(model, traits_of(target).blocks)
    assert [(slice_.first, slice_.whole in graph.results.values()) for slice_ in graph.slices] == [
        (16, True)
    ]
    picks = tuned_picks(artifact.canonical_workloads(graph), target, trials=0)
    artifact.build(graph, picks, target, kind_of("vta-pynq")[0].name, tmp_path / "built")
    inputs = random_inputs(graph)
    ours = artifact.load(tmp_path / "built", allow_code=True).infer(inputs)
    theirs = session(model).run([whole, curved], inputs)
    for name, right, step in zip((whole, curved), theirs, (2**-1, 2**-7), strict=True):
        np.testing.assert_allclose(ours[name], right, rtol=0, atol=step)  # ties
        assert (ours[name] == right).mean() > 0.9
