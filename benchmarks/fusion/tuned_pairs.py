"""Tunes a network on a target once, for all benchmarks of fusion.

The schedules are stored in files, so that a stopped benchmark resumes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.fusion.examples import Examples
from tilewright.core.files import write_atomically
from tilewright.flows.build import tuned_picks
from tilewright.fusion.evaluator import Evaluation, Evaluator, FusionSchedules
from tilewright.fusion.model_features import Figures, Tables, label_unit, list_units, unit_features
from tilewright.fusion.problem import FusionProblem, Labelling, groups_of, segments_of
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import traits_of
from tilewright.targets.features import Features
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload, parse_workload
from tilewright.tuning.build_artifact import integer_network, read_model
from tilewright.tuning.build_options import BuildOptions

NETWORKS = ("resnet50", "inception_v3", "mobilenet_v2", "vit_tiny")
TARGETS = ("vta-pynq", "large", "huge")
KEEP_EVERY = 8
"""Number of workloads that are tuned between two writes of the file."""
DRAWN = 24
"""Number of random labellings in the training examples, besides the named ones."""


class KeptSchedules(FusionSchedules):
    """Schedules of one target, tuned with `trials` trials per workload and stored in a file."""

    def __init__(self, target: Target, trials: int, folder: Path) -> None:
        super().__init__(traits_of(target).blocks, self._tune)
        self._target, self._trials = target, trials
        self._path = folder / f"schedules-{target.name}-{trials}.json"
        self._rows: list[list[object]] = []
        if self._path.exists():
            self._rows = json.loads(self._path.read_text())
        for text, epilogue, space, config in self._rows:
            workload = parse_workload(str(text), str(epilogue))
            self._found[workload] = Pick(str(space), tuple(config))  # type: ignore[arg-type]

    def known(self, workload: Workload) -> Pick | None:
        """Return the schedule of exactly this workload, or None."""
        return self._found.get(workload)

    def _tune(self, workloads: Sequence[Workload]) -> list[Pick]:
        results = []
        for number, workload in enumerate(workloads):
            (pick,) = tuned_picks([workload], self._target, self._trials)
            results.append(pick)
            steps = workload.epilogue_text
            self._rows.append([str(workload), steps, pick.space, list(pick.config)])
            if number % KEEP_EVERY == KEEP_EVERY - 1 or number == len(workloads) - 1:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._path, json.dumps(self._rows).encode())
        return results


class Part(FusionProblem):
    """A problem with some decisions of a network. All other decisions keep the labels in `held`."""

    def __init__(self, whole: FusionProblem, places: Sequence[int], held: Labelling) -> None:
        super().__init__(whole.graph, whole.target)
        self.whole, self.places, self.held = whole, tuple(places), held
        self.offered = tuple(whole.offered[place] for place in places)
        self.segments = segments_of(self.offered)
        self.groups = groups_of(self.offered)

    def whole_labels(self, labels: Labelling) -> Labelling:
        """Return labels of the whole network, with `labels` for the decisions of this part."""
        own = dict(zip(self.places, labels, strict=True))
        return tuple(own.get(place, label) for place, label in enumerate(self.held))

    def _build_graph(self, labels: Labelling) -> IntegerGraph:
        return self.whole.labelled(self.whole_labels(labels))


class Counted(Evaluator):
    """Evaluator that counts the evaluations of one search.

    It gets results from a shared evaluator, and evaluates either a whole network or a part of one.
    """

    def __init__(self, backing: Evaluator, part: Part | None = None) -> None:
        super().__init__(part or backing.problem, backing.schedules)
        self.backing = backing
        self.part = part

    def reevaluate(self, labels: Labelling) -> Evaluation:
        """Return the shared evaluator's evaluation. See `Evaluator.reevaluate`."""
        whole = labels if self.part is None else self.part.whole_labels(labels)
        return replace(self.backing(whole), labels=labels)


def make_problem(network: str, target_name: str) -> FusionProblem:
    """Return the fusion problem of a network on a target."""
    target = make_target(target_name)
    options = BuildOptions(model=network, out=Path(), target=target_name)
    graph = integer_network(options, target, read_model(options), apart=True).graph
    return FusionProblem(graph, target)


def make_pair_evaluator(network: str, target_name: str, trials: int, folder: Path) -> Evaluator:
    """Return an evaluator of a network on a target, with tuned schedules."""
    problem = make_problem(network, target_name)
    return Evaluator(problem, KeptSchedules(problem.target, trials, folder))


def named_labellings(problem: FusionProblem) -> dict[str, Labelling]:
    """Return the fixed labellings, such as "all" and "greedy", by name."""
    return {
        "none": problem.none, "all": problem.all, "greedy": problem.greedy, "tvm": problem.tvm,
        "no shortcuts": problem.no_shortcuts, "no averages": problem.no_averages,
    }  # fmt: skip


def make_examples(evaluator: Evaluator, seed: int = 0) -> Examples:
    """Return training examples of a pair of network and target.

    The simulated labellings are the named ones, some random ones, and the best named one with a
    single unit changed, for each unit.
    """
    problem, rng = evaluator.problem, np.random.default_rng(seed)
    figures = Figures(problem, evaluator)
    before = unit_features(problem, figures, problem.tvm)
    labellings = list(named_labellings(problem).values())
    best = min(labellings, key=lambda labels: evaluator(labels).cost)
    for share in np.linspace(0.2, 0.95, DRAWN):
        labellings.append(tuple((rng.random(len(problem)) < share).tolist()))
    around = {
        unit: [label_unit(best, unit, label) for label in (False, True)]
        for unit in list_units(problem)
    }
    labellings += [labels for both in around.values() for labels in both]
    for labels in dict.fromkeys(labellings):
        evaluator(labels)
    after = unit_features(problem, figures, best)
    better, kept = [], []
    for row, (apart, together) in enumerate(around.values()):
        saved = evaluator(apart).cycles - evaluator(together).cycles
        if saved:
            kept.append(row)
            better.append(saved > 0)
    tables = Tables(problem, figures)
    blank = Tables(problem, Figures(problem, Evaluator(problem, evaluator.schedules)))
    graphs = [tables.graph_table(labels) for labels in dict.fromkeys(labellings)]
    # A model is also asked about layers of which nothing but the estimate is known.
    graphs += [
        replace(blank.graph_table(labels), stream=tables.graph_table(labels).stream)
        for labels in dict.fromkeys(labellings[: len(named_labellings(problem)) + DRAWN])
    ]
    rows = np.array(kept, np.int64)
    units = Features(np.concatenate([before.matrix[rows], after.matrix[rows]]), before.columns)
    return Examples(tuple(graphs), units, np.array(better * 2, np.bool_))
