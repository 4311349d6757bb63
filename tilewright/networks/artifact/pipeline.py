"""Overlaps work on successive images: the CPU and the accelerator work on different images.

The work on an image is a sequence of stages. Each stage occupies one resource, which is the CPU or
the accelerator. Some stages of the CPU run islands, which are operators between the layers on the
accelerator.
"""

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
"""Ratio of two intervals between images up to which the longer interval is good enough. With it,
more images in flight are not tried, or not chosen."""
_LONG = 400
"""Number of images after which the simulation stops if no state of the pipeline has occurred
twice."""


@dataclass(frozen=True)
class PipelineStage:
    """Work on an image that one resource performs without interruption.

    Attributes:
        resource: "cpu" or "accelerator".
        nanoseconds: duration.
        steps: indices of the steps in the artifact's order; empty if the host only packs or
            unpacks.
    """

    resource: Resource
    nanoseconds: int
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class StageRun:
    """Execution of a stage for one image.

    Attributes:
        image: index of the image.
        stage: index of the stage.
        begin: start time in nanoseconds.
        end: end time in nanoseconds.
    """

    image: int
    stage: int
    begin: int
    end: int


@dataclass(frozen=True)
class SteadyState:
    """Throughput and latency of a pipeline with a given number of images in flight.

    An image is in flight if its first stage has started and its last stage has not ended.

    Attributes:
        in_flight: number of images in flight.
        interval: seconds between the ends of successive images.
        latency: maximum seconds from the start to the end of an image.
        is_exact: True if the simulation reached a state a second time, so that `interval` is exact;
            otherwise `interval` is an average over some hundred images.
    """

    in_flight: int
    interval: float
    latency: float
    is_exact: bool


def busy(stages: Sequence[PipelineStage], resource: Resource) -> float:
    """Return the seconds for which one image occupies a resource, summed over its stages.

    Args:
        stages: stages of an image.
        resource: "cpu" or "accelerator".
    """
    return sum(stage.nanoseconds for stage in stages if stage.resource == resource) / 1e9


def bound(stages: Sequence[PipelineStage]) -> float:
    """Return a lower bound on the seconds between the ends of successive images.

    The bound is the time for which an image occupies the busier resource.

    Args:
        stages: stages of an image.
    """
    return max(busy(stages, "cpu"), busy(stages, "accelerator"))


def simulate(stages: Sequence[PipelineStage], images: int, in_flight: int) -> list[StageRun]:
    """Simulate a pipeline.

    If several stages wait for the same resource, the stage of the older image starts first.

    Args:
        stages: stages of an image.
        images: number of images.
        in_flight: maximum number of images that are started and not finished.

    Returns:
        The executions of stages, ordered by start time.
    """
    simulation = _Simulation(stages, in_flight, images)
    runs: list[StageRun] = []
    while simulation.running:
        runs += simulation.begun
        simulation.advance()
    return runs


def steady_state(stages: Sequence[PipelineStage], in_flight: int) -> SteadyState:
    """Simulate an endless stream of images until its interval and latency are known.

    Args:
        stages: stages of an image.
        in_flight: number of images in flight.

    Returns:
        The steady state.
    """
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
        ends.append(simulation.now)  # all images have the same stages, so they end in order
        latency = max(latency, simulation.now - begins.pop(left))
        first = seen.setdefault(simulation.state(), len(ends) - 1)
        if first < len(ends) - 1:
            interval = (ends[-1] - ends[first]) / (len(ends) - 1 - first)
            return SteadyState(in_flight, interval / 1e9, latency / 1e9, is_exact=True)
    half = _LONG // 2
    interval = (ends[-1] - ends[half - 1]) / half
    return SteadyState(in_flight, interval / 1e9, latency / 1e9, is_exact=False)


class _Simulation:
    """Simulation of the CPU and the accelerator, which work on several images at the same time.

    Args:
        stages: stages of an image.
        in_flight: maximum number of images that are started and not finished.
        images: number of images; None for an endless stream.

    Attributes:
        now: current time in nanoseconds.
        running: the stage that each busy resource executes.
        begun: the stages that start at the current time.
    """

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
        """Advance to the next time at which a stage ends, and start waiting stages.

        Returns the image that has left the pipeline, or None. At most one image leaves at a time,
        because a single resource executes the last stage of every image.
        """
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
        """Return the state of all images in flight, for detecting that a state recurs.

        Each entry holds the image's distance to the next image to be admitted, its current stage,
        and the remaining nanoseconds of that stage (−1 if the image waits for it).
        """
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
    """Return the steady states of a pipeline with one image in flight, with two, and so on.

    The list ends with the first number of images whose interval is within 1 % of the lower bound,
    or with 16 images.

    Args:
        stages: stages of an image.
    """
    states: list[SteadyState] = []
    for in_flight in range(1, MOST_IN_FLIGHT + 1):
        states.append(steady_state(stages, in_flight))
        if states[-1].interval <= ENOUGH * bound(stages):
            break
    return states


def choose_steady_state(states: Sequence[SteadyState]) -> SteadyState:
    """Return the steady state with the fewest images in flight among those with a short interval.

    An interval is short if it is within 1 % of the shortest interval.

    Args:
        states: the steady states to choose from.
    """
    least = min(state.interval for state in states)
    return next(state for state in states if state.interval <= ENOUGH * least)


CpuSource = Literal["estimated", "measured"]
"""Origin of the CPU times. They were either estimated by the build, or measured on this machine and
scaled."""


@dataclass(frozen=True)
class CpuTimes:
    """Time that one image takes on the CPU beside the accelerator.

    Attributes:
        islands: seconds of each island, a group of operators between layers.
        border: pairs of the seconds of packing before each segment (a sequence of layers on the
            accelerator) and of unpacking after it.
        source: origin of the islands' times.
    """

    islands: Sequence[float]
    border: Sequence[tuple[float, float]]
    source: CpuSource

    @property
    def packing(self) -> float:
        """Total seconds of packing and unpacking."""
        return sum(map(sum, self.border))


@dataclass(frozen=True)
class Choice:
    """A steady state and the accelerator memory that its images in flight need.

    Attributes:
        steady: the steady state.
        dram_bytes: required memory in bytes.
    """

    steady: SteadyState
    dram_bytes: int


@dataclass(frozen=True)
class PipelinePlan:
    """Plan for overlapping the work on successive images.

    Attributes:
        stages: stages of an image.
        cpu: times on the CPU.
        choices: the steady states that were compared, by increasing number of images in flight.
        taken: the chosen steady state.
        has_islands: True if the CPU runs operators between layers on the accelerator.
    """

    stages: Sequence[PipelineStage]
    cpu: CpuTimes
    choices: Sequence[Choice]
    taken: Choice
    has_islands: bool

    @property
    def latency(self) -> float:
        """Seconds that a single image takes without overlap."""
        return self.busy("cpu") + self.busy("accelerator")

    @property
    def interval(self) -> float:
        """Seconds between successive images with overlap."""
        return self.taken.steady.interval

    @property
    def bound(self) -> float:
        """Lower bound on the seconds between successive images."""
        return bound(self.stages)

    @property
    def more_bytes(self) -> int:
        """Additional accelerator memory in bytes, compared with one image in flight."""
        return self.taken.dram_bytes - self.choices[0].dram_bytes

    def busy(self, resource: Resource) -> float:
        """Return the seconds for which an image occupies a resource, summed over its stages.

        Args:
            resource: "cpu" or "accelerator".
        """
        return busy(self.stages, resource)


def plan_pipeline(
    order: Order, program: HoldsImages, cycles: Sequence[int], clock_hz: float, cpu: CpuTimes
) -> PipelinePlan:
    """Plan how the work on successive images overlaps.

    Args:
        order: the steps of the artifact.
        program: the accelerator's program, which has memory for several images.
        cycles: cycles of each segment, a sequence of layers on the accelerator.
        clock_hz: clock frequency of the accelerator in Hz.
        cpu: times on the CPU.

    Returns:
        The plan.
    """
    stages = stages_of(order, [cycle / clock_hz for cycle in cycles], cpu)
    choices = [
        Choice(state, program.room_bytes(state.in_flight)) for state in steady_states(stages)
    ]
    best = choose_steady_state([item.steady for item in choices])
    taken = next(item for item in choices if item.steady is best)
    return PipelinePlan(stages, cpu, choices, taken, bool(order.islands))


def stages_of(order: Order, segments: Sequence[float], cpu: CpuTimes) -> list[PipelineStage]:
    """Return the pipeline stages of an image.

    A segment is a sequence of layers on the accelerator. Between two segments, the CPU unpacks
    tensors, runs islands (groups of operators) and packs tensors. This work forms a single stage.

    Args:
        order: the steps of the artifact.
        segments: seconds of each segment.
        cpu: times on the CPU.

    Returns:
        The stages in order.
    """
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
    """Return the seconds that packing or unpacking takes on the CPU beside the accelerator.

    Args:
        work: the amount of work.
        slowdown: factor by which that CPU is slower than the CPU on which
            `networks.offloading.cpu_costs` was measured.
    """
    unfolding = SECONDS["elementwise"] * work.unfolded_from + SECONDS["unfold"] * work.unfolded
    return slowdown * (SECONDS["pack"] * work.packed + unfolding)


def run_images(
    order: Order, program: HoldsImages, cpu: RunCpu, images: Sequence[Mapping[str, Array]],
    stages: Sequence[PipelineStage], in_flight: int,
) -> list[dict[str, Array]]:  # fmt: skip
    """Run several images, in the order in which the plan starts their stages.

    The simulated accelerator runs one stage at a time, so sequences of layers (segments) of one
    image run between those of another image.

    Args:
        order: the steps of the artifact.
        program: the accelerator's program.
        cpu: function that runs an island, a group of operators on the CPU.
        images: input arrays by name, one mapping per image.
        stages: stages of an image.
        in_flight: maximum number of images in flight.

    Returns:
        The outputs of each image, arrays by name in the shapes of `order`.

    Raises:
        InputError: an input is missing or has another shape or type.
    """
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
    """Return a program, typed as a program that has memory for several images.

    Args:
        program: the accelerator's program.
        target: name of the target, for the message.

    Returns:
        `program`.

    Raises:
        ArtifactError: the program has memory for one image only.
    """
    if not isinstance(program, HoldsImages):
        raise ArtifactError(
            f"programs of {target} have memory for a single image only; leave out "
            "--pipeline, or build for a VTA"
        )
    return program
