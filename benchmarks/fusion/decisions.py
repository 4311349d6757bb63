"""Compares ways to decide which operators of a network to fuse: cycles, and cost of the decision.

    python -m benchmarks.fusion.decisions --quick        # two small networks, one target
    python -m benchmarks.fusion.decisions --out FILE     # resumes from FILE
    python -m benchmarks.fusion.decisions --redraw FILE  # the summary only

For each network on each target, the command computes the cycles and the moved bytes of these
choices: nothing fused; everything fused; everything but shortcuts; the choice by estimates
(greedy); the choice of TVM's FuseOps; the choice of the learned policy without a search; and the
result of the learned search. All choices use schedules that were tuned in the same way, with
`--trials` per workload. Cycles are those of all command streams in the cycle simulator.

The models are trained on the other networks of the list and on those of `--training`, on this
target and on the targets before it, but never on the network itself. Searches that call the
simulator directly, and random search, may evaluate `--budget` labelled networks each. The table has
the number of evaluations until a search is within 0.1 % of the best result of any search. `bound`
is a number of cycles that no labelling undercuts, with any schedules (`benchmarks.fusion.bounds`).

The known optimum ("truth"): parts of a network with few decisions are solved exhaustively, with all
other decisions as in the best labelling. The parts are the first, middle and last decisions, and
some for which the best labelling does not fuse everything. A network with few decisions is solved
as a whole. The regret is that of a separate learned search in which only these decisions are open.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fusion.bounds import least_bound
from benchmarks.fusion.examples import Examples
from benchmarks.fusion.search_methods import Programming, search
from benchmarks.fusion.training import Trained, load_examples
from benchmarks.fusion.tuned_pairs import (
    NETWORKS,
    TARGETS,
    Counted,
    Part,
    make_pair_evaluator,
    named_labellings,
)
from benchmarks.results import row_arguments
from tilewright.core.files import write_atomically
from tilewright.fusion.evaluator import Evaluator
from tilewright.fusion.label_search import FusionBudgetSpent, Objective
from tilewright.fusion.learned.graph_model import GraphModel
from tilewright.fusion.learned.search import SearchPlan, learned_search
from tilewright.fusion.model_features import Figures, Tables
from tilewright.fusion.problem import FusionProblem, Labelling

TRAINING = ("digits_cnn", "resnet18")
QUICK = ("digits_cnn", "resnet18")
SEARCHES = ("random", "descent", "segments")
FEWEST, MOST = 8, 12
"""Limits of the number of decisions in a part that is solved exhaustively. Networks with fewer
layers allow more decisions."""
TRUE_LAYERS = 1 << 14
"""Approximate number of layers that are simulated for one part, over all its labellings."""


def main() -> None:
    """Compute the pairs that are missing in the file, and print the summary.

    The file is written after each pair.
    """
    parser = row_arguments(__doc__, "built/fusion.json")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("built/fusion"))
    parser.add_argument("--networks", default="")
    parser.add_argument("--targets", default="")
    parser.add_argument("--training", default=",".join(TRAINING))
    parser.add_argument("--trials", type=int)
    parser.add_argument("--budget", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.trials = given.trials if given.trials is not None else (0 if given.quick else 16)
    given.budget = given.budget or (64 if given.quick else 256)
    networks = given.networks.split(",") if given.networks else QUICK if given.quick else NETWORKS
    targets = given.targets.split(",") if given.targets else TARGETS[: 1 if given.quick else None]
    file = given.redraw or given.out
    rows = json.loads(file.read_text())["pairs"] if file.exists() else []
    if given.redraw is None:
        for row in _missing_rows(given, networks, targets, rows):
            rows.append(row)
            given.out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(given.out, (json.dumps({"pairs": rows}) + "\n").encode())
    print(summary(rows))


def _missing_rows(
    given: argparse.Namespace, networks: Sequence[str], targets: Sequence[str], rows: Any
) -> Iterator[dict[str, Any]]:
    """Yield a row for each pair of network and target that is not among the rows."""
    known = {(row["network"], row["target"], row["trials"], row["budget"]) for row in rows}
    todo = [
        (network, target) for target in targets for network in networks
        if (network, target, given.trials, given.budget) not in known
    ]  # fmt: skip
    if not todo:
        return
    every = [*dict.fromkeys((*networks, *filter(None, given.training.split(","))))]
    examples: dict[tuple[str, str], Examples] = {}
    for target in dict.fromkeys(target for _, target in todo):
        examples |= load_examples(given.folder, every, [target], given.trials)
        for network in [name for name, its in todo if its == target]:
            others = [example for (name, _), example in examples.items() if name != network]
            yield _pair(given, network, target, others)


def _pair(
    given: argparse.Namespace, network: str, target: str, others: list[Examples]
) -> dict[str, Any]:
    begin = time.perf_counter()
    backing = make_pair_evaluator(network, target, given.trials, given.folder)
    problem = backing.problem
    labels = named_labellings(problem)
    costs = {name: backing(label) for name, label in labels.items()}
    row: dict[str, Any] = {
        "network": network, "target": target, "trials": given.trials, "budget": given.budget,
        "decisions": len(problem), "segments": [len(segment) for segment in problem.segments],
        "cycles": {name: cost.cycles for name, cost in costs.items()},
        "dram_bytes": {name: cost.dram_bytes for name, cost in costs.items()},
        "bound": least_bound(problem), "learned": {}, "searches": {},
    }  # fmt: skip
    starts = [labels[name] for name in ("none", "all", "greedy")]
    best = min(labels.values(), key=lambda label: backing(label).cost)
    models = Trained(others)
    result, row["learned"] = _search_learned(given, backing, models, starts)
    best = min((best, result), key=lambda item: backing(item).cost)
    row["cycles"]["learned"] = row["learned"]["cycles"]
    row["dram_bytes"]["learned"] = row["learned"]["dram_bytes"]
    for name in SEARCHES:
        row["searches"][name], result = _search_by(given, backing, name, starts)
        best = min((best, result), key=lambda item: backing(item).cost)
    row["best"] = backing(best).cycles
    row["truth"] = list(_truths(given, backing, best, models))
    row["seconds"] = time.perf_counter() - begin
    row["seconds_evaluation"] = _evaluation_seconds(backing)
    print(f"{network} on {target}: {row['cycles']}, best {row['best']}, "
          f"{row['seconds']:.0f} s", flush=True)  # fmt: skip
    return row


def _search_learned(
    given: argparse.Namespace, backing: Evaluator, models: Trained, starts: list[Labelling]
) -> tuple[Labelling, dict[str, Any]]:
    """Run the learned search, and return its best labels and its figures.

    The figures include the cycles of the labels that the policy chooses alone: once before any
    simulation, and once with the simulations that the search begins with.
    """
    problem = backing.problem
    model, policy = models.copy_models()
    counted = Counted(backing)
    figures = Figures(problem, counted)
    blind = policy.labels(problem, policy.chances(problem, figures, problem.tvm, {}))
    for labels in starts:
        counted(labels)
    first = min(starts, key=lambda start: counted(start).cost)
    predictions = policy.labels(problem, policy.chances(problem, figures, first, {}))
    error = _error(model, backing)
    begin = time.perf_counter()
    rng = np.random.default_rng([given.seed, 1])
    result = learned_search(problem, counted, model, policy, starts, rng, SearchPlan())
    steps = [item.cycles for item in counted.evaluations()]
    return result, {
        "cycles": backing(result).cycles, "dram_bytes": backing(result).dram_bytes,
        "evaluations": counted.count, "steps": steps, "seconds": time.perf_counter() - begin,
        "policy": backing(predictions).cycles, "policy_blind": backing(blind).cycles,
        "model_error": error,
    }  # fmt: skip


def _error(model: GraphModel, backing: Evaluator) -> float:
    """Return the mean relative error of the model on the named labellings of the network.

    The network is not in the training data. The model gets no results of simulations.
    """
    problem = backing.problem
    blank = Evaluator(problem, backing.schedules)
    tables = Tables(problem, Figures(problem, blank))
    labellings = list(dict.fromkeys(named_labellings(problem).values()))
    predictions = model.predict([tables.graph_table(labels) for labels in labellings])
    true = np.array([backing(labels).cycles for labels in labellings])
    return float(np.abs(predictions / true - 1).mean())


def _search_by(
    given: argparse.Namespace, backing: Evaluator, name: str, starts: list[Labelling]
) -> tuple[dict[str, Any], Labelling]:
    """Run a search that evaluates labellings with the simulator.

    Returns:
        The figures of the search, and its best labels.
    """
    problem = backing.problem
    objective = Objective(
        lambda several: [float(backing(item).cycles) for item in several], given.budget,
        problem.segments, problem.groups,
    )  # fmt: skip
    rng = np.random.default_rng([given.seed, 2])
    extra: dict[str, Any] = {}
    if name == "segments":
        method = Programming()
        try:
            method.search(objective, starts, rng)
            last = objective.asked[method.found]
            extra = {"expected": method.expected, "additive_error": method.expected / last - 1}
        except FusionBudgetSpent:
            pass
    else:
        search(name, objective, starts, rng)
    steps = list(objective.asked.values())
    return {"cycles": objective.least, "evaluations": len(steps), "steps": steps, **extra}, (
        objective.best
    )


def _truths(
    given: argparse.Namespace, backing: Evaluator, best: Labelling, models: Trained
) -> Iterator[dict[str, Any]]:
    """Solve parts of the network exhaustively, and by a learned search of that part only."""
    for name, places in _parts(backing.problem, best).items():
        part = Part(backing.problem, places, best)
        objective = Objective(
            lambda several, p=part: [  # type: ignore[misc]
                float(backing(p.whole_labels(item)).cycles) for item in several
            ],
            1 << MOST, part.segments, part.groups,
        )  # fmt: skip
        search("exhaustive", objective, [], np.random.default_rng(0))
        counted = Counted(backing, part)
        starts = [part.none, part.all, part.greedy]
        rng = np.random.default_rng([given.seed, 3])
        result = learned_search(part, counted, *models.copy_models(), starts, rng, SearchPlan())
        yield {
            "part": name, "decisions": len(part), "least": objective.least,
            "most": max(objective.asked.values()), "evaluations": counted.count,
            "regret": counted(result).cycles / objective.least - 1,
            "regret_all": backing(part.whole_labels(part.all)).cycles / objective.least - 1,
        }  # fmt: skip


def _parts(problem: FusionProblem, best: Labelling) -> dict[str, list[int]]:
    """Return the decisions of the parts of a network that can be solved exhaustively, by name.

    A small network is one part. Otherwise the parts are the first, middle and last segments, and
    the segments in which the best labelling does not fuse everything.
    """
    layers = max(len(problem.labelled(problem.all).layers), 1)
    most = min(max((TRUE_LAYERS // layers).bit_length() - 1, FEWEST), MOST)
    if len(problem) <= most:
        return {"whole": list(range(len(problem)))} if len(problem) else {}
    parts = {
        name: _neighbouring_places(
            problem.segments, round(where * (len(problem.segments) - 1)), most
        )
        for name, where in (("first", 0.0), ("middle", 0.5), ("last", 1.0))
    }
    telling = [segment for segment in problem.segments if not all(best[place] for place in segment)]
    return parts | ({"apart": _neighbouring_places(telling, 0, MOST)} if telling else {})


def _neighbouring_places(segments: Sequence[Sequence[int]], first: int, most: int) -> list[int]:
    """Return the decisions of consecutive segments, at most `most` in total.

    A first segment that is larger than `most` is returned alone.
    """
    results: list[int] = []
    for number in [*range(first, len(segments)), *range(first - 1, -1, -1)]:
        if results and len(results) + len(segments[number]) > most:
            break
        results += segments[number]
    return sorted(results)


def _evaluation_seconds(backing: Evaluator) -> float:
    """Return the seconds of evaluating a labelling whose layers were all lowered before."""
    known = [item.labels for item in backing.evaluations()][-5:]
    begin = time.perf_counter()
    for labels in known:
        backing.reevaluate(labels)
    return (time.perf_counter() - begin) / max(len(known), 1)


NEAR = 1e-3
Row = Mapping[str, Any]


def summary(rows: Sequence[Row]) -> str:
    """Return text about each pair of network and target.

    It has the cycles relative to fusing everything, and the cost of the search.
    """
    lines = []
    for row in rows:
        cycles = row["cycles"]
        shown = ", ".join(
            f"{name} {cycles[name] / cycles['all'] - 1:+.2%}"
            for name in ("none", "tvm", "no shortcuts", "no averages", "greedy", "learned")
            if name in cycles
        )
        moved = row["dram_bytes"]["learned"] / row["dram_bytes"]["all"] - 1
        lines.append(
            f"{row['network']:14} {row['target']:9} {row['decisions']:3} decisions; all fused "
            f"{cycles['all']:,} cycles; against that: {shown} ({moved:+.1%} bytes)"
            + (f", bound {row['bound'] / cycles['all'] - 1:+.2%}" if "bound" in row else "")
        )
        told = row["learned"]
        lines.append(
            f"    learned {told['evaluations']:3} evaluations, regret "
            f"{told['cycles'] / row['best'] - 1:.3%}; policy alone "
            f"{told['policy'] / told['cycles'] - 1:+.3%}, before anything was simulated "
            f"{told['policy_blind'] / told['cycles'] - 1:+.3%}; model off by "
            f"{told['model_error']:.2%}; {told['seconds']:.0f} s"
        )
        searches = (
            f"{name} {_evaluations_until(search, row['best'])}"
            for name, search in row["searches"].items()
        )
        learned = _evaluations_until(row["learned"], row["best"])
        lines.append(
            f"    evaluations to within 0.1 % of the best: learned {learned}, {', '.join(searches)}"
        )
        error = row["searches"]["segments"].get("additive_error")
        if error is not None:
            lines.append(f"    adding up segments is off by {error:+.4%}")
        lines += _regret_texts(row)
    ratios = [row["cycles"]["learned"] / row["cycles"]["all"] for row in rows]
    if ratios:
        mean = float(np.exp(np.log(ratios).mean()))
        lines.append(
            f"learned against all fused: {mean - 1:+.2%} on average, best {min(ratios) - 1:+.2%}, "
            f"worst {max(ratios) - 1:+.2%}"
        )
    return "\n".join(lines)


def _regret_texts(row: Row) -> list[str]:
    """Return the regrets of the learned search and of fusing everything.

    They refer to the parts of the network whose optimum is known.
    """
    truths = row["truth"]
    if not truths:
        return []
    lacks = [
        f"{one['part']} ({one['decisions']} decisions) {one['regret']:.3%} with "
        f"{one['evaluations']}, all fused {one['regret_all']:.3%}"
        for one in truths
    ]
    seconds = f"an evaluation {row['seconds_evaluation']:.3f} s"
    return [f"    regret of the learned search, gone through: {'; '.join(lacks)}; {seconds}"]


def _evaluations_until(result: Row, best: float) -> str:
    """Return after how many evaluations the search came near `best`, or that it never did."""
    for number, cycles in enumerate(result["steps"], 1):
        if cycles <= best * (1 + NEAR):
            return str(number)
    return f"never in {len(result['steps'])} ({result['cycles'] / best - 1:+.2%})"


if __name__ == "__main__":
    main()
