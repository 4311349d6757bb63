"""Runs an artifact on successive images: the CPU works on one while the accelerator has another."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from tilewright.networks.artifact.run import Array, Inference, Order, RunCpu
from tilewright.networks.errors import ArtifactError
from tilewright.networks.offloading.cpu_costs import SECONDS
from tilewright.targets.artifact_types import BorderWork, HoldsImages

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


def steady_states(stages: Sequence[PipelineStage]) -> list[SteadyState]:
    """With one image in flight, two, …: up to the first number that comes within 1 % of the bound,
    or up to 16."""
    found: list[SteadyState] = []
    for in_flight in range(1, MOST_IN_FLIGHT + 1):
        found.append(steady_state(stages, in_flight))
        if found[-1].interval <= ENOUGH * bound(stages):
            break
    return found


def choose_steady_state(found: Sequence[SteadyState]) -> SteadyState:
    """The fewest images in flight of those within 1 % of the least interval."""
    least = min(each.interval for each in found)
    return next(each for each in found if each.interval <= ENOUGH * least)


CpuSource = Literal["estimated", "measured"]
"""Of islands: by the build's estimate, or timed on this machine and multiplied."""


@dataclass(frozen=True)
class CpuTimes:
    """Seconds of an image on the CPU beside the accelerator: of each island by number, of packing
    before and unpacking after each segment; and where those of the islands come from."""

    islands: Sequence[float]
    border: Sequence[tuple[float, float]]
    source: CpuSource

    @property
    def packing(self) -> float:
        """Seconds of all packing and unpacking."""
        return sum(map(sum, self.border))


@dataclass(frozen=True)
class Choice:
    """A steady state, and the pages of the accelerator's memory that it takes."""

    steady: SteadyState
    dram_bytes: int


@dataclass(frozen=True)
class PipelinePlan:
    """What overlap gives: stages of an image, the steady states that were looked at, with one image
    in flight and more, and the one that is taken."""

    stages: Sequence[PipelineStage]
    cpu: CpuTimes
    choices: Sequence[Choice]
    taken: Choice
    has_islands: bool

    @property
    def latency(self) -> float:
        """Seconds of an image by itself."""
        return self.busy("cpu") + self.busy("accelerator")

    @property
    def interval(self) -> float:
        """Seconds from image to image with overlap."""
        return self.taken.steady.interval

    @property
    def bound(self) -> float:
        """Seconds from image to image that no schedule beats."""
        return bound(self.stages)

    @property
    def more_bytes(self) -> int:
        """Of the accelerator's memory, beside what one image takes."""
        return self.taken.dram_bytes - self.choices[0].dram_bytes

    def busy(self, resource: Resource) -> float:
        """Seconds that an image takes of a resource."""
        return busy(self.stages, resource)


def plan_pipeline(
    order: Order, program: HoldsImages, cycles: Sequence[int], clock_hz: float, cpu: CpuTimes
) -> PipelinePlan:
    """The schedule of an artifact whose segments take so many cycles."""
    stages = stages_of(order, [each / clock_hz for each in cycles], cpu)
    found = [Choice(each, program.room_bytes(each.in_flight)) for each in steady_states(stages)]
    best = choose_steady_state([each.steady for each in found])
    taken = next(each for each in found if each.steady is best)
    return PipelinePlan(stages, cpu, found, taken, bool(order.islands))


def stages_of(order: Order, segments: Sequence[float], cpu: CpuTimes) -> list[PipelineStage]:
    """The chain of an image, of segments that take so many seconds: the host's packing, islands and
    unpacking between two segments are one stage."""
    stages: list[PipelineStage] = []
    seconds, steps = 0.0, list[int]()

    def close() -> None:
        nonlocal seconds
        if seconds or steps:
            stages.append(PipelineStage("cpu", max(1, round(1e9 * seconds)), tuple(steps)))
        seconds = 0.0
        steps.clear()

    for step, (kind, number) in enumerate(order.steps):
        if kind == "segment":
            seconds += cpu.border[number][0]
            close()
            stages.append(
                PipelineStage("accelerator", max(1, round(1e9 * segments[number])), (step,))
            )
            seconds += cpu.border[number][1]
        else:
            seconds += cpu.islands[number]
            steps.append(step)
    close()
    return stages


def border_seconds(work: BorderWork, slowdown: float) -> float:
    """Packing or unpacking on a CPU that takes so many times as long as the one that was measured,
    as `networks.offloading.accelerator` counts it."""
    unfolding = SECONDS["elementwise"] * work.unfolded_from + SECONDS["unfold"] * work.unfolded
    return slowdown * (SECONDS["pack"] * work.packed + unfolding)


def run_images(
    order: Order, program: HoldsImages, cpu: RunCpu, images: Sequence[Mapping[str, Array]],
    stages: Sequence[PipelineStage], in_flight: int,
) -> list[dict[str, Array]]:  # fmt: skip
    """The outputs of each image, by name, in the shapes of `order`. Stages run one after the other
    in the order in which the schedule begins them, so that segments of one image run between
    another's. Raises `InputError`."""
    in_flight = min(in_flight, len(images))
    memory = program.with_room(in_flight)
    free = list(range(in_flight))
    places: dict[int, int] = {}
    inferences: dict[int, Inference] = {}
    outputs: dict[int, dict[str, Array]] = {}
    for run in simulate(stages, len(images), in_flight):
        if run.stage == 0:
            places[run.image] = free.pop()
            inferences[run.image] = Inference(order, images[run.image])
        segment = partial(memory.run, places[run.image])
        for step in stages[run.stage].steps:
            inferences[run.image].run(step, segment, cpu)
        if run.stage == len(stages) - 1:
            outputs[run.image] = inferences.pop(run.image).outputs()
            free.append(places.pop(run.image))
    return [outputs[image] for image in range(len(images))]


def images_in_flight_of(program: object, target: str) -> HoldsImages:
    """The program itself. Raises `ArtifactError` for one of a target without that."""
    if not isinstance(program, HoldsImages):
        raise ArtifactError(
            f"programs of {target} have room for one image; leave out --pipeline, or build for a "
            "VTA"
        )
    return program
