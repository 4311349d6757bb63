"""Computes the exact latency of networks in which some operators are fused.

A labelling holds one bool per possible fusion: whether it is applied. `Evaluator` simulates the
fused network as a whole, with all its command streams and with tuned schedules. Each workload of a
fused network is tuned once, at the time when its schedule is first needed. The evaluator that
`make_estimate_evaluator` returns chooses schedules by their estimated latency instead.
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
"""Function that returns one schedule per workload, or None for a workload for which no valid
schedule was found."""


class NoSchedule(WorkloadError):
    """Raised if none of the schedules that were tried for a workload is valid.

    Args:
        workload: the workload.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        super().__init__(
            f"{workload}: none of the schedules that were tried runs; tune with more --trials"
        )


class FusionSchedules:
    """Schedules of the workloads of fused networks. Each workload is tuned on first use.

    The schedule of a workload never changes, so that costs of different selections of fusions are
    comparable.

    Args:
        blocks: block sizes of the accelerator.
        tune: tunes workloads and returns one schedule per workload, or None for a workload without
            a valid schedule.

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
        """Add a schedule that is known from an earlier tuning; its workload is not tuned again.

        Args:
            workload: the workload.
            pick: its schedule.
        """
        self._table.add(workload, pick)

    def known(self, workload: Workload) -> Pick | None:
        """Return the schedule of a workload, if it is known.

        The schedule may come from a different workload that has the same schedule space.

        Args:
            workload: the workload.

        Returns:
            The schedule, or None if the workload has to be tuned.
        """
        pick = self._found.get(workload) or self._table.closest_match(workload)
        if pick is not None:
            self._found[workload] = pick
        return pick

    def untuned_workloads(self, workloads: Sequence[Workload]) -> list[Workload]:
        """Return the distinct workloads that have no schedule yet.

        Workloads for which tuning already found no valid schedule are left out.

        Args:
            workloads: the workloads to check.
        """
        unknown = [
            workload for workload in dict.fromkeys(workloads) if self.known(workload) is None
        ]
        return [workload for workload in unknown if workload not in self.failed]

    def schedules_for(self, workloads: Sequence[Workload]) -> list[Pick]:
        """Return one schedule per workload. Workloads that have none yet are tuned first.

        Args:
            workloads: the workloads.

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
    """Raised if Tilewright cannot decide which operators to fuse."""


@dataclass(frozen=True)
class Evaluation:
    """Exact cost of the network that results from a labelling.

    Attributes:
        labels: the labelling: one bool per possible fusion.
        cycles: cycles of all command streams together.
        dram_bytes: bytes that the command streams read from and write to DRAM.
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
        """Sort key for evaluations: cycles, with ties broken by bytes moved."""
        return self.cycles, self.dram_bytes


Heard = Callable[[Evaluation, int], None]
"""Callback for each simulated network. Its arguments are the evaluation of the network and the
number of simulations so far."""


class Evaluator:
    """Computes the exact cost of labellings by simulation.

    A labelling holds one bool per possible fusion: whether it is applied. The fused network is
    simulated as a whole. Results are cached; labellings that give the same network share one
    simulation.

    Args:
        problem: the possible fusions of a network.
        schedules: schedules of the workloads.
        heard: called with the evaluation of each simulated network and the number of simulations so
            far.

    Attributes:
        count: number of networks that were simulated.
        alone: schedule and cost of each workload that was part of a simulated network.

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
        """Return the cost of a labelling.

        Workloads without a schedule are tuned, and a network that was not simulated before is
        simulated.

        Args:
            labels: one bool per possible fusion: whether it is applied.

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
        """Return a hashable description of a labelled network, under which its cost is cached.

        Labellings that give the same network have the same description.

        Args:
            labels: the labelling: one bool per possible fusion.
        """
        return tuple(
            (layer.names, layer.data, layer.output, layer.workload)
            for layer in self.problem.labelled(labels).layers
        )

    def reevaluate(self, labels: Labelling) -> Evaluation:
        """Simulate the network of a labelling, even if its cost is already in the cache.

        The result is not cached.

        Args:
            labels: the labelling: one bool per possible fusion.

        Raises:
            WorkloadError: a layer has no valid schedule, or the program cannot be loaded on a
                board.
            TilewrightError: tuning fails.
        """
        workloads = self.problem.workloads(labels)
        picks = self.schedules.schedules_for(workloads)
        cost = self._timer.cost(layer_graph(self.problem.labelled(labels)), picks)
        return Evaluation(
            labels, cost.cycles, cost.dram_bytes, tuple(workloads), tuple(picks), cost.layers
        )

    def untuned_workloads(self, labels: Labelling) -> list[Workload]:
        """Return the workloads that must be tuned before a labelling can be evaluated.

        Args:
            labels: the labelling: one bool per possible fusion.
        """
        if labels in self._known:
            return []
        return self.schedules.untuned_workloads(self.problem.workloads(labels))

    def find_evaluation(self, labels: Labelling) -> Evaluation | None:
        """Return the cost of a labelling, or None if it was not evaluated yet.

        Args:
            labels: the labelling: one bool per possible fusion.
        """
        return self._known.get(labels)

    def evaluations(self) -> list[Evaluation]:
        """Return the evaluations of all labellings so far, in the order of their first request."""
        return list(self._known.values())


def make_estimate_evaluator(problem: FusionProblem, seed: int) -> Evaluator:
    """Return an evaluator whose schedules are chosen by their estimated latency, without tuning.

    For each workload it takes the faster of two schedules: the baseline schedule and the one with
    the best estimate (see `pick_without_trials`).

    Args:
        problem: the possible fusions of a network.
        seed: seed for drawing the configs whose latency is estimated.

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
