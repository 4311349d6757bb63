"""Runs an artifact on successive images: the CPU works on one while the accelerator has another.

The cycle simulator knows the time of segments. The CPU's is an estimate: of islands the one that
the build wrote down (`networks.cpu_costs`), of packing one by its bytes. In an artifact without
estimates the islands are timed here, and multiplied by the factor of the board's CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from tilewright.networks.artifact.errors import ArtifactError
from tilewright.networks.artifact.overlap import (
    PipelineStage,
    Resource,
    SteadyState,
    bound,
    busy,
    choices,
    chosen,
    simulate,
)
from tilewright.networks.artifact.run import Array, Inference, Order, RunCpu
from tilewright.networks.cpu_costs import SECONDS
from tilewright.targets.artifact_types import BorderWork, HoldsImages

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


def plan(
    order: Order, program: HoldsImages, cycles: Sequence[int], clock_hz: float, cpu: CpuTimes
) -> PipelinePlan:
    """The schedule of an artifact whose segments take so many cycles."""
    stages = stages_of(order, [each / clock_hz for each in cycles], cpu)
    found = [Choice(each, program.room_bytes(each.in_flight)) for each in choices(stages)]
    best = chosen([each.steady for each in found])
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
    as `networks.accelerator` counts it."""
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
