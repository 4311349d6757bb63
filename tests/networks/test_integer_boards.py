"""Networks in integers on the simulated board: bit by bit what the reference gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from integer_nets import random_inputs
from quantised_graphs import Graph
from test_integer_networks import attention_net, depthwise_net

from networks import artefact
from networks.integer import library
from networks.integer.extraction import integer_graph
from networks.integer.reference import run
from targets.capabilities import blocks_of
from targets.registry import kind_of, make_target
from tuning.picks import tuned_picks


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize("net", [attention_net, depthwise_net])
def test_a_network_runs_on_the_board_as_on_paper(
    net: Callable[[Graph], onnx.ModelProto], tmp_path: Path
) -> None:
    """Heads of attention among its layers, whose weights are activations; and grouped layers."""
    target = make_target("vta-pynq")
    graph = integer_graph(net(Graph()), blocks_of(target))
    picks = tuned_picks(artefact.canonical_workloads(graph), target, trials=0)
    kind = kind_of("vta-pynq")[0].name
    artefact.build(graph, picks, target, kind, tmp_path / "built")
    loaded = artefact.load(tmp_path / "built")
    inputs = random_inputs(graph)
    theirs = run(graph, inputs, library.in_memory(graph))
    for name, ours in loaded.infer(inputs).items():
        np.testing.assert_array_equal(ours, theirs[name])
    assert [check.wrong for check in loaded.verify()] == [0] * len(graph.layers)
