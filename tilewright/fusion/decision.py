"""Decides which operators of a network are fused, explains the decision, and previews it.

`decide` serves a run whose workloads are tuned. `preview` works before tuning and uses, for each
workload, the schedule with the best estimated latency. Both return a summary, whose rows appear in
reports, and the content of `fusion.json`.
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
    """Decide which operators are fused, in the mode that the options name.

    Args:
        asked: the network, the target, the options and the tuned workloads of a run.
        heard: called with the evaluation of each simulated network and the number of simulations so
            far.

    Returns:
        The summary of the decision, and the content of `fusion.json`.

    Raises:
        FusionError: the target does not run programs that Tilewright generates.
        TilewrightError: the network cannot be quantised, or tuning fails.
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
    """Assemble the result of a fusion decision from labellings that were evaluated.

    A labelling holds one bool per possible fusion: whether it is applied.

    Args:
        asked: the request of the run; its option `fusion` names the mode whose labelling is chosen.
        problem: the possible fusions.
        evaluator: returns the cost of a labelling. It has already evaluated all labellings in
            `named`.
        named: one labelling per mode, by the name of the mode ("none", "all", "greedy", "learned").
        spent: number of labelled networks that were simulated.
        by_estimates: True if the schedules in `evaluator` were chosen by their estimated latency,
            False if they are tuned.

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

    Args:
        asked: the request of the run; its options name the model file and the calibration samples.

    Returns:
        The possible fusions of the network.

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
    """Compute and evaluate one labelling per fusion mode.

    A labelling holds one bool per possible fusion: whether it is applied. In the mode "learned",
    the result contains the labellings of all modes, because the learned labelling is compared with
    the others. In every other mode, it contains only labellings that need no further tuning once
    the requested labelling is tuned. Fusions that create a layer without a valid schedule are
    removed from the requested labelling.

    Args:
        problem: the possible fusions.
        evaluator: returns the cost of a labelling.
        asked: the request of the run; its option `fusion` names the requested mode.

    Returns:
        Labellings by the names of their modes.

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

    A labelling holds one bool per possible fusion: whether it is applied. The search starts from
    the labellings of the modes "none", "all" and "greedy".

    Args:
        problem: the possible fusions.
        evaluator: returns the cost of a labelling.
        seed: seed of the models and of the search.

    Returns:
        The best labelling found, under "learned", and the three labellings that the search starts
        from, by mode.

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

    For each layer without a schedule, the function undoes a group of sibling fusions, a single
    fusion, or a whole segment: the first of these that removes the layer from the network.

    Args:
        evaluator: provides the schedules; it tunes new workloads.
        labels: the labelling to change: one bool per possible fusion.

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
        workloads: the workloads to tune.

    Returns:
        One schedule per workload; None if tuning found no valid schedule.
    """
    many = f"{len(workloads)} more {'workload' if len(workloads) == 1 else 'workloads'}"
    asked.emit(Note(f"{asked.network}: {many}, of operators that are fused in another way"))
    return [_pick(item) for item in asked.more([_subgraph(workload) for workload in workloads])]


def _subgraph(workload: Workload) -> Subgraph:
    """Return a subgraph that calls one workload once, in the form that tuning expects.

    The real number of calls is not known yet.
    """
    return Subgraph(workload, 1, ("fused",), workload.macs)


def _pick(tuned: TunedWorkload) -> Pick | None:
    chosen = tuned.chosen
    return None if chosen is None else Pick(chosen.space, chosen.config)


def list_decisions(
    evaluator: Evaluator, labels: Labelling, guessing: Evaluator
) -> list[FusionDecision]:
    """Return one row per possible fusion with the cycles and bytes that applying it saves.

    A saving compares two labellings that differ only in this fusion. If the labelling with the
    opposite decision needs workloads that are not tuned, both networks are timed with the schedules
    that have the best estimates.

    Args:
        evaluator: times labellings with tuned schedules.
        labels: the chosen labelling: one bool per possible fusion.
        guessing: times labellings with schedules that were chosen by their estimated latency.
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
    """Return the cycles and bytes that one labelling saves compared with another.

    Args:
        timing: times labellings.
        labels: the labelling whose savings are computed: one bool per possible fusion.
        other: the labelling with which it is compared.

    Returns:
        The saved cycles and the saved bytes; None if a layer of one of the two networks has no
        valid schedule.
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

    The content includes the label of each possible fusion, the fusions that are not possible, and
    one schedule per workload of the fused network.

    Args:
        asked: the request of the run.
        problem: the possible fusions.
        chosen: the evaluation of the chosen labelling, with its schedules.
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

    The function compares three selections of fusions: none, all, and those that estimated latencies
    favour ("greedy"). It also lists the saving of each fusion. Whole networks are simulated, with
    schedules that were chosen by their estimated latency.

    Args:
        options: options of the run; the fusion mode is ignored.
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

    A row contains:

    - `name`: the name of the layer.
    - `title`: the operator and shape of its workload.
    - `cycles`: the cycles of the layer when it runs alone.
    - `reads`: indices of the rows of the layers whose results the layer reads.
    - `labels`: indices of the fusion decisions that concern the layer.

    Args:
        problem: the possible fusions.
        chosen: the evaluation of the chosen labelling, with the cost of each layer.
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
    """Return, for each layer, which fusion decisions concern its operators.

    Args:
        problem: the possible fusions.
        layers: layers of the fused network.

    Returns:
        Indices of the decisions, one list per layer.
    """
    base = {layer.output: layer for layer in problem.graph.layers}
    labels: list[list[int]] = [[] for _ in layers]
    for place, choice in enumerate(problem.offered):
        last = base[choice.layers[-1]]
        for row, layer in enumerate(layers):
            # After `in_parts`, several layers have the operator name of one split average pool, so
            # averages are matched by the tensor that they write.
            own = layer.output == last.output or choice.kind != "average"
            if own and set(last.names) <= set(layer.names):
                labels[row].append(place)
                break
    return labels


def list_read_rows(graph: IntegerGraph) -> list[list[int]]:
    """Return, for each layer, which layers compute the tensors that it reads.

    Args:
        graph: the network. Row k is its layer number k.

    Returns:
        Sorted row indices, one list per layer.
    """
    writers = {layer.output: row for row, layer in enumerate(graph.layers)}
    return [
        sorted({row for name in layer.reads for row in _writers(graph, name, writers, set())})
        for layer in graph.layers
    ]


def _writers(graph: IntegerGraph, name: str, writers: dict[str, int], seen: set[str]) -> set[int]:
    """Return the row indices of the layers that write a tensor.

    If no layer writes the tensor itself, the result contains the layers that write its parts, or
    otherwise those that write the tensor that it is a part of.

    Args:
        graph: the network.
        name: name of the tensor.
        writers: row index of the layer that writes a tensor, by the name of the tensor.
        seen: names of the tensors that were visited, to avoid endless recursion; the function adds
            to this set.
    """
    if name in writers or name in seen:
        return {writers[name]} if name in writers else set()
    seen.add(name)
    parts = [slice_.part for slice_ in graph.slices if slice_.whole == name]
    wholes = [slice_.whole for slice_ in graph.slices if slice_.part == name]
    return {row for part in parts or wholes for row in _writers(graph, part, writers, seen)}
