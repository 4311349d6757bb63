"""Describes a labelled network for pages: layers in order, their readers, decisions about each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.core.files import Json
from tilewright.fusion.problem import FusionProblem
from tilewright.targets.display_names import shape

if TYPE_CHECKING:
    from tilewright.fusion.evaluator import Evaluation
    from tilewright.networks.integer.graph import IntegerGraph
    from tilewright.targets.layer import Layer


def rows_of(problem: FusionProblem, chosen: Evaluation) -> list[dict[str, Json]]:
    """A row a layer, in the order they run: its name, its workload's title, its cycles by itself,
    the rows of the layers whose results it reads (`reads`), and the places of the labels that made
    it what it is (`labels`)."""
    graph = problem.labelled(chosen.labels)
    layers = graph.layers
    labels, reads = _labels(problem, layers), rows_read(graph)
    return [
        {
            "name": layer.name,
            "title": shape(layer.workload),
            "cycles": cost.cycles,
            "reads": list[Json](reads[row]),
            "labels": list[Json](labels[row]),
        }
        for row, (layer, cost) in enumerate(zip(layers, chosen.layers, strict=True))
    ]


def _labels(problem: FusionProblem, layers: Sequence[Layer]) -> list[list[int]]:
    """By row the labels that are shown there: with the layer that has the operators in question."""
    base = {layer.output: layer for layer in problem.graph.layers}
    found: list[list[int]] = [[] for _ in layers]
    for place, choice in enumerate(problem.offered):
        last = base[choice.layers[-1]]
        for row, layer in enumerate(layers):
            # one operator is the average of each part of what lies side by side
            own = layer.output == last.output or choice.kind != "average"
            if own and set(last.names) <= set(layer.names):
                found[row].append(place)
                break
    return found


def rows_read(graph: IntegerGraph) -> list[list[int]]:
    """Of each layer, the rows of the layers that write what it reads."""
    writers = {each.output: row for row, each in enumerate(graph.layers)}
    return [
        sorted({row for name in layer.reads for row in _writers(graph, name, writers, set())})
        for layer in graph.layers
    ]


def _writers(graph: IntegerGraph, name: str, writers: dict[str, int], seen: set[str]) -> set[int]:
    """The layers that write a tensor, or the parts of it, or what it is a part of."""
    if name in writers or name in seen:
        return {writers[name]} if name in writers else set()
    seen.add(name)
    parts = [each.part for each in graph.slices if each.whole == name]
    wholes = [each.whole for each in graph.slices if each.part == name]
    return {row for each in parts or wholes for row in _writers(graph, each, writers, seen)}
