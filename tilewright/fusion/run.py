"""Decides what is fused for a run whose workloads are tuned: the order of the steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilewright.core.files import Json
from tilewright.fusion.estimate_evaluator import estimating
from tilewright.fusion.evaluator import Evaluation, Evaluator, Heard
from tilewright.fusion.learned.pretrained import shipped_models
from tilewright.fusion.learned.search import learned_search
from tilewright.fusion.problem import FusionProblem, Labelling
from tilewright.fusion.report_rows import rows_of
from tilewright.fusion.schedules import FusionSchedules, NoSchedule
from tilewright.targets.artifact_types import Pick
from tilewright.targets.capabilities import blocks_of
from tilewright.targets.workload import Workload
from tilewright.tuning.build_artifact import integer_network
from tilewright.tuning.build_options import BuildOptions
from tilewright.tuning.events import Note
from tilewright.tuning.fusion_interface import Decided, FusionDecision, FusionSummary, ToDecide
from tilewright.tuning.network import Subgraph
from tilewright.tuning.options import PER_CHANNEL
from tilewright.tuning.results import TunedWorkload


def decide(asked: ToDecide, heard: Heard | None = None) -> Decided:
    """What is fused, by the mode that was asked for. Raises `FusionError` for a target that runs no
    programs of ours, and what quantising and tuning raise."""
    problem = problem_of(asked)
    schedules = FusionSchedules(blocks_of(asked.target), lambda some: _tuned(asked, some))
    for each in asked.tuned:
        if (pick := _pick(each)) is not None:
            schedules.add(each.workload, pick)
    evaluator = Evaluator(problem, schedules, heard)
    if not len(problem):
        asked.emit(Note(f"{asked.network}: nothing in it may be fused or not; all modes are equal"))
    named = labellings(problem, evaluator, asked)
    return decided(asked, problem, evaluator, named, evaluator.count)


def decided(
    asked: ToDecide,
    problem: FusionProblem,
    evaluator: Evaluator,
    named: dict[str, Labelling],
    spent: int,
    *,
    by_estimates: bool = False,
) -> Decided:
    """What was decided, of labellings that have a name and are evaluated, that of the mode asked
    for among them; it took `spent` labelled graphs. `by_estimates`: all by schedules that are
    estimated best."""
    chosen = evaluator(named[asked.options.fusion])
    guessing = evaluator if by_estimates else estimating(problem, asked.options.seed)
    each = {name: evaluator(labels) for name, labels in named.items()}
    tuned = evaluator.schedules.tuned
    summary: FusionSummary = {
        "mode": asked.options.fusion,
        "decisions": decisions_of(evaluator, chosen.labels, guessing),
        "cycles": {name: found.cycles for name, found in each.items()},
        "dram_bytes": {name: found.dram_bytes for name, found in each.items()},
        "evaluations": spent,
        "tuned": tuned,
    }
    return Decided(summary, file_of(asked, problem, chosen))


def problem_of(asked: ToDecide) -> FusionProblem:
    """The network of a run in integers, with nothing fused. Raises what quantising raises."""
    options = asked.options
    build = BuildOptions(
        model=options.model, out=Path(options.out), target=options.target,
        per_channel=options.epilogue == PER_CHANNEL, input_shapes=options.input_shapes,
        calibration=Path(options.calibration) if options.calibration else None,
        seed=options.seed,
    )  # fmt: skip
    graph = integer_network(build, asked.target, apart=True).graph
    return FusionProblem(graph, asked.target)


def labellings(
    problem: FusionProblem, evaluator: Evaluator, asked: ToDecide
) -> dict[str, Labelling]:
    """The labellings that have a name, all evaluated: the one that was asked for, those that cost
    no trial beside it, and for a search all that it has to beat; each without what has no schedule.
    Raises `NoSchedule` where a layer has none that nothing was fused into, and what tuning
    raises."""
    mode = asked.options.fusion
    named = {"none": problem.none, "all": problem.all, "greedy": problem.greedy}
    if mode == "learned":
        return searched(problem, evaluator, asked.options.seed)
    named[mode] = fitting(evaluator, named[mode])
    free = [name for name, labels in named.items() if not evaluator.missing(labels)]
    return {name: named[name] for name in free if _runs(evaluator, named[name])}


def searched(problem: FusionProblem, evaluator: Evaluator, seed: int) -> dict[str, Labelling]:
    """What the learned mode decides, and the labellings that it has to beat, by the names of the
    modes. Raises as `labellings`."""
    known = {"none": problem.none, "all": problem.all, "greedy": problem.greedy}
    named = {name: fitting(evaluator, labels) for name, labels in known.items()}
    model, policy = shipped_models(seed)
    rng = np.random.default_rng([seed, 0])
    found = learned_search(problem, evaluator, model, policy, list(named.values()), rng)
    return named | {"learned": found}


def fitting(evaluator: Evaluator, labels: Labelling) -> Labelling:
    """A labelling without what makes layers that no schedule runs. Raises `NoSchedule` where a
    layer has none that nothing was fused into, and what tuning raises."""
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


def _tuned(asked: ToDecide, workloads: Sequence[Workload]) -> list[Pick | None]:
    """Schedules of workloads that the network does not have as it is."""
    many = f"{len(workloads)} more {'workload' if len(workloads) == 1 else 'workloads'}"
    asked.emit(Note(f"{asked.network}: {many}, of operators fused otherwise"))
    return [_pick(each) for each in asked.more([_subgraph(each) for each in workloads])]


def _subgraph(workload: Workload) -> Subgraph:
    """A workload of some labelling. Nobody knows how often it will be called."""
    return Subgraph(workload, 1, ("fused",), workload.macs)


def _pick(tuned: TunedWorkload) -> Pick | None:
    chosen = tuned.chosen
    return None if chosen is None else Pick(chosen.space, chosen.config)


def decisions_of(
    evaluator: Evaluator, labels: Labelling, guessing: Evaluator
) -> list[FusionDecision]:
    """Each label with what it saves, all others as they are: where the other way is not tuned, or
    `guessing` timed everything, by the schedules that are estimated best for both ways."""
    problem, rows = evaluator.problem, list[FusionDecision]()
    for place, choice in enumerate(problem.offered):
        other = problem.flipped(labels, [place])
        guessed = evaluator is guessing or bool(evaluator.missing(other))
        saved = _saved(guessing if guessed else evaluator, labels, other)
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


def _saved(timing: Evaluator, labels: Labelling, other: Labelling) -> tuple[int, int] | None:
    """Cycles and bytes by which one labelling takes less than another; None where no schedule is
    known that runs both."""
    try:
        here, there = timing(labels), timing(other)
    except NoSchedule:
        return None
    return there.cycles - here.cycles, there.dram_bytes - here.dram_bytes


def file_of(asked: ToDecide, problem: FusionProblem, chosen: Evaluation) -> dict[str, Json]:
    """What `tilewright build` reads: the labels, and a schedule of each workload they make."""
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
            {"name": f"{each.kind} {each.name}", "kind": each.kind, "reason": each.reason}
            for each in problem.refused
        ],
        "schedules": list(rows.values()),
        "layers": list[Json](rows_of(problem, chosen)),
    }
