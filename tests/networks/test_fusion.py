"""What may be fused: every labelling computes the same numbers, on paper and on the board."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_nets import BLOCKS, random_inputs
from quantised_graphs import Graph

from networks import artefact
from networks.fusion import Choices, choices, fused
from networks.integer import library
from networks.integer.extraction import integer_graph
from networks.integer.graph import IntegerGraph
from networks.integer.reference import run
from networks.quantise import quantise
from networks.zoo.builder import Builder
from targets.capabilities import Blocks, blocks_of
from targets.registry import kind_of, make_target
from tuning.picks import tuned_picks


def branching_net() -> onnx.ModelProto:
    """A stem with a pool; four branches, of which three are siblings and one splits again; their
    concatenation, which a convolution and a global average read."""
    net = Builder("branching", (1, 3, 20, 20), 0, True)

    def conv(x: str, name: str, channels: int, kernel: int = 1) -> str:
        own = net.conv(x, name, channels, kernel, pad=kernel // 2)
        return net.relu(net.batch_norm(own, f"{name}.bn"), f"{name}.relu")

    x = net.max_pool(conv(net.input, "stem", 32, 3), "pool", kernel=3, stride=2, pad=1)
    one = conv(x, "one", 16)
    two = conv(conv(x, "two.narrow", 16), "two", 32, 3)
    three = conv(x, "three.narrow", 24)
    three = net.concat([conv(three, "three.a", 16, 3), conv(three, "three.b", 16, 3)], "three")
    four = conv(net.average_pool(x, "average", 3, 1, pad=1), "four", 16)
    x = net.concat([one, two, three, four], "joined")
    x = conv(net.max_pool(conv(x, "last", 48), "shrink", kernel=2, stride=2), "end", 32)
    x = net.flatten(net.global_average_pool(x, "global"), "flatten")
    return net.model(net.dense(x, "fc", 10))


@functools.cache
def _base(blocks: Blocks = BLOCKS) -> tuple[IntegerGraph, Choices]:
    graph = integer_graph(quantise(branching_net()).model, blocks, name="branching")
    return graph, choices(graph)


@functools.cache
def _expected() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    graph, _ = _base()
    inputs = random_inputs(graph)
    return inputs, run(graph, inputs, library.in_memory(graph))


def test_what_is_offered_and_what_is_not() -> None:
    graph, found = _base()
    assert not graph.islands
    assert len(graph.slices) == 6
    kinds = Counter(choice.kind for choice in found.offered)
    assert kinds == {"activation": 10, "pool": 2, "siblings": 5}
    groups = Counter(choice.group for choice in found.offered if choice.kind == "siblings")
    assert sorted(groups.values()) == [2, 3]
    reasons = {each.name: each.reason for each in found.refused}
    assert "average" in reasons


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=17, max_size=17))
def test_any_labelling_computes_the_same(labels: list[bool]) -> None:
    graph, found = _base()
    inputs, expected = _expected()
    other = fused(graph, labels, found)
    assert other.macs == graph.macs
    values = run(other, inputs, library.in_memory(other))
    for output in graph.outputs:
        np.testing.assert_array_equal(values[output.name], expected[output.name])
    for layer in graph.layers:  # whatever both have in between, too
        if layer.output in values:
            np.testing.assert_array_equal(values[layer.output], expected[layer.output])


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize(
    ("spec", "which"), [("vta-pynq", "none"), ("vta-pynq", "some"), ("large", "all")]
)
def test_a_labelled_network_runs_on_the_board_as_on_paper(
    spec: str, which: str, tmp_path: Path
) -> None:
    target = make_target(spec)
    graph, found = _base(blocks_of(target))
    labels = {
        "none": [False] * len(found),
        "all": [True] * len(found),
        "some": [bool(k % 3) for k in range(len(found))],
    }[which]
    network = fused(graph, labels, found)
    picks = tuned_picks(artefact.canonical_workloads(network), target, trials=0)
    artefact.build(network, picks, target, kind_of(spec)[0].name, tmp_path / "built")
    loaded = artefact.load(tmp_path / "built")
    inputs, expected = _expected()
    for name, ours in loaded.infer(inputs).items():
        np.testing.assert_array_equal(ours, expected[name])
    assert [check.wrong for check in loaded.verify()] == [0] * len(network.layers)


def test_what_does_not_lie_in_whole_blocks_is_moved_by_the_cpu() -> None:
    """Half a block of channels in front of others; a batch of images; a tensor twice."""

    def joined(shape: tuple[int, ...], widths: tuple[int, ...], twice: bool = False) -> int:
        g = Graph()
        x = g.quantise(g.input("x", shape), -5)
        parts = [
            g.quantise(g.conv(x, f"conv{k}", (width, shape[1], 1, 1), (-5, -7)), -4)
            for k, width in enumerate(widths)
        ]
        parts += parts[:1] * twice
        both = g.quantise(g.op("Concat", "both", parts, axis=1), -4)
        channels = sum(widths) + widths[0] * twice
        last = g.quantise(g.conv(both, "last", (8, channels, 1, 1), (-4, -7)), -2)
        return len(integer_graph(g.model((last, (shape[0], 8, *shape[2:]))), BLOCKS).islands)

    assert joined((1, 8, 4, 4), (16, 8)) == 0
    assert joined((1, 8, 4, 4), (8, 16)) == 1
    assert joined((2, 8, 4, 4), (16, 16)) == 1
    assert joined((1, 8, 4, 4), (16, 16), twice=True) == 1


def test_another_number_of_labels_is_refused() -> None:
    graph, found = _base()
    with pytest.raises(ValueError, match="3 labels for 17 choices"):
        fused(graph, [True] * 3, found)
