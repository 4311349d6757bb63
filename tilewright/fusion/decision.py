"""Decides which operators of a network are fused, explains the decision, and previews it.

`decide` serves a run whose workloads are tuned. `preview` works before tuning and uses the
schedules with the best estimates. Both return the summary and the rows that reports show.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tilewright.core.files import Json
from tilewright.fusion.evaluator import (
    Evaluation,
    Evaluator,
    FusionSchedules,
    Heard,
    NoSchedule,
    make_estimate_evaluator,
)
from tilewright.fusion.learned.pretrained import shipped_models
from tilewright.fusion.learned.search import learned_search
from tilewright.fusion.problem import FusionProblem, Labelling
from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import traits_of
from tilewright.targets.display_names import shape
from tilewright.targets.workload import Workload
from tilewright.tuning.build_artifact import integer_network, read_model
from tilewright.tuning.build_options import BuildOptions
from tilewright.tuning.events import Note
from tilewright.tuning.fusion_interface import Decided, FusionDecision, FusionSummary, ToDecide
from tilewright.tuning.network import Subgraph
from tilewright.tuning.options import PER_CHANNEL, TuningOptions
from tilewright.tuning.results import TunedWorkload

if TYPE_CHECKING:
    from tilewright.fusion.evaluator import Evaluation
    from tilewright.networks.integer.graph import IntegerGraph
    from tilewright.targets.layer import Layer


def decide(asked: ToDecide, heard: Heard | None = None) -> Decided:
    """Decide which operators are fused, with the mode in the options.

    The arguments, results and errors are those of `tilewright.fusion.decide_fusion`.
    """
    problem = read_problem(asked)
    schedules = FusionSchedules(
        traits_of(asked.target).blocks, lambda some: _tune_workloads(asked, some)
    )
    for workload_result in asked.tuned:
        if (pick := _pick(workload_result)) is not None:
            schedules.add(workload_result.workload, pick)
    evaluator = Evaluator(problem, schedules, heard)
    if not len(problem):
        asked.emit(
            Note(
                f"{asked.network}: there is nothing to fuse in this network, so all modes give the "
                "same result"
            )
        )
    named = name_labellings(problem, evaluator, asked)
    return build_decision(asked, problem, evaluator, named, evaluator.count)


def build_decision(
    asked: ToDecide,
    problem: FusionProblem,
    evaluator: Evaluator,
    named: dict[str, Labelling],
    spent: int,
    *,
    by_estimates: bool = False,
) -> Decided:
    """Assemble the result of a fusion decision from the evaluated labellings.

    A labelling says for each possible fusion whether it is applied.

    Args:
        asked: the request of the run; its option `fusion` names the mode whose labelling is chosen.
        problem: the possible fusions.
        evaluator: returns the cost of a labelling; it has evaluated all of `named`.
        named: labellings by the names of the modes.
        spent: number of labelled networks that were simulated.
        by_estimates: the evaluator uses schedules that were chosen by estimates, not tuned ones.

    Returns:
        The summary, and the content of `fusion.json`.
    """
    chosen = evaluator(named[asked.options.fusion])
    guessing = evaluator if by_estimates else make_estimate_evaluator(problem, asked.options.seed)
    decision = {name: evaluator(labels) for name, labels in named.items()}
    tuned = evaluator.schedules.tuned
    summary: FusionSummary = {
        "mode": asked.options.fusion,
        "decisions": list_decisions(evaluator, chosen.labels, guessing),
        "cycles": {name: result.cycles for name, result in decision.items()},
        "dram_bytes": {name: result.dram_bytes for name, result in decision.items()},
        "evaluations": spent,
        "tuned": tuned,
    }
    return Decided(summary, build_fusion_file(asked, problem, chosen))


def read_problem(asked: ToDecide) -> FusionProblem:
    """Read the network of a run as a quantised graph in which nothing is fused.

    Raises:
        TilewrightError: the network cannot be read or quantised.
    """
    options = asked.options
    build = BuildOptions(
        model=options.model, out=Path(options.out), target=options.target,
        per_channel=options.epilogue == PER_CHANNEL, input_shapes=options.input_shapes,
        calibration=Path(options.calibration) if options.calibration else None,
        seed=options.seed,
    )  # fmt: skip
    graph = integer_network(build, asked.target, read_model(build), apart=True).graph
    return FusionProblem(graph, asked.target)


def name_labellings(
    problem: FusionProblem, evaluator: Evaluator, asked: ToDecide
) -> dict[str, Labelling]:
    """Compute and evaluate labellings, and return them by the names of the modes.

    A labelling says for each possible fusion whether it is applied. The result contains the
    labelling of the requested mode and those that need no further tuning. In the mode "learned", it
    contains all labellings that the learned one has to beat. Fusions that create a layer without a
    valid schedule are removed.

    Args:
        problem: the possible fusions.
        evaluator: returns the cost of a labelling.
        asked: the request of the run.

    Raises:
        NoSchedule: a layer without fused operators has no valid schedule.
        TilewrightError: tuning fails.
    """
    mode = asked.options.fusion
    named = {"none": problem.none, "all": problem.all, "greedy": problem.greedy}
    if mode == "learned":
        return search_labellings(problem, evaluator, asked.options.seed)
    named[mode] = drop_unscheduled_labels(evaluator, named[mode])
    free = [name for name, labels in named.items() if not evaluator.untuned_workloads(labels)]
    return {name: named[name] for name in free if _runs(evaluator, named[name])}


def search_labellings(
    problem: FusionProblem, evaluator: Evaluator, seed: int
) -> dict[str, Labelling]:
    """Search for the labelling with the lowest cost, with the learned models.

    A labelling says for each possible fusion whether it is applied.

    Args:
        problem: the possible fusions.
        evaluator: returns the cost of a labelling.
        seed: seed of the models and of the search.

    Returns:
        The labelling found, under "learned", and the labellings that it has to beat, by mode.

    Raises:
        NoSchedule: a layer without fused operators has no valid schedule.
        TilewrightError: tuning fails.
    """
    known = {"none": problem.none, "all": problem.all, "greedy": problem.greedy}
    named = {name: drop_unscheduled_labels(evaluator, labels) for name, labels in known.items()}
    model, policy = shipped_models(seed)
    rng = np.random.default_rng([seed, 0])
    result = learned_search(problem, evaluator, model, policy, list(named.values()), rng)
    return named | {"learned": result}


def drop_unscheduled_labels(evaluator: Evaluator, labels: Labelling) -> Labelling:
    """Undo fusions that create layers without a valid schedule, and return the changed labelling.

    Args:
        evaluator: provides the schedules; it tunes new workloads.
        labels: the labelling: whether each possible fusion is applied.

    Raises:
        NoSchedule: a layer without fused operators has no valid schedule.
        TilewrightError: tuning fails.
    """
    problem = evaluator.problem
    while True:
        try:
            evaluator(labels)
            return labels
        except NoSchedule as error:
            alone = tuple((k,) for k in range(len(problem)))
            for places in (*problem.groups, *alone, *problem.segments):
                apart = tuple(label and k not in places for k, label in enumerate(labels))
                if apart != labels and error.workload not in problem.workloads(apart):
                    labels = apart
                    break
            else:
                raise


def _runs(evaluator: Evaluator, labels: Labelling) -> bool:
    try:
        evaluator(labels)
    except NoSchedule:
        return False
    return True


def _tune_workloads(asked: ToDecide, workloads: Sequence[Workload]) -> list[Pick | None]:
    """Tune workloads that the run has not tuned, because only a different fusion creates them.

    Args:
        asked: the request of the run.
        workloads: the workloads.

    Returns:
        The schedule of each workload; None if tuning found no valid schedule.
    """
    many = f"{len(workloads)} more {'workload' if len(workloads) == 1 else 'workloads'}"
    asked.emit(Note(f"{asked.network}: {many}, of operators that are fused in another way"))
    return [_pick(item) for item in asked.more([_subgraph(workload) for workload in workloads])]


def _subgraph(workload: Workload) -> Subgraph:
    """Return a subgraph for a workload. Its number of calls is not known yet, so it is 1."""
    return Subgraph(workload, 1, ("fused",), workload.macs)


def _pick(tuned: TunedWorkload) -> Pick | None:
    chosen = tuned.chosen
    return None if chosen is None else Pick(chosen.space, chosen.config)


def list_decisions(
    evaluator: Evaluator, labels: Labelling, guessing: Evaluator
) -> list[FusionDecision]:
    """Return one row per fusion decision with the cycles and bytes that fusing saves.

    The savings hold if all other decisions stay the same. If the opposite decision needs workloads
    that are not tuned, both variants are timed with the schedules that have the best estimates.

    Args:
        evaluator: times labellings with tuned schedules.
        labels: the chosen labelling: whether each possible fusion is applied.
        guessing: times labellings with schedules chosen by their estimates.
    """
    problem, rows = evaluator.problem, list[FusionDecision]()
    for place, choice in enumerate(problem.offered):
        other = problem.flip_labels(labels, [place])
        guessed = evaluator is guessing or bool(evaluator.untuned_workloads(other))
        saved = _saved_cost(guessing if guessed else evaluator, labels, other)
        if labels[place] or saved is None:
            cycles, size = saved or (None, None)
        else:
            cycles, size = -saved[0], -saved[1]
        rows.append(
            {
                "name": str(choice), "kind": choice.kind, "fused": labels[place],
                "cycles_saved": cycles, "dram_bytes_saved": size, "estimated": guessed,
            }
        )  # fmt: skip
    return rows


def _saved_cost(timing: Evaluator, labels: Labelling, other: Labelling) -> tuple[int, int] | None:
    """Return the cycles and bytes by which one labelling is cheaper than another labelling.

    Args:
        timing: times labellings.
        labels: the labelling.
        other: the labelling with which it is compared.

    Returns:
        Cycles and bytes; None if one of the labellings has a layer without a valid schedule.
    """
    try:
        here, there = timing(labels), timing(other)
    except NoSchedule:
        return None
    return there.cycles - here.cycles, there.dram_bytes - here.dram_bytes


def build_fusion_file(
    asked: ToDecide, problem: FusionProblem, chosen: Evaluation
) -> dict[str, Json]:
    """Return the content of `fusion.json`, which `tilewright build` reads.

    It contains the fusion decisions, and a schedule for each resulting workload.

    Args:
        asked: the request of the run.
        problem: the possible fusions.
        chosen: the chosen labelling with its schedules.
    """
    layers = problem.labelled(chosen.labels).layers
    rows: dict[Workload, dict[str, Json]] = {}
    costs = zip(layers, chosen.workloads, chosen.picks, chosen.layers, strict=True)
    for layer, workload, pick, cost in costs:
        row = rows.setdefault(
            workload,
            {
                "id": workload.id,
                "workload": str(workload),
                "epilogue": workload.epilogue_text,
                "names": [],
                "space": pick.space,
                "config": list(pick.config),
                "cycles": cost.cycles,
            },
        )
        names = row["names"]
        assert isinstance(names, list)
        names.append(layer.name)
    return {
        "network": asked.network,
        "mode": asked.options.fusion,
        "labels": [
            {"name": str(choice), "kind": choice.kind, "fused": label}
            for choice, label in zip(problem.offered, chosen.labels, strict=True)
        ],
        "refused": [
            {"name": f"{item.kind} {item.name}", "kind": item.kind, "reason": item.reason}
            for item in problem.refused
        ],
        "schedules": list(rows.values()),
        "layers": list[Json](list_layers(problem, chosen)),
    }


def preview(options: TuningOptions, target: Target, network: str) -> Decided:
    """Preview the fusion of a network by estimates, without tuning.

    The result compares fusing by estimates with fusing nothing and fusing everything, and lists the
    savings of each decision. Whole networks are simulated.

    Args:
        options: options of the run; the mode is ignored.
        target: the target.
        network: name of the network.

    Returns:
        The summary of the decision, and the content of `fusion.json`.

    Raises:
        FusionError: the target does not run programs that Tilewright generates.
        TilewrightError: the network cannot be quantised.
    """
    options = options.model_copy(update={"fusion": "greedy"})
    asked = ToDecide(options, target, network, (), lambda _: [], lambda _: None)
    problem = read_problem(asked)
    evaluator = make_estimate_evaluator(problem, options.seed)
    every = {"none": problem.none, "all": problem.all, "greedy": problem.greedy}
    named = {name: drop_unscheduled_labels(evaluator, labels) for name, labels in every.items()}
    return build_decision(asked, problem, evaluator, named, evaluator.count, by_estimates=True)


def list_layers(problem: FusionProblem, chosen: Evaluation) -> list[dict[str, Json]]:
    """Return one row per layer of a fused network, in execution order.

    A row contains the name, the title of the workload, the cycles of the layer by itself, the rows
    of the layers whose results it reads (`reads`), and the indices of the fusion decisions that
    concern it (`labels`).

    Args:
        problem: the possible fusions.
        chosen: the chosen labelling with the cost of each layer.
    """
    graph = problem.labelled(chosen.labels)
    layers = graph.layers
    labels, reads = _labels(problem, layers), list_read_rows(graph)
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
    """Return for each layer the indices of the fusion decisions that concern its operators."""
    base = {layer.output: layer for layer in problem.graph.layers}
    labels: list[list[int]] = [[] for _ in layers]
    for place, choice in enumerate(problem.offered):
        last = base[choice.layers[-1]]
        for row, layer in enumerate(layers):
            # one operator is the average of each part of what lies side by side
            own = layer.output == last.output or choice.kind != "average"
            if own and set(last.names) <= set(layer.names):
                labels[row].append(place)
                break
    return labels


def list_read_rows(graph: IntegerGraph) -> list[list[int]]:
    """Return for each layer the rows of the layers that produce its inputs."""
    writers = {layer.output: row for row, layer in enumerate(graph.layers)}
    return [
        sorted({row for name in layer.reads for row in _writers(graph, name, writers, set())})
        for layer in graph.layers
    ]


def _writers(graph: IntegerGraph, name: str, writers: dict[str, int], seen: set[str]) -> set[int]:
    """Return the rows of the layers that write a tensor.

    If no layer writes the tensor itself, these are the layers that write its parts, or the tensor
    that it is a part of.

    Args:
        graph: the network.
        name: name of the tensor.
        writers: row of the layer that writes a tensor, by the name of the tensor.
        seen: names of the tensors that were visited, to avoid loops; it is extended.
    """
    if name in writers or name in seen:
        return {writers[name]} if name in writers else set()
    seen.add(name)
    parts = [slice_.part for slice_ in graph.slices if slice_.whole == name]
    wholes = [slice_.whole for slice_ in graph.slices if slice_.part == name]
    return {row for part in parts or wholes for row in _writers(graph, part, writers, seen)}
