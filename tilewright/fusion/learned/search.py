"""Search for labellings: the policy proposes, the graph model ranks, and simulation confirms.

A labelling holds one bool per possible fusion: whether it is applied. After each round, the graph
model is corrected with the simulated networks, and the policy is told for which fusions the
simulations showed an effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.fusion.evaluator import Evaluation, Evaluator
from tilewright.fusion.label_search import Objective, Search, descend, search_all
from tilewright.fusion.learned.graph_model import GraphModel
from tilewright.fusion.learned.policy import Policy, fuse_units
from tilewright.fusion.model_features import DecisionGroup, Figures, Tables, label_unit, list_units
from tilewright.fusion.problem import FusionProblem, Labelling


@dataclass(frozen=True)
class SearchPlan:
    """Limits of a search for the best labelling (one bool per possible fusion).

    Attributes:
        rounds: maximum number of rounds.
        patience: number of rounds without an improvement after which the search ends.
        confirmed: number of labelled networks that are simulated per round.
        asked: maximum number of labellings whose cycles the model predicts per round.
        drawn: number of labellings that are drawn from the policy per round.
        search: search algorithm that minimises the model's prediction.
    """

    rounds: int = 12
    patience: int = 2
    confirmed: int = 2
    asked: int = 4096
    drawn: int = 4
    search: Search = descend


_LOOKED_AT = 32
"""Maximum number of labellings per round that are passed to the evaluator. It is larger than
`confirmed`, because some of these labellings give networks that were already simulated."""


class FusionSurrogate:
    """Fast prediction of the cycles of labelled networks, which replaces simulation in a search.

    A labelling holds one bool per possible fusion (a "decision").

    Segments are groups of decisions that influence each other. For each segment and each choice of
    its labels, the model predicts once how the cycles change compared with a base labelling. The
    prediction for a labelling is the cycles of the base labelling plus the changes of its segments.

    Args:
        problem: the possible fusions of a network.
        tables: converts labelled networks to arrays.
        model: model of the cycles.
        base: the base labelling.
    """

    def __init__(
        self, problem: FusionProblem, tables: Tables, model: GraphModel, base: Labelling
    ) -> None:
        self.problem = problem
        self.tables = tables
        self.model = model
        self.base = base
        self._whole = float(model.predict([tables.graph_table(base)])[0])
        self._changes: dict[tuple[int, tuple[bool, ...]], float] = {}

    def __call__(self, several: Sequence[Labelling]) -> list[float]:
        """Return the predicted cycles of several labellings.

        Args:
            several: the labellings, each with one bool per possible fusion.

        Returns:
            One prediction per labelling, in the same order.
        """
        parts = [self._parts(labels) for labels in several]
        self._price([key for some in parts for key in some])
        return [self._whole + sum(self._changes[key] for key in some) for some in parts]

    def _parts(self, labels: Labelling) -> list[tuple[int, tuple[bool, ...]]]:
        """Return the segments in which a labelling differs from the base labelling.

        Segments are groups of decisions that influence each other.

        Args:
            labels: the labelling: one bool per possible fusion.

        Returns:
            Index of each of these segments, with the labels of its decisions.
        """
        parts = []
        for number, places in enumerate(self.problem.segments):
            matching = tuple(labels[place] for place in places)
            if matching != tuple(self.base[place] for place in places):
                parts.append((number, matching))
        return parts

    def _price(self, keys: Sequence[tuple[int, tuple[bool, ...]]]) -> None:
        new = [key for key in dict.fromkeys(keys) if key not in self._changes]
        if not new:
            return
        tables = []
        for number, own in new:
            labels = list(self.base)
            for place, label in zip(self.problem.segments[number], own, strict=True):
                labels[place] = label
            tables.append(self.tables.graph_table(tuple(labels)))
        cycles = self.model.predict(tables)
        self._changes.update(
            {key: float(cycle) - self._whole for key, cycle in zip(new, cycles, strict=True)}
        )


def learned_search(
    problem: FusionProblem, evaluator: Evaluator, model: GraphModel, policy: Policy,
    starts: Sequence[Labelling], rng: np.random.Generator, plan: SearchPlan | None = None,
) -> Labelling:  # fmt: skip
    """Search for the labelling (one bool per possible fusion) with the fewest cycles.

    Args:
        problem: the possible fusions of a network.
        evaluator: simulates labellings.
        model: model of the cycles. Its trained part is frozen; the search trains a correction.
        policy: predicts which fusions save cycles.
        starts: labellings to start from.
        rng: random generator.
        plan: limits of the search; the default is `SearchPlan()`.

    Returns:
        The best labelling that was simulated, including those in `starts`.

    Raises:
        TilewrightError: tuning fails.
    """
    plan = plan or SearchPlan()
    figures = Figures(problem, evaluator)
    tables = Tables(problem, figures)
    best = min(starts, key=lambda labels: evaluator(labels).cost)
    if not len(problem):
        return best
    model.freeze()
    idle = 0
    for turn in range(plan.rounds):
        seen = judged_units(problem, evaluator)
        chances = policy.chances(problem, figures, best, seen)
        first = _try_labels(evaluator, policy.labels(problem, chances)) if turn == 0 else None
        if first is not None and first.cost < evaluator(best).cost:
            best = first.labels
        model.fit([tables.graph_table(item.labels) for item in evaluator.evaluations()])
        begin = [best, *starts, *_draw_labellings(problem, chances, plan.drawn, rng)]
        said = FusionSurrogate(problem, tables, model, best)
        objective = Objective(said, plan.asked, problem.segments, problem.groups)
        search_all(plan.search, objective, list(dict.fromkeys(begin)), rng)
        new = [item for item in sorted(objective.asked, key=objective.asked.__getitem__)
               if evaluator.find_evaluation(item) is None]  # fmt: skip
        before = evaluator(best).cost
        simulated = evaluator.count
        for labels in new[:_LOOKED_AT]:
            if evaluator.count - simulated >= plan.confirmed:
                break
            result = _try_labels(evaluator, labels)
            if result is not None and result.cost < evaluator(best).cost:
                best = labels
        idle = 0 if evaluator(best).cost < before else idle + 1
        if idle >= plan.patience or not new:
            break
    return best


def judged_units(problem: FusionProblem, evaluator: Evaluator) -> dict[DecisionGroup, bool]:
    """Return for each decision unit whether fusing it saved cycles in the simulations so far.

    A unit is judged by two simulated labellings that differ only in this unit. If there are several
    such pairs, the last one counts. Units without such a pair, or with equal cycles, are left out.

    Args:
        problem: the possible fusions of a network.
        evaluator: provides the labellings that were simulated.
    """
    known = {item.labels: item.cycles for item in evaluator.evaluations()}
    result: dict[DecisionGroup, bool] = {}
    units = list_units(problem)
    for labels, cycles in known.items():
        for unit in units:
            if not all(labels[place] for place in unit.places):
                continue
            other = known.get(label_unit(labels, unit, False))
            if other is not None and other != cycles:
                result[unit] = cycles < other
    return result


def _try_labels(evaluator: Evaluator, labels: Labelling) -> Evaluation | None:
    """Evaluate a labelling, if its network can be built.

    Args:
        evaluator: simulates labellings.
        labels: the labelling: one bool per possible fusion.

    Returns:
        The evaluation; None if a layer has no valid schedule or no board could load the program.
    """
    try:
        return evaluator(labels)
    except WorkloadError:
        return None


def _draw_labellings(
    problem: FusionProblem, chances: NDArray[np.float64], count: int, rng: np.random.Generator
) -> list[Labelling]:
    """Draw random labellings (one bool per possible fusion).

    Each decision unit is fused with the probability that fusing it saves cycles.

    Args:
        problem: the possible fusions of a network.
        chances: probability of each unit, float array of shape (units,); limited to 0.05 to 0.95.
        count: number of labellings to draw.
        rng: random generator.
    """
    chances = np.clip(chances, 0.05, 0.95)
    return [fuse_units(problem, rng.random(len(chances)) < chances) for _ in range(count)]
