"""Trains models once for several searches of fusion, each of which corrects its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.fusion_search.examples import Examples, graphs_of
from benchmarks.fusion_training import trained
from tilewright.fusion.learned.graph_model import GraphModel, Trees
from tilewright.fusion.learned.policy import Policy


class Trained:
    """Models that learned from some examples."""

    def __init__(self, others: list[Examples]) -> None:
        self.others = others
        self._folder = tempfile.TemporaryDirectory()
        self._kept: dict[str, Path] = {}
        model, self._policy = trained(others)
        self._keep("trees", model)

    def of(self, kind: str) -> tuple[GraphModel, Policy]:
        """A kind of model of labelled graphs, `trees` or `graph-network`, and the policy, which no
        search changes."""
        if kind not in self._kept:
            network = _made(kind)
            network.fit(graphs_of(self.others))
            self._keep(kind, network)
        model = _made(kind)
        model.load(self._kept[kind])
        return model, self._policy

    def _keep(self, kind: str, model: GraphModel) -> None:
        self._kept[kind] = Path(self._folder.name) / kind
        model.save(self._kept[kind])


def _made(kind: str) -> GraphModel:
    """One that has learned nothing."""
    if kind == "trees":
        return Trees()
    from benchmarks.fusion_search.graph_network import GraphNetwork

    return GraphNetwork()
