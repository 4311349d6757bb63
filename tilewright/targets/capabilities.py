"""Optional abilities of targets, one protocol per ability.

The mapping `Target.capabilities` tells which abilities a target has. Its keys are protocols of this
module. Its values are the objects that implement them: the target itself (see `offers`), or another
object.

Example:
    ```python
    estimates = capability(target, Estimates)
    if estimates is not None:
        features = estimates.estimate(workload, configs)
    ```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.core.files import Json
from tilewright.core.tvm_types import TvmTarget
from tilewright.targets.anchor import DType
from tilewright.targets.artifact_types import Built, BuiltProgram, LayerGraph, Pick, StreamTimer
from tilewright.targets.base import Capabilities, Configs, Lowered, Measurements, Space, Target
from tilewright.targets.features import Features
from tilewright.targets.kernels import KernelCode
from tilewright.targets.workload import Workload

C = TypeVar("C")


@dataclass(frozen=True)
class Latency:
    """Latency of one execution of a workload.

    Attributes:
        seconds: latency in seconds.
        cycles: latency in cycles; -1 on a target that does not count cycles.
    """

    seconds: float
    cycles: int = -1

    @property
    def cost(self) -> float:
        """The latency in cycles if they are counted, otherwise in seconds.

        This is the unit of `Measurements.latency`.
        """
        return float(self.cycles) if self.cycles > 0 else self.seconds


@dataclass(frozen=True)
class Costs:
    """Average cost of trying a config, in seconds.

    Attributes:
        compiling: time to compile a config, whether it compiles successfully or not.
        measuring: time to measure a config that compiled.
    """

    compiling: float
    measuring: float


UNKNOWN_COSTS = Costs(1.0, 1.0)
"""Costs that are assumed for a target without `HasCosts`: compiling a config takes as long as
measuring it."""


@dataclass(frozen=True)
class BaselineSchedule:
    """A schedule that needs no tuning, with its program and its measurement.

    The baseline of a target (`Baseline`) and the fallback of the stock compiler (`Fallback`) have
    this type.

    Attributes:
        source: text that tells where the schedule comes from, see `is_published`.
        space: space of the schedule, which can differ from the space of the target.
        lowered: a batch with this single config. Its workload can differ from the requested one, if
            the stock compiler runs the workload in a different form.
        measured: the measurement of that config.
    """

    source: str
    space: Space
    lowered: Lowered
    measured: Measurements

    @property
    def config(self) -> tuple[int, ...]:
        """The knob indices of the schedule in `space`."""
        return tuple(int(index) for index in self.lowered.configs[0])

    @property
    def latency(self) -> Latency:
        """The measured latency of the schedule."""
        return Latency(float(self.measured.seconds[0]), int(self.measured.cycles[0]))


PUBLISHED = frozenset({"tophub", "tophub (int32 residual)"})
"""Sources of baseline schedules that were tuned and published by others, so that every user of the
stock compiler gets them. The schedules of all other sources were chosen by a rule or an estimate.
They say little about the performance that a user of the stock compiler would get."""


def is_published(source: str | None) -> bool:
    """Return whether schedules from a source come with the stock compiler.

    Args:
        source: value of `BaselineSchedule.source`; None if there is no schedule.
    """
    return source in PUBLISHED


@dataclass(frozen=True)
class Blocks:
    """Number of elements that a target computes at once, per dimension of a layer.

    Layers are padded to whole blocks.

    Attributes:
        batch: images, or rows of a dense layer's input, per block.
        in_channels: input channels per block.
        out_channels: output channels per block.
    """

    batch: int = 1
    in_channels: int = 1
    out_channels: int = 1


@runtime_checkable
class Estimates(Protocol):
    """Ability to estimate schedules in closed form, without compiling them."""

    def estimate(self, workload: Workload, configs: Configs) -> Features:
        """Return estimated features of schedules.

        Args:
            workload: the workload.
            configs: knob indices, shape (n, knobs).

        Returns:
            One row per config. Exactly one column has the meaning `latency`, in the unit of
            `Measurements.latency`. Columns with the meaning `share` are utilisations of on-chip
            memory, columns with the meaning `bytes` are transferred bytes.
        """


@runtime_checkable
class Baseline(Protocol):
    """Ability to return a schedule that is used without tuning."""

    def baseline(self, workload: Workload) -> BaselineSchedule:
        """Return the baseline schedule of a workload, which is used without tuning.

        Args:
            workload: the workload.

        Returns:
            The schedule, with its program and its measurement.

        Raises:
            WorkloadError: there is no baseline schedule.
        """


@runtime_checkable
class Fallback(Protocol):
    """Ability to return the stock compiler's schedule for workloads that nobody has tuned."""

    def fallback(self, workload: Workload) -> BaselineSchedule:
        """Return the schedule that the stock compiler uses if it has no published schedule.

        Args:
            workload: the workload.

        Returns:
            The schedule, with its program and its measurement.

        Raises:
            WorkloadError: the stock compiler cannot compile the workload.
        """


@runtime_checkable
class Bounds(Protocol):
    """Ability to compute lower bounds of latencies without compiling anything."""

    def roofline(self, workload: Workload) -> Latency:
        """Return the roofline of a workload, a lower bound of its latency.

        The roofline is the larger of two times: the time for the arithmetic at peak throughput, and
        the time for the memory transfers at full bandwidth. If reads and writes can overlap, the
        longer of the two is the time for the transfers.

        Args:
            workload: the workload.
        """

    def bound(self, workload: Workload) -> Latency | None:
        """Return a latency that no schedule of a workload can beat.

        The bound includes all work that the machine cannot avoid, not only arithmetic and memory
        transfers.

        Args:
            workload: the workload.

        Returns:
            The bound; None if the target knows no better bound than its roofline.
        """

    def schedule_bounds(self, workload: Workload, configs: Configs) -> NDArray[np.float64] | None:
        """Return a lower bound of the latency of each schedule.

        Args:
            workload: the workload.
            configs: knob indices, shape (n, knobs).

        Returns:
            Lower bounds in the unit of `Measurements.latency`, shape (n,). The bound is infinite
            for a config that certainly does not compile. None if the target has no bounds for
            individual schedules.
        """


class RooflineAlone:
    """Mixin that implements `Bounds` for targets whose only lower bound is the roofline.

    The target itself implements `roofline`; the mixin implements the other two methods.
    """

    def bound(self, workload: Workload) -> Latency | None:
        """Return None, because there is no better bound than the roofline."""
        return None

    def schedule_bounds(self, workload: Workload, configs: Configs) -> NDArray[np.float64] | None:
        """Return None, because the target has no latency bound for individual schedules."""
        return None


PARTS = ("compute", "reads", "writes", "start-up")
"""Parts into which the run time of a program is divided: arithmetic, waiting for reads from memory,
waiting for writes to memory, and start-up. Start-up is the time before the first arithmetic
operation on loaded data."""


@runtime_checkable
class HasCosts(Protocol):
    """Ability to state how long trials take.

    A tuner uses the durations to weigh compilations against measurements.
    """

    def costs(self, workload: Workload) -> Costs:
        """Return the average time to compile and to measure a config of a workload.

        Equal arguments always give equal results.

        Args:
            workload: the workload.
        """


@runtime_checkable
class HasDesigns(Protocol):
    """Ability to change the hardware design, for targets that belong to a family of machines."""

    def designs(self) -> Space:
        """Return the space of hardware designs, whose knobs are sizes of the hardware.

        Not every point of the space can be built.
        """

    def redesign(self, values: Mapping[str, int], clock: str = "fixed") -> Target:
        """Return a target for a changed hardware design.

        Args:
            values: new values of some hardware knobs, by knob name.
            clock: rule for the clock frequency of the new design: "fixed" keeps the frequency,
                "tree" scales it with the length of the longest path in the adder tree.

        Raises:
            SpecError: the design cannot be built. The message shows the violated constraint.
        """

    def breakdown(self, lowered: Lowered) -> NDArray[np.int64] | None:
        """Return how the cycles of each config's program are divided into `PARTS`.

        Args:
            lowered: the programs.

        Returns:
            Cycles by part, shape (configs, 4), which add up to the cycles of the program. All four
            numbers are -1 if there is no program or the program does not finish. None if the target
            cannot divide its cycles.
        """


@dataclass(frozen=True)
class NamedSchedule:
    """A tuned schedule with the data that an exporter needs.

    Attributes:
        name: name of the layer that the schedule is for.
        workload: the workload of the layer.
        space: name of the schedule space.
        knobs: knob values by knob name.
        seconds: measured latency in seconds.
    """

    name: str
    workload: Workload
    space: str
    knobs: Mapping[str, int]
    seconds: float


@dataclass(frozen=True)
class ExportedText:
    """Schedules in the text format of another tool.

    Attributes:
        text: content of the exported file.
        schedules: number of schedules in the text.
        left_out: one sentence for each schedule that the format cannot express.
    """

    text: str
    schedules: int
    left_out: tuple[str, ...] = ()


@runtime_checkable
class ExportsSchedules(Protocol):
    """Ability to write schedules in a format that another tool reads."""

    @property
    def export_format(self) -> str:
        """Name of the format, as `tilewright export --format` takes it."""

    def export_schedules(self, schedules: Sequence[NamedSchedule], written: float) -> ExportedText:
        """Convert schedules to the text format of the other tool.

        Args:
            schedules: the schedules to export.
            written: Unix time of the export in seconds, which is used if the format stores a time.
        """


@runtime_checkable
class Verifies(Protocol):
    """Ability to run programs on data and to check their results."""

    def verify(self, lowered: Lowered, seed: int = 0) -> NDArray[np.int64]:
        """Compare the output of each program on random tensors with the reference.

        Args:
            lowered: the programs.
            seed: seed of the random tensors.

        Returns:
            Number of output values that differ, shape (configs,); -1 if there is no program or the
            program does not finish.
        """


@runtime_checkable
class Enumerates(Protocol):
    """Ability to measure a whole space faster than batch by batch."""

    def enumerate(
        self, workload: Workload, progress: Callable[[int], None] | None = None
    ) -> tuple[Lowered, Measurements]:
        """Lower and measure every config of the workload's space, in the order of the flat index.

        Args:
            workload: the workload.
            progress: called with the number of configs that were finished since the previous call,
                possibly from another thread.

        Returns:
            The lowered configs, without programs, and their measurements.
        """


@runtime_checkable
class MeasuresInOnePass(Protocol):
    """Ability to lower and measure configs together, faster than in two steps."""

    def lower_and_measure(
        self, workload: Workload, configs: Configs, progress: Callable[[int], None] | None = None
    ) -> tuple[Lowered, Measurements]:
        """Lower and measure a batch, without keeping the programs.

        Args:
            workload: the workload.
            configs: knob indices, shape (n, knobs).
            progress: called with the number of configs that were finished since the previous call,
                possibly from another thread.

        Returns:
            The results that `lower` and `measure` would return, but without programs.
        """


@runtime_checkable
class Builds(Protocol):
    """Ability to build a network from layers and schedules, and to run the built network."""

    def build(self, graph: LayerGraph, schedules: Sequence[Pick]) -> Built:
        """Build a network.

        Args:
            graph: the network.
            schedules: one schedule per layer, in the order of `graph.layers`.

        Raises:
            WorkloadError: a board could not load the network.
        """

    def open(
        self, files: Mapping[str, bytes], layers: Sequence[Mapping[str, Json]]
    ) -> BuiltProgram:
        """Load a network that was built earlier.

        Args:
            files: content of the artifact's files, by file name.
            layers: the value of `Built.layers`.

        Raises:
            TilewrightError: the files are damaged or belong to a different target.
        """

    def stream_timer(self) -> StreamTimer | None:
        """Return a timer for networks, which predicts their cycles without building them.

        The timer caches lowered layers between calls.

        Returns:
            The timer; None if the target has none.
        """


@runtime_checkable
class CompilesKernels(Protocol):
    """Ability to compile TensorIR kernels into one library for a whole network."""

    @property
    def registers(self) -> int:
        """Number of vectors of 16 float32 values that the vector registers can hold."""

    @property
    def threads(self) -> int:
        """Number of threads that the kernels are written for."""

    def rule(self, workload: Workload) -> tuple[int, ...]:
        """Return the rule schedule of a workload, which needs no compiling and no measuring.

        Args:
            workload: the workload.

        Returns:
            Knob indices in the target's space.

        Raises:
            WorkloadError: the workload has no kernel.
        """

    def kernel(self, workload: Workload, config: Sequence[int]) -> KernelCode:
        """Return the kernel of a config.

        Args:
            workload: the workload.
            config: knob indices in the target's space.

        Raises:
            WorkloadError: the workload has no kernel.
        """

    def code_target(self) -> TvmTarget:
        """Return the TVM target for which kernels are compiled."""

    def code_pipeline(self) -> str:
        """Return the name of the TVM pass pipeline that lowers scheduled kernels.

        It is the argument `tir_pipeline` of `tvm.compile`.
        """

    def kernel_error(
        self, workload: Workload, config: Sequence[int], function: Callable[..., object]
    ) -> float:
        """Run a compiled kernel on seeded random tensors and return its error.

        Args:
            workload: the workload.
            config: knob indices in the target's space.
            function: the compiled kernel.

        Returns:
            The largest absolute difference from the reference, relative to the largest reference
            value.
        """

    def in_float32(self) -> Target | None:
        """Return a variant of the target that multiplies in float32 instead of a shorter type.

        Returns:
            The variant. None if the target multiplies in float32 already, or if the user requested
            the shorter type (see `MachineTraits.float_type`).
        """


@runtime_checkable
class HasArea(Protocol):
    """Ability to estimate the chip area of the hardware."""

    def area(self) -> Mapping[str, float]:
        """Return the area of each component by name, and the total area under the name `total`.

        The unit depends on the target.
        """


@runtime_checkable
class HasEnergy(Protocol):
    """Ability to estimate the energy consumption of measured programs and of schedules."""

    def energy(self, measured: Measurements) -> Mapping[str, NDArray[np.float64]]:
        """Return the energy of each measured config, broken down by consumer.

        Args:
            measured: the measurements, with the counters that the target stored in them.

        Returns:
            Picojoules by consumer, one array of shape (configs,) each; NaN if the config did not
            run.
        """

    def estimated_energy(self, workload: Workload, configs: Configs) -> NDArray[np.float64]:
        """Estimate the energy of one execution of each schedule, without compiling it.

        Args:
            workload: the workload.
            configs: knob indices, shape (n, knobs).

        Returns:
            Picojoules, shape (n,).
        """

    def least_energy(self, workload: Workload) -> float:
        """Return a lower bound of the energy of every schedule of a workload.

        Args:
            workload: the workload.

        Returns:
            Picojoules per execution.
        """


def picojoules_of(target: Target, measured: Measurements) -> NDArray[np.float64] | None:
    """Return the total energy of each measured config.

    Args:
        target: the target that measured the configs.
        measured: the measurements.

    Returns:
        Picojoules, summed over all consumers, shape (configs,). None if the target does not
        estimate energy or the measurements have no counters.
    """
    knows = capability(target, HasEnergy)
    if knows is None or not measured.counters:
        return None
    return np.asarray(sum(knows.energy(measured).values()))


@dataclass(frozen=True)
class MachineTraits:
    """Properties of a machine that matter when a network is compiled for it.

    The defaults describe a machine that computes single elements in int8.

    Attributes:
        blocks: number of elements that the machine computes at once. Layers are padded to whole
            blocks.
        dtypes: element types of the workloads that the machine runs.
        float_type: element type in which the machine multiplies the layers of a float network.
            Layers without a kernel for that type are multiplied in float32.
        rounds_to_even: whether the machine rounds to the nearest integer, ties to even, when it
            divides by a power of two (the step `shr_even`). Such a machine scales accumulators in
            float32 when it stores them. Other machines add a constant and shift, which rounds half
            up.
        pools_sums: whether the machine may have schedules for a convolution whose results are
            max-pooled (`Workload.pool`).
        host_slowdown: time that the machine's host CPU needs for layers that are not offloaded,
            relative to the CPU of `networks.offloading.cpu_costs`. None if it is the same CPU.
    """

    blocks: Blocks = Blocks()
    dtypes: frozenset[DType] = frozenset[DType](("int8",))
    float_type: DType = "float32"
    rounds_to_even: bool = False
    pools_sums: bool = False
    host_slowdown: float | None = None


@runtime_checkable
class HasTraits(Protocol):
    """Ability to state `MachineTraits`. A target without this ability has the default traits."""

    @property
    def traits(self) -> MachineTraits:
        """The traits of the machine."""


def traits_of(target: Target) -> MachineTraits:
    """Return the traits of a target; the default traits if the target does not state any."""
    known = capability(target, HasTraits)
    return MachineTraits() if known is None else known.traits


@runtime_checkable
class HasSpecification(Protocol):
    """Ability to describe a target as JSON that `targets.registry.rebuild` reads."""

    @property
    def specification(self) -> dict[str, Json]:
        """JSON description of the target."""


def baseline_schedule(target: Target, workload: Workload) -> BaselineSchedule | None:
    """Return the baseline schedule of a workload, which the target uses without tuning.

    Args:
        target: the target.
        workload: the workload.

    Returns:
        The schedule; None if the target has no such schedule, or the schedule does not run.
    """
    offered = capability(target, Baseline)
    return None if offered is None else _one_that_runs(offered.baseline, workload)


def fallback_schedule(target: Target, workload: Workload) -> BaselineSchedule | None:
    """Return the stock compiler's schedule for a workload for which it has no published schedule.

    Args:
        target: the target.
        workload: the workload.

    Returns:
        The schedule; None if the target has no such schedule, or the schedule does not run.
    """
    offered = capability(target, Fallback)
    return None if offered is None else _one_that_runs(offered.fallback, workload)


def _one_that_runs(
    ask: Callable[[Workload], BaselineSchedule], workload: Workload
) -> BaselineSchedule | None:
    """Return a target's own schedule of a workload, or None if there is none or it does not run.

    Args:
        ask: returns the baseline or fallback schedule, or raises `WorkloadError` if there is none.
        workload: the workload.
    """
    try:
        schedule = ask(workload)
    except WorkloadError:
        return None
    return schedule if schedule.measured.valid[0] else None


def least_estimate(
    known: Estimates, workload: Workload, space: Space, most: int, rng: np.random.Generator
) -> float | None:
    """Return the lowest estimated latency among the schedules that fit into on-chip memory.

    Args:
        known: the target's implementation of `Estimates`.
        workload: the workload.
        space: the schedule space.
        most: maximum number of schedules to estimate. If the space is larger, this many schedules
            are drawn at random.
        rng: random generator for that draw.

    Returns:
        The latency in the unit of `Measurements.latency`; None if no schedule fits.
    """
    flat = np.arange(space.size) if space.size <= most else rng.integers(0, space.size, most)
    table = known.estimate(workload, space.unravel(flat))
    latency = table.total("latency")[table.fits]
    return float(latency.min()) if len(latency) else None


def specification_of(target: Target) -> dict[str, Json] | None:
    """Return the JSON description of a target, or None if it has none."""
    offered = capability(target, HasSpecification)
    return None if offered is None else offered.specification


def offers(target: object, *kinds: type[Any]) -> Capabilities:
    """Return the capability mapping of a target that implements protocols itself.

    Args:
        target: the target.
        *kinds: the protocols that the target implements.

    Raises:
        TypeError: the target lacks a method of a protocol.
    """
    for kind in kinds:
        if not isinstance(target, kind):
            raise TypeError(
                f"{type(target).__name__} lacks a method of the capability {kind.__name__}"
            )
    return dict.fromkeys(kinds, target)


def exclude_capabilities(offered: Capabilities, *kinds: type[Any]) -> Capabilities:
    """Return a copy of a target's capability mapping without some abilities.

    Args:
        offered: the capability mapping: implementing object by protocol.
        *kinds: the protocols to leave out.
    """
    return {kind: implementation for kind, implementation in offered.items() if kind not in kinds}


def capability(target: Target, kind: type[C]) -> C | None:
    """Return the object that implements an optional ability of a target.

    Args:
        target: the target.
        kind: the protocol of the ability.

    Returns:
        The object; None if the target does not have the ability.
    """
    return cast("C | None", target.capabilities.get(kind))


def limit_of(known: Bounds, workload: Workload) -> Latency:
    """Return the latency that no schedule can beat, or the roofline if there is no such bound.

    Args:
        known: the target's implementation of `Bounds`.
        workload: the workload.
    """
    return known.bound(workload) or known.roofline(workload)


def bound_of(target: Target, workload: Workload) -> Latency | None:
    """Return the target's lower bound on the latency of every schedule of a workload.

    Returns:
        The bound; None if the target has no bounds, or none that is better than its roofline.
    """
    bounds = capability(target, Bounds)
    return None if bounds is None else bounds.bound(workload)


def roofline_of(target: Target, workload: Workload) -> Latency | None:
    """Return the roofline of a workload, or None if the target has none."""
    bounds = capability(target, Bounds)
    return None if bounds is None else bounds.roofline(workload)
