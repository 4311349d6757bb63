"""Times labelled networks exactly: all their streams in the cycle simulator, with tuned schedules.

Each workload of a labelled network is tuned once, when its schedule is needed.
`make_estimate_evaluator` takes the schedules that are estimated best instead.
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
"""A schedule of each workload; None where none of those that were tried runs."""


class NoSchedule(WorkloadError):
    """No schedule that was tried runs this workload."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        super().__init__(
            f"{workload}: none of the schedules that were tried runs; tune with more --trials"
        )


class FusionSchedules:
    """Schedules that are known and those that `tune` finds. `tuned` counts the latter, `failed` are
    the workloads of which it found none. What was once answered of a workload stays."""

    def __init__(self, blocks: Blocks, tune: Tune) -> None:
        self.tune = tune
        self.tuned = 0
        self.failed: set[Workload] = set()
        self._table = PickTable(blocks)
        self._found: dict[Workload, Pick] = {}

    def add(self, workload: Workload, pick: Pick) -> None:
        """Add a schedule that is known."""
        self._table.add(workload, pick)

    def known(self, workload: Workload) -> Pick | None:
        """The schedule of a workload, maybe one that was tuned for what the same schedules run;
        None if it has to be tuned."""
        found = self._found.get(workload) or self._table.closest_match(workload)
        if found is not None:
            self._found[workload] = found
        return found

    def missing(self, workloads: Sequence[Workload]) -> list[Workload]:
        """Return the workloads that have to be tuned, each once."""
        unknown = [each for each in dict.fromkeys(workloads) if self.known(each) is None]
        return [each for each in unknown if each not in self.failed]

    def of(self, workloads: Sequence[Workload]) -> list[Pick]:
        """Return a schedule for each workload. Raises `NoSchedule` if there is none, and what
        tuning raises."""
        missing = self.missing(workloads)
        if missing:
            self.tuned += len(missing)
            found = dict(zip(missing, self.tune(missing), strict=True))
            self.failed |= {workload for workload, pick in found.items() if pick is None}
            self._found |= {workload: pick for workload, pick in found.items() if pick is not None}
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
    """A labelled network: cycles of its streams and bytes that they move from and to memory, and of
    each layer by itself its workload, schedule and cost."""

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
"""Hears of each labelled network that is simulated, with how many there were."""


class Evaluator:
    """Times labelled networks, each distinct graph once. `count` of them were simulated; `heard` is
    told of each, with how many there were. `alone` are the workloads seen so far, each with its
    schedule and what it takes. Raises `FusionError` for a target that runs no programs of ours."""

    def __init__(
        self, problem: FusionProblem, schedules: FusionSchedules, heard: Heard | None = None
    ) -> None:
        builds = capability(problem.target, Builds)
        timer = None if builds is None else builds.stream_timer()
        if timer is None:
            raise FusionError(
                f"{problem.target.name} runs no programs of ours, so there is nothing to decide "
                "about fusion; choose a VTA, or leave out --fusion"
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
        """Of one labelling, whose workloads are tuned if they are not. Raises `WorkloadError` for
        what no board could load, and what tuning raises."""
        found = self._known.get(labels)
        layers = self._layers(labels) if found is None else ()
        if found is None and layers in self._same:
            found = self._known[labels] = replace(self._same[layers], labels=labels)
        if found is None:
            found = self.again(labels)
            self.count += 1
            self._known[labels] = self._same[layers] = found
            each = zip(found.workloads, found.picks, found.layers, strict=True)
            self.alone.update({workload: (pick, layer) for workload, pick, layer in each})
            if self.heard is not None:
                self.heard(found, self.count)
        return found

    def _layers(self, labels: Labelling) -> tuple[object, ...]:
        """What tells one labelled graph from another: one of siblings alone makes no other."""
        return tuple(
            (layer.names, layer.data, layer.output, layer.workload)
            for layer in self.problem.labelled(labels).layers
        )

    def again(self, labels: Labelling) -> Evaluation:
        """Simulate a labelled network, whether it was simulated before or not. Raises as
        `__call__`."""
        workloads = self.problem.workloads(labels)
        picks = self.schedules.of(workloads)
        cost = self._timer.cost(layer_graph(self.problem.labelled(labels)), picks)
        return Evaluation(
            labels, cost.cycles, cost.dram_bytes, tuple(workloads), tuple(picks), cost.layers
        )

    def missing(self, labels: Labelling) -> list[Workload]:
        """Return the workloads that would have to be tuned for a labelling."""
        if labels in self._known:
            return []
        return self.schedules.missing(self.problem.workloads(labels))

    def seen(self, labels: Labelling) -> Evaluation | None:
        """Return the evaluation of a labelling, or None if it was not evaluated."""
        return self._known.get(labels)

    def known(self) -> list[Evaluation]:
        """Return all evaluations so far, in order."""
        return list(self._known.values())


def make_estimate_evaluator(problem: FusionProblem, seed: int) -> Evaluator:
    """Return an evaluator that takes the schedules that are estimated best. No trial is made, but
    whole networks are simulated. Raises `FusionError` for a target that runs no programs of
    ours."""

    def estimated(workloads: Sequence[Workload]) -> list[Pick | None]:
        return [_estimated(workload, problem.target, seed) for workload in workloads]

    return Evaluator(problem, FusionSchedules(traits_of(problem.target).blocks, estimated))


def _estimated(workload: Workload, target: Target, seed: int) -> Pick | None:
    try:
        return pick_without_trials(workload, target, seed)
    except WorkloadError:
        return None
