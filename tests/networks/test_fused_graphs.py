"""Checks that random networks compute the same values with any fusion labels.

Hypothesis draws the networks. A layer may read any earlier tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from integer_nets import BLOCKS, random_inputs
from quantised_graphs import Graph

from benchmarks.quantisation.integer_graphs import in_memory, run
from tests.draws import examples
from tilewright.networks.fusion import apply_labels, choices
from tilewright.networks.integer.extraction import integer_graph

Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: Shape
    exponent: int


@dataclass(frozen=True)
class Piece:
    """A few operators of a random network. `first` and `second` count back from the last tensor."""

    kind: str
    first: int
    second: int
    kernel: int
    channels: int
    stride: int
    relu: bool
    exponent: int


pieces = st.builds(
    Piece,
    kind=st.sampled_from(
        ["conv", "block", "projection", "siblings", "pooled", "add", "pool", "average", "concat"]
    ),
    first=st.integers(0, 3),
    second=st.integers(0, 3),
    kernel=st.sampled_from([1, 3]),
    channels=st.sampled_from([5, 16, 24]),
    stride=st.sampled_from([1, 2]),
    relu=st.booleans(),
    exponent=st.integers(-5, -3),
)


class Drawn(Graph):
    """A random network under construction, and its tensors so far."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        shape = (1, 16, 6, 6)
        self.found = [Tensor(self.quantise(self.input("x", shape), -5), shape, -5)]

    def add(self, piece: Piece) -> None:
        """Add a piece. Its results become the last tensors. Do nothing if no tensor fits."""
        x, other = (self._back(self.found, count) for count in (piece.first, piece.second))
        alike = [item for item in self.found if item.shape[2:] == x.shape[2:]]
        same = [item for item in alike if item.shape == x.shape]
        channels, kernel, stride = piece.channels, piece.kernel, piece.stride
        match piece.kind:
            case "conv":
                self._end(piece, *self._conv(x, channels, kernel, stride))
            case "block":  # it may add its own input
                beside = self._back(alike, piece.second)
                y, shape = self._conv(x, beside.shape[1], kernel, 1)
                self._end(piece, self._op("Add", y, beside.name), shape)
            case "projection":
                other = other if other in alike else x
                y = self._conv(other, channels, 1, stride)[0]
                z, shape = self._conv(x, channels, kernel, stride)
                self._end(piece, self._op("Add", z, self.quantise(y, -4)), shape)
            case "siblings":
                for own in (channels, channels + 3):
                    self._end(piece, *self._conv(x, own, kernel, stride))
            case "pooled" if min(x.shape[2:]) // stride > 1:
                self._end(piece, *self._conv(x, channels, kernel, stride))
                self._pool(self.found[-1])
            case "pool" if min(x.shape[2:]) > 1:
                self._pool(x)
            case "add":
                y = self._op("Add", x.name, self._back(same, piece.second).name)
                self._end(piece, y, x.shape)
            case "average" if max(x.shape[2:]) > 1:
                y = self._op("GlobalAveragePool", x.name)
                self._end(piece, y, (1, x.shape[1], 1, 1))
            case "concat":
                beside = self._back([t for t in alike if t.exponent == x.exponent], piece.second)
                y = self._op("Concat", x.name, beside.name, axis=1)
                shape = (1, x.shape[1] + beside.shape[1], *x.shape[2:])
                self.found.append(Tensor(self.quantise(y, x.exponent), shape, x.exponent))

    @staticmethod
    def _back(tensors: list[Tensor], count: int) -> Tensor:
        return tensors[-1 - count % len(tensors)]

    def _op(self, kind: str, *inputs: str, **attributes: object) -> str:
        return self.op(kind, f"{kind.lower()}{len(self.nodes)}", inputs, **attributes)

    def _conv(self, x: Tensor, channels: int, kernel: int, stride: int) -> tuple[str, Shape]:
        y = self.conv(
            x.name, f"conv{len(self.nodes)}", (channels, x.shape[1], kernel, kernel),
            (x.exponent, -7), strides=(stride,) * 2, pads=(kernel // 2,) * 4,
        )  # fmt: skip
        return y, (1, channels, -(-x.shape[2] // stride), -(-x.shape[3] // stride))

    def _pool(self, x: Tensor) -> None:
        y = self._op("MaxPool", x.name, kernel_shape=(2, 2), strides=(2, 2))
        shape = (*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2)
        self.found.append(Tensor(self.quantise(y, x.exponent), shape, x.exponent))

    def _end(self, piece: Piece, y: str, shape: Shape) -> None:
        y = self._op("Relu", y) if piece.relu else y
        self.found.append(Tensor(self.quantise(y, piece.exponent), shape, piece.exponent))


@pytest.mark.slow(seconds=4)
@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(pieces, min_size=2, max_size=9),
    st.lists(st.booleans(), min_size=60, max_size=60),
    st.none() | st.integers(1, 8),
    st.integers(0, 99),
)
@example(  # the block adds its own input, without a projection
    [Piece("conv", 0, 0, 1, 16, 1, False, -4), Piece("block", 0, 0, 3, 16, 1, True, -3)],
    [True] * 60, None, 0,
)  # fmt: skip
def test_any_labelling_of_any_network_computes_the_same(
    drawn: list[Piece], labels: list[bool], inside: int | None, seed: int
) -> None:
    """The outputs are the last tensor and sometimes an inner one."""
    net = Drawn(seed)
    for piece in drawn:
        net.add(piece)
    chosen = {net.found[-1]} | ({net.found[inside % len(net.found)]} if inside else set())
    results = [(element.name, element.shape) for element in net.found[1:] if element in chosen]
    if not results:
        return
    graph = integer_graph(net.model(*results), BLOCKS)
    result = choices(graph)
    inputs = random_inputs(graph, seed)
    expected = run(graph, inputs, in_memory(graph))
    for item in ([True] * len(result), labels[: len(result)]):
        network = apply_labels(graph, item, result)
        assert network.macs == graph.macs
        values = run(network, inputs, in_memory(network))
        for name in {output.name for output in graph.outputs} | (set(expected) & set(values)):
            np.testing.assert_array_equal(values[name], expected[name])
