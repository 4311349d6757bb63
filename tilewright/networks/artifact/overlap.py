"""Schedules successive images on two resources, a CPU and an accelerator, that work at once.

An image is a chain of stages, by turns on the CPU and on the accelerator. Every image has the same
chain, and images depend on each other only where they wait for a resource or for memory. In a
steady state with an image every `interval`, each resource does all of an image's stages in that
time. So no schedule has an interval below the larger of the two sums, `bound`.

With memory for enough images, the bound is reached. Give each stage a slot in a period of that
length, so that no two stages of a resource overlap. Let the stages of an image take their slots in
order, each at its next turn. Images started a period apart then never collide.

How many images are enough is found by simulation (`simulate`). A resource that falls free takes the
oldest image that waits for it, and no stage is interrupted. Times are whole nanoseconds, so states
recur, and the interval between two equal states is exact.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Resource = Literal["cpu", "accelerator"]
MOST_IN_FLIGHT = 16
ENOUGH = 1.01
"""How close to the bound an interval is that more images in flight are not tried for."""
_LONG = 400
"""Images after which a state that has not recurred is no longer waited for."""


@dataclass(frozen=True)
class PipelineStage:
    """Work of one resource for an image, without a break; `steps` of the artifact's order are part
    of it, none where the host only packs or unpacks."""

    resource: Resource
    nanoseconds: int
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class StageRun:
    """A stage of an image in time, in nanoseconds."""

    image: int
    stage: int
    begin: int
    end: int


@dataclass(frozen=True)
class SteadyState:
    """What so many images in flight give: seconds from one image's end to the next one's, and from
    an image's begin to its end, at most. `is_exact` where a state recurred; else the interval is an
    average over some hundred images."""

    in_flight: int
    interval: float
    latency: float
    is_exact: bool


def busy(stages: Sequence[PipelineStage], resource: Resource) -> float:
    """Seconds that an image takes of a resource."""
    return sum(each.nanoseconds for each in stages if each.resource == resource) / 1e9


def bound(stages: Sequence[PipelineStage]) -> float:
    """Seconds from image to image that no schedule beats."""
    return max(busy(stages, "cpu"), busy(stages, "accelerator"))


def simulate(stages: Sequence[PipelineStage], images: int, in_flight: int) -> list[StageRun]:
    """What runs when, in the order of the begins; at most `in_flight` images are begun and not
    ended. Of several begins at one time the older image's is first."""
    simulation = _Simulation(stages, in_flight, images)
    runs: list[StageRun] = []
    while simulation.running:
        runs += simulation.begun
        simulation.advance()
    return runs


def steady_state(stages: Sequence[PipelineStage], in_flight: int) -> SteadyState:
    """The interval and the latency with so many images in flight."""
    simulation = _Simulation(stages, in_flight, None)
    seen: dict[tuple[tuple[int, int, int], ...], int] = {}
    begins: dict[int, int] = {}
    ends: list[int] = []
    latency = 0
    while len(ends) < _LONG:
        begins.update((run.image, run.begin) for run in simulation.begun if run.stage == 0)
        left = simulation.advance()
        if left is None:
            continue
        ends.append(simulation.now)  # with one chain for all, images end in order
        latency = max(latency, simulation.now - begins.pop(left))
        first = seen.setdefault(simulation.state(), len(ends) - 1)
        if first < len(ends) - 1:
            interval = (ends[-1] - ends[first]) / (len(ends) - 1 - first)
            return SteadyState(in_flight, interval / 1e9, latency / 1e9, is_exact=True)
    half = _LONG // 2
    interval = (ends[-1] - ends[half - 1]) / half
    return SteadyState(in_flight, interval / 1e9, latency / 1e9, is_exact=False)


class _Simulation:
    """Both resources at a time `now`, in nanoseconds; `begun` has what begins there."""

    def __init__(self, stages: Sequence[PipelineStage], in_flight: int, images: int | None) -> None:
        self._stages, self._images = stages, images
        self._waiting: dict[Resource, list[tuple[int, int]]] = {"cpu": [], "accelerator": []}
        self._admitted = 0
        self.now = 0
        self.running: dict[Resource, StageRun] = {}
        for _ in range(in_flight):
            self._admit()
        self.begun = self._begin()

    def advance(self) -> int | None:
        """Go on to when a stage ends, and begin what can begin; gives the image that has left. Of
        two stages that end at one time one at most is an image's last."""
        self.now = min(run.end for run in self.running.values())
        left = None
        for resource, run in list(self.running.items()):
            if run.end > self.now:
                continue
            del self.running[resource]
            if run.stage + 1 < len(self._stages):
                self._wait(run.image, run.stage + 1)
            else:
                left = run.image
                self._admit()
        self.begun = self._begin()
        return left

    def state(self) -> tuple[tuple[int, int, int], ...]:
        """Of each image in flight, the younger the later: how far from the youngest, the stage that
        runs or waits, and the nanoseconds left of it, -1 where it waits."""
        known = [
            (self._admitted - run.image, run.stage, run.end - self.now)
            for run in self.running.values()
        ]
        known += [
            (self._admitted - image, stage, -1)
            for queue in self._waiting.values()
            for image, stage in queue
        ]
        return tuple(sorted(known))

    def _admit(self) -> None:
        if self._images is None or self._admitted < self._images:
            self._wait(self._admitted, 0)
            self._admitted += 1

    def _wait(self, image: int, stage: int) -> None:
        heapq.heappush(self._waiting[self._stages[stage].resource], (image, stage))

    def _begin(self) -> list[StageRun]:
        begun = []
        for resource, queue in self._waiting.items():
            if queue and resource not in self.running:
                image, stage = heapq.heappop(queue)
                end = self.now + self._stages[stage].nanoseconds
                self.running[resource] = StageRun(image, stage, self.now, end)
                begun.append(self.running[resource])
        return sorted(begun, key=lambda run: run.image)


def choices(stages: Sequence[PipelineStage]) -> list[SteadyState]:
    """With one image in flight, two, …: up to the first number that comes within 1 % of the bound,
    or up to 16."""
    found: list[SteadyState] = []
    for in_flight in range(1, MOST_IN_FLIGHT + 1):
        found.append(steady_state(stages, in_flight))
        if found[-1].interval <= ENOUGH * bound(stages):
            break
    return found


def chosen(found: Sequence[SteadyState]) -> SteadyState:
    """The fewest images in flight of those within 1 % of the least interval."""
    least = min(each.interval for each in found)
    return next(each for each in found if each.interval <= ENOUGH * least)
