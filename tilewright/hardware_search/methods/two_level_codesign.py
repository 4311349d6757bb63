"""The method `ours`: a search over machines that tunes only the layers that decide between them.

1. Machines are screened with closed-form estimates, which cost no measurements, starting from
   random machines and climbing along the Pareto front of area and objective
   (`hardware_search.screening`).

2. The most promising machine is measured, the layers with the highest cost first. As soon as its
   measurements make it less promising than another machine, the search turns to that machine. The
   errors of the estimates on measured machines are used to correct the estimates of the other
   machines.

3. On machines whose layers were all measured, the layer with the largest expected saving gets
   further trials.

The value of a step is the hypervolume that it is expected to add per measurement. `Machines` stores
the estimates and measurements of all machines in arrays, because every step compares all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.hardware_search.evaluator import BudgetedEvaluator
from tilewright.hardware_search.layer_tuning import LayerTuning
from tilewright.hardware_search.methods import MethodOptions, generator
from tilewright.hardware_search.objectives import METRICS, least_joules
from tilewright.hardware_search.options import Objective
from tilewright.hardware_search.pareto import added_hypervolume
from tilewright.hardware_search.problem import CodesignProblem, Design
from tilewright.hardware_search.screening import Screening
from tilewright.targets.base import Configs

PerLayer = NDArray[np.float64]
"""Values per layer of each machine: float array of shape (machines, layers) for one metric, or of
shape (metrics, machines, layers) for all metrics. Machines with fewer layers are padded with
zeros."""


class Machines:
    """Candidate machines of the method `ours`, with estimates, measurements and lower bounds.

    Metrics (seconds or joules) of layers without a valid trial are infinite.

    Args:
        estimated: the machines, each with the estimated metrics per call of its layers, float array
            of shape (metrics, layers).
        points: knob indices of all machines of the hardware space, int array of shape (points,
            knobs). The correction of estimates assumes that machines with similar knobs have
            similar errors.
        least: lower bounds of the metrics, one float array of shape (metrics, layers) per machine.
        objective: the objective that is minimised besides the area.
    """

    def __init__(
        self,
        estimated: Sequence[tuple[Design, NDArray[np.float64]]],
        points: Configs,
        least: Sequence[NDArray[np.float64]],
        objective: Objective = "latency",
    ) -> None:
        self.designs = [design for design, _ in estimated]
        sizes = np.array([len(design.layers) for design in self.designs], np.int64)
        shape = len(sizes), int(sizes.max(initial=0))
        self.real = np.arange(shape[1]) < sizes[:, None]
        metrics = METRICS[objective]
        self.estimated, self.bounds = (np.zeros((len(metrics), *shape)) for _ in range(2))
        self.calls, self.batches = np.zeros(shape), np.zeros(shape, np.int64)
        self.measured = np.where(self.real, np.inf, np.zeros((len(metrics), 1, 1)))
        self.names = np.zeros(shape, np.int64)
        known: dict[tuple[str, str], int] = {}
        for row, (design, known_metrics) in enumerate(estimated):
            own = slice(len(design.layers))
            self.estimated[:, row, own], self.bounds[:, row, own] = known_metrics, least[row]
            self.calls[row, own] = [layer.calls for layer in design.layers]
            self.names[row, own] = [
                known.setdefault(layer.names[0], len(known)) for layer in design.layers
            ]
        self.areas = np.array([design.area for design in self.designs])
        cpu = np.array([sum(design.cpu_seconds) for design in self.designs])
        self._beside = np.stack([cpu * (metric == "seconds") for metric in metrics])
        rows = [design.row for design in self.designs]
        self._biases = [_Bias(points[rows].astype(np.int64), len(known)) for _ in metrics]

    def totals(self, layers: PerLayer) -> NDArray[np.float64]:
        """Return the metrics of one inference of each network, summed over the networks.

        Args:
            layers: metrics per call, float array of shape (metrics, machines, layers).

        Returns:
            Float array of shape (metrics, machines).
        """
        return np.asarray((layers * self.calls).sum(axis=2) + self._beside)

    def costs(self, layers: PerLayer) -> NDArray[np.float64]:
        """Return the value of the objective on each machine, float array of shape (machines,).

        Args:
            layers: metrics per call, float array of shape (metrics, machines, layers).
        """
        return np.asarray(self.totals(layers).prod(axis=0))

    def weigh_changes(self, layers: PerLayer, changes: PerLayer) -> PerLayer:
        """Return the first-order change of the objective that changes of the layers' metrics cause.

        Args:
            layers: metrics per call, float array of shape (metrics, machines, layers).
            changes: changes of the metrics, of the same shape.

        Returns:
            Change of the objective by each layer, float array of shape (machines, layers).
        """
        result, totals = np.zeros(changes.shape[1:]), self.totals(layers)
        for metric, change in enumerate(changes):
            others = np.delete(totals, metric, axis=0).prod(axis=0)
            result += change * others[:, None]
        return result

    @property
    def is_complete(self) -> NDArray[np.bool_]:
        """Mask of machines whose layers all have a valid trial, bool array of shape (machines,)."""
        return np.asarray(np.isfinite(self.measured).all(axis=(0, 2)))

    @property
    def is_hopeless(self) -> NDArray[np.bool_]:
        """Mask of the machines with a layer that has no valid trial after more than two batches.

        Bool array of shape (machines,). These machines are not measured further.
        """
        return np.asarray((np.isinf(self.measured[0]) & (self.batches > 2)).any(axis=1))

    def optimum(self, corrected: bool) -> PerLayer:
        """Return the estimated metrics of the best schedules, but at least the lower bounds.

        Args:
            corrected: correct the estimates by their errors on measured machines.

        Returns:
            Metrics per call, float array of shape (metrics, machines, layers).
        """
        if not corrected:
            return np.maximum(self.estimated, self.bounds)
        errors = np.stack([bias.predict_errors(self.names) for bias in self._biases])
        return np.maximum(self.estimated * np.exp(errors), self.bounds)

    def learn(self, row: int, layers: Sequence[int]) -> None:
        """Update the correction of the estimates after layers of a machine were measured.

        Args:
            row: index of the machine.
            layers: indices of its layers with new measurements. Layers without a valid trial are
                skipped.
        """
        valid = [layer for layer in layers if np.isfinite(self.measured[0, row, layer])]
        errors = np.log(self.measured[:, row, valid] / self.estimated[:, row, valid])
        for bias, own in zip(self._biases, errors, strict=True):
            bias.learn(row, self.names[row, valid].tolist(), own.tolist())


class _Bias:
    """Predicts the error of a metric's estimates: the logarithm of measured over estimated value.

    The prediction for a layer is a weighted mean of the errors on the machines on which the layer
    was measured. The weight of a machine is larger the fewer knob steps it is away, because similar
    machines have similar errors. Without this correction, an unmeasured machine would always look
    better than its measured neighbours.

    Args:
        knobs: knob indices of the machines, int array of shape (machines, knobs).
        names: number of distinct layers.
    """

    NEAR = 0.7  # factor on a machine's weight per knob step that it is away
    PRIOR = 0.3  # weight of the mean error of all layers; in that mean, weight of no error

    def __init__(self, knobs: NDArray[np.int64], names: int) -> None:
        self._knobs = knobs
        self._seen: dict[int, dict[int, float]] = {}
        self._found = np.zeros((names, len(knobs)))
        self._unseen = np.ones(names, bool)

    def learn(self, row: int, names: Sequence[int], errors: Sequence[float]) -> None:
        for name, error in zip(names, errors, strict=True):
            self._seen.setdefault(name, {})[row] = error
        every = [error for known in self._seen.values() for error in known.values()]
        mean = sum(every) / (len(every) + self.PRIOR)
        for name in names:
            rows = np.array(list(self._seen[name]))
            away = np.abs(self._knobs[:, None] - self._knobs[rows]).sum(axis=2)
            near = self.NEAR**away
            weighted = near @ np.array(list(self._seen[name].values())) + self.PRIOR * mean
            self._found[name] = weighted / (near.sum(axis=1) + self.PRIOR)
        self._unseen[list(names)] = False
        self._found[self._unseen] = mean

    def predict_errors(self, names: NDArray[np.int64]) -> PerLayer:
        """Return the predicted errors of layers.

        Args:
            names: number that identifies each layer across machines, int array of shape (machines,
                layers).

        Returns:
            Float array of shape (machines, layers).
        """
        return self._found[names, np.arange(len(names))[:, None]]


class TwoLevelOptions(MethodOptions):
    """Options of the co-design method `ours`.

    `docs/evidence/codesign.md` shows the effect of `estimates` and `correct`. The other defaults
    were chosen by hand.
    """

    screened: int = Field(512, ge=1, description="number of machines to screen with estimates")
    start: int = Field(64, ge=1, description="number of these machines that are first drawn evenly")
    sample: int = Field(4096, ge=64, description="number of schedules per layer to estimate")
    tuner: str = Field("default", description="tuner for the layers of a machine")
    batch: int = Field(2, ge=1, description="trials per batch of a layer")
    halving: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="fraction of a layer's remaining gain expected after one batch",
    )
    doubt: float = Field(
        0.1,
        ge=0,
        le=1,
        description="smallest improvement that is assumed possible for a layer, as a "
        "fraction of the gap to its bound",
    )
    part: float = Field(
        0.3,
        gt=0,
        le=1,
        description="fraction of a machine's latency whose layers are measured before the "
        "machine is evaluated again",
    )
    estimates: bool = Field(
        True, description="screen machines with estimates; otherwise all machines are rated by "
            "their bounds. The tuner of the layers has its own estimates: "
            "`tuner=default-blind` switches them off",
    )  # fmt: skip
    bounds: bool = Field(True, description="use each layer's bound; otherwise only its roofline")
    correct: bool = Field(True, description="learn the error of the estimates from other machines")


class TwoLevel:
    """The co-design method `ours`.

    It selects machines by estimates, and then tunes layers of the machine that is expected to add
    the most to the hypervolume of the Pareto front.

    Args:
        options: options of the method.
    """

    Options = TwoLevelOptions

    def __init__(self, options: TwoLevelOptions) -> None:
        self.options = options

    def search(self, problem: CodesignProblem, evaluator: BudgetedEvaluator, seed: int) -> None:
        """Search until no measurement is expected to increase the hypervolume of the Pareto front.

        Args:
            problem: the co-design problem.
            evaluator: measures schedules within the budget.
            seed: seed of the random numbers.

        Raises:
            BudgetSpent: no measurements are left.
        """
        _Search(problem, evaluator, seed, self.options).run()


class _Search:
    """State of one search of the method `ours`: candidate machines, and tuners of their layers."""

    def __init__(
        self,
        problem: CodesignProblem,
        evaluator: BudgetedEvaluator,
        seed: int,
        options: TwoLevelOptions,
    ) -> None:
        self.problem, self.evaluator, self.seed, self.options = problem, evaluator, seed, options
        self.machines = self._screen_machines()
        latest = self.machines.costs(self.machines.estimated)
        slowest = float(latest.max()) if len(latest) else 0.5
        self.reference = problem.hardware.budget * 1.001, 2 * slowest
        self.tuning: dict[int, LayerTuning] = {}

    def run(self) -> None:
        while (step := self._best_step()) is not None:
            self._measure(*step)

    # -- machines ------------------------------------------------------------------------------

    def _screen_machines(self) -> Machines:
        """Select candidate machines by their estimates, without measuring.

        Machines that cannot run every layer are left out. Without the option `estimates`, the
        candidates are drawn at random, and lower bounds take the place of estimates.
        """
        count = len(self.problem.hardware.points)
        drawn = generator(self.seed, 0).permutation(count)
        objective = self.evaluator.objective
        result = Screening(self.problem, self.options.sample, self.seed, objective)
        if self.options.estimates:
            ends = [0, count - 1]
            start = dict.fromkeys([*ends, *drawn[: self.options.start].tolist()])
            result.climb(start, min(self.options.screened, count))
            rows = result.rows
        else:
            rows = drawn[: self.options.screened].tolist()
        designs = map(self.problem.design, rows)
        if self.options.estimates:
            known = [(design, result.metrics(design.row)) for design in designs]
        else:
            known = [(design, self._least_metrics(design)) for design in designs]
        able = [(design, metrics) for design, metrics in known if np.isfinite(metrics).all()]
        least = [self._least_metrics(design) for design, _ in able]
        return Machines(able, self.problem.hardware.points, least, objective)

    def _least_metrics(self, design: Design) -> NDArray[np.float64]:
        """Return lower bounds of the metrics of a machine's layers.

        The option `bounds` decides whether the bounds of seconds are the target's bounds or only
        rooflines.

        Args:
            design: the machine.

        Returns:
            Metrics per call, float array of shape (metrics, layers).
        """
        seconds = design.bounds if self.options.bounds else design.rooflines
        return np.stack(
            [
                seconds if metric == "seconds" else least_joules(design)
                for metric in METRICS[self.evaluator.objective]
            ]
        )

    # -- steps ---------------------------------------------------------------------------------

    def _best_step(self) -> tuple[int, list[int]] | None:
        """Choose the next step: the layers whose measurement is expected to add most hypervolume.

        The expected hypervolume is divided by the number of measurements of the step.

        Returns:
            Index of the machine, and indices of its layers to measure; None if no step is expected
            to add hypervolume.
        """
        machines, options = self.machines, self.options
        optimum = machines.optimum(options.correct and options.estimates)
        likely = np.where(np.isfinite(machines.measured), machines.measured, optimum)
        costs, whole = machines.costs(likely), machines.is_complete
        front = np.stack([machines.areas, costs], axis=1)[whole]
        saved = self._savings(optimum, likely)
        costs = costs - saved.max(axis=1, initial=0.0)
        counts = np.where(whole, 1, np.isinf(machines.measured[0]).sum(axis=1))
        promised = np.stack([machines.areas, costs], axis=1)
        gains = added_hypervolume(front, promised, self.reference) / (options.batch * counts)
        gains[machines.is_hopeless] = 0.0
        if gains.max(initial=0.0) <= 1e-12:
            return None
        row = int(np.argmax(gains))
        return row, [int(np.argmax(saved[row]))] if whole[row] else self._first_layers(row, likely)

    def _first_layers(self, row: int, likely: PerLayer) -> list[int]:
        """Choose the layers to measure first on a machine: its most expensive unmeasured layers.

        Args:
            row: index of the machine.
            likely: expected metrics of all layers, float array of shape (metrics, machines,
                layers).

        Returns:
            Indices of the layers. Together they cause at least the fraction `part` of the cost of
            all unmeasured layers.
        """
        machines = self.machines
        left = np.flatnonzero(np.isinf(machines.measured[0, row]))
        cost = machines.weigh_changes(likely, likely * machines.calls)[row, left]
        heavy = np.argsort(-cost, kind="stable")
        taken = np.cumsum(cost[heavy])
        enough = int(np.searchsorted(taken, self.options.part * taken[-1])) + 1
        return [int(layer) for layer in left[heavy[:enough]]]

    def _savings(self, optimum: PerLayer, likely: PerLayer) -> PerLayer:
        """Return how much another batch of trials of a layer is expected to lower the objective.

        Args:
            optimum: estimated metrics of the layers with their best schedules, float array of shape
                (metrics, machines, layers).
            likely: expected metrics, same shape: the measured ones of a layer with a valid trial,
                otherwise `optimum`.

        Returns:
            Decrease of the objective, float array of shape (machines, layers); 0 for machines with
            unmeasured layers.
        """
        machines, options = self.machines, self.options
        saved, whole = np.zeros_like(optimum), machines.is_complete
        measured, lowest = machines.measured[:, whole], optimum[:, whole]
        doubt = options.doubt * (measured - machines.bounds[:, whole])
        per_layer = (
            np.maximum(measured - np.minimum(lowest, measured), doubt) * machines.calls[whole]
        )
        left = options.halving ** (machines.batches[whole] - 1) * (1 - options.halving)
        saved[:, whole] = np.where(machines.real[whole], per_layer * left, 0.0)
        return machines.weigh_changes(likely, saved)

    # -- measuring -----------------------------------------------------------------------------

    def _measure(self, row: int, layers: list[int]) -> None:
        machines = self.machines
        if row not in self.tuning:
            self.tuning[row] = LayerTuning(
                machines.designs[row], self.evaluator, self.seed, self.options.tuner
            )
        for layer in layers:
            machines.measured[:, row, layer] = self.tuning[row].advance(layer, self.options.batch)
            machines.batches[row, layer] += 1
        machines.learn(row, layers)
