"""Exact latency of labelled networks: simulates all their command streams with tuned schedules.

Each workload of a labelled network is tuned once, when its schedule is needed.
`make_estimate_evaluator` chooses schedules by their estimates instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.core.errors import TilewrightError, WorkloadError
from tilewright.fusion.problem import FusionProblem, Labelling
from tilewright.networks.artifact.build import layer_graph
from tilewright.targets.artifact_types import LayerCost, Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import Blocks, Builds, capability, traits_of
from tilewright.targets.workload import Workload
from tilewright.tuning.schedule_lookup import PickTable, pick_without_trials

Tune = Callable[[Sequence[Workload]], Sequence[Pick | None]]
"""Returns a schedule for each workload; None for a workload if no schedule that was tried is valid.
"""


class NoSchedule(WorkloadError):
    """None of the schedules that were tried for a workload is valid.

    Args:
        workload: the workload.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        super().__init__(
            f"{workload}: none of the schedules that were tried runs; tune with more --trials"
        )


class FusionSchedules:
    """Schedules of workloads, which are tuned when they are needed.

    Once a workload has a schedule, the schedule does not change.

    Args:
        blocks: block sizes of the accelerator.
        tune: tunes workloads and returns a schedule for each, or None if it found no valid one.

    Attributes:
        tuned: number of workloads that were tuned.
        failed: workloads for which tuning found no valid schedule.
    """

    def __init__(self, blocks: Blocks, tune: Tune) -> None:
        self.tune = tune
        self.tuned = 0
        self.failed: set[Workload] = set()
        self._table = PickTable(blocks)
        self._found: dict[Workload, Pick] = {}

    def add(self, workload: Workload, pick: Pick) -> None:
        """Add a schedule that a workload already has, so that the workload is not tuned.

        Args:
            workload: the workload.
            pick: its schedule.
        """
        self._table.add(workload, pick)

    def known(self, workload: Workload) -> Pick | None:
        """Return the schedule of a workload, or None if the workload has to be tuned.

        The schedule may have been tuned for a different workload to which the same schedules apply.
        """
        pick = self._found.get(workload) or self._table.closest_match(workload)
        if pick is not None:
            self._found[workload] = pick
        return pick

    def untuned_workloads(self, workloads: Sequence[Workload]) -> list[Workload]:
        """Return the distinct workloads that have to be tuned."""
        unknown = [
            workload for workload in dict.fromkeys(workloads) if self.known(workload) is None
        ]
        return [workload for workload in unknown if workload not in self.failed]

    def schedules_for(self, workloads: Sequence[Workload]) -> list[Pick]:
        """Return a schedule for each workload, and tune workloads without one.

        Raises:
            NoSchedule: a workload has no valid schedule.
            TilewrightError: tuning fails.
        """
        missing = self.untuned_workloads(workloads)
        if missing:
            self.tuned += len(missing)
            picks = dict(zip(missing, self.tune(missing), strict=True))
            self.failed |= {workload for workload, pick in picks.items() if pick is None}
            self._found |= {workload: pick for workload, pick in picks.items() if pick is not None}
            for workload in missing:
                if workload in self._found:
                    self._table.add(workload, self._found[workload])
        for workload in workloads:
            if workload in self.failed:
                raise NoSchedule(workload)
        return [self._found[workload] for workload in workloads]


class FusionError(TilewrightError):
    """Fusion cannot be decided."""


@dataclass(frozen=True)
class Evaluation:
    """A network with certain fusions, and its exact cost.

    Attributes:
        labels: the labelling: whether each possible fusion is applied.
        cycles: cycles of all command streams.
        dram_bytes: bytes that the streams read from and write to memory.
        workloads: workload of each layer.
        picks: schedule of each layer.
        layers: cost of each layer.
    """

    labels: Labelling
    cycles: int
    dram_bytes: int
    workloads: tuple[Workload, ...]
    picks: tuple[Pick, ...]
    layers: tuple[LayerCost, ...]

    @property
    def cost(self) -> tuple[int, int]:
        """Sort key for labellings: cycles, with ties broken by bytes moved."""
        return self.cycles, self.dram_bytes


Heard = Callable[[Evaluation, int], None]
"""Called with each labelled network that is simulated, and the number of simulations so far."""


class Evaluator:
    """Computes the cost of labellings, which say for each possible fusion whether it is applied.

    The fused network is simulated as a whole. If several labellings give the same network, it is
    simulated once.

    Args:
        problem: the possible fusions of a network.
        schedules: schedules of the workloads.
        heard: called with each simulated network and the number of simulations so far.

    Attributes:
        count: number of simulated networks.
        alone: schedule and cost of each workload that was simulated so far.

    Raises:
        FusionError: the target does not run programs that Tilewright generates.
    """

    def __init__(
        self, problem: FusionProblem, schedules: FusionSchedules, heard: Heard | None = None
    ) -> None:
        builds = capability(problem.target, Builds)
        timer = None if builds is None else builds.stream_timer()
        if timer is None:
            raise FusionError(
                f"programs of {problem.target.name} cannot be executed here, so there is "
                "nothing to decide about fusion; choose a VTA, or leave out --fusion"
            )
        self.problem = problem
        self.schedules = schedules
        self.heard = heard
        self.count = 0
        self.alone: dict[Workload, tuple[Pick, LayerCost]] = {}
        self._timer = timer
        self._known: dict[Labelling, Evaluation] = {}
        self._same: dict[tuple[object, ...], Evaluation] = {}

    def __call__(self, labels: Labelling) -> Evaluation:
        """Return the cost of a labelling. New workloads are tuned, and a new network is simulated.

        Args:
            labels: whether each possible fusion is applied.

        Raises:
            WorkloadError: a layer has no valid schedule, or the program cannot be loaded on a
                board.
            TilewrightError: tuning fails.
        """
        evaluation = self._known.get(labels)
        layers = self._layers(labels) if evaluation is None else ()
        if evaluation is None and layers in self._same:
            evaluation = self._known[labels] = replace(self._same[layers], labels=labels)
        if evaluation is None:
            evaluation = self.reevaluate(labels)
            self.count += 1
            self._known[labels] = self._same[layers] = evaluation
            parts = zip(evaluation.workloads, evaluation.picks, evaluation.layers, strict=True)
            self.alone.update({workload: (pick, layer) for workload, pick, layer in parts})
            if self.heard is not None:
                self.heard(evaluation, self.count)
        return evaluation

    def _layers(self, labels: Labelling) -> tuple[object, ...]:
        """Return a key that is equal for labellings that give the same network."""
        return tuple(
            (layer.names, layer.data, layer.output, layer.workload)
            for layer in self.problem.labelled(labels).layers
        )

    def reevaluate(self, labels: Labelling) -> Evaluation:
        """Simulate the network of a labelling, even if it was simulated before.

        The result is not stored. The errors are those of `__call__`.
        """
        workloads = self.problem.workloads(labels)
        picks = self.schedules.schedules_for(workloads)
        cost = self._timer.cost(layer_graph(self.problem.labelled(labels)), picks)
        return Evaluation(
            labels, cost.cycles, cost.dram_bytes, tuple(workloads), tuple(picks), cost.layers
        )

    def untuned_workloads(self, labels: Labelling) -> list[Workload]:
        """Return the workloads that `__call__` would tune to evaluate a labelling."""
        if labels in self._known:
            return []
        return self.schedules.untuned_workloads(self.problem.workloads(labels))

    def find_evaluation(self, labels: Labelling) -> Evaluation | None:
        """Return the cost of a labelling, or None if it was not evaluated yet."""
        return self._known.get(labels)

    def evaluations(self) -> list[Evaluation]:
        """Return all evaluations so far, in order."""
        return list(self._known.values())


def make_estimate_evaluator(problem: FusionProblem, seed: int) -> Evaluator:
    """Return an evaluator that uses schedules found without tuning.

    For each workload it takes the baseline or the schedule with the best estimate, whichever is
    faster (see `pick_without_trials`).

    Args:
        problem: the possible fusions of a network.
        seed: seed of the configs that are estimated.

    Raises:
        FusionError: the target does not run programs that Tilewright generates.
    """

    def estimated(workloads: Sequence[Workload]) -> list[Pick | None]:
        return [_estimate_schedule(workload, problem.target, seed) for workload in workloads]

    return Evaluator(problem, FusionSchedules(traits_of(problem.target).blocks, estimated))


def _estimate_schedule(workload: Workload, target: Target, seed: int) -> Pick | None:
    try:
        return pick_without_trials(workload, target, seed)
    except WorkloadError:
        return None
