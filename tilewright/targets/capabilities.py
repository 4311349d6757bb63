"""Defines what only some targets can do, a protocol each. A target says in its map `capabilities`
which it has, and what implements each: itself (`offers`), or another object.

    estimates = capability(target, Estimates)
    if estimates is not None:
        features = estimates.estimate(workload, configs)
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
    """Of one call of a workload; `cycles` is -1 on a target that counts none."""

    seconds: float
    cycles: int = -1

    @property
    def cost(self) -> float:
        """In cycles where they are counted, else in seconds: the unit of `Measurements.latency`."""
        return float(self.cycles) if self.cycles > 0 else self.seconds


@dataclass(frozen=True)
class Costs:
    """What trying a config takes, in seconds on average: compiling it, whether it compiles or not,
    and measuring one that did."""

    compiling: float
    measuring: float


UNKNOWN_COSTS = Costs(1.0, 1.0)
"""Of a target that does not say: compiling is taken to need as long as measuring."""


@dataclass(frozen=True)
class BaselineSchedule:
    """The schedule a user gets without tuning: a batch of one, lowered and measured like any other.
    It may come from another space than the target's; `source` says from where (`is_published`). Its
    programs are of `lowered.workload`: another where the stock compiler runs the workload in a form
    of its own."""

    source: str
    space: Space
    lowered: Lowered
    measured: Measurements

    @property
    def config(self) -> tuple[int, ...]:
        """Its knob indices in `space`."""
        return tuple(int(index) for index in self.lowered.configs[0])

    @property
    def latency(self) -> Latency:
        """What it takes."""
        return Latency(float(self.measured.seconds[0]), int(self.measured.cycles[0]))


PUBLISHED = frozenset({"tophub", "tophub (int32 residual)"})
"""Sources of baselines that were tuned and published: a user of the stock compiler has
them. Any other was chosen by a rule, an estimate, and says little about what a user would have."""


def is_published(source: str | None) -> bool:
    """Whether schedules from there are the stock compiler's own."""
    return source in PUBLISHED


@dataclass(frozen=True)
class Blocks:
    """What a target computes at once; a layer is padded to whole blocks. In elements."""

    batch: int = 1
    in_channels: int = 1
    out_channels: int = 1


@runtime_checkable
class Estimates(Protocol):
    """Closed-form estimates of a schedule, without compiling it."""

    def estimate(self, workload: Workload, configs: Configs) -> Features:
        """A row a config, configs of shape (n, knobs). One column means `latency`, in the unit of
        `Measurements.latency`; those that mean `share` and `bytes` say what fits and what moves."""


@runtime_checkable
class Baseline(Protocol):
    """A schedule that needs no tuning."""

    def baseline(self, workload: Workload) -> BaselineSchedule:
        """Raises `WorkloadError` if there is none."""


@runtime_checkable
class Fallback(Protocol):
    """Knows what its stock compiler makes of a workload that no log of schedules names."""

    def fallback(self, workload: Workload) -> BaselineSchedule:
        """Raises `WorkloadError` if it makes nothing of it."""


@runtime_checkable
class Bounds(Protocol):
    """Bounds on latency, without compiling anything."""

    def roofline(self, workload: Workload) -> Latency:
        """The larger of arithmetic at its peak and bytes over the bus."""

    def bound(self, workload: Workload) -> Latency | None:
        """What no schedule beats, with all the work that the machine cannot do without; None where
        the target knows no better than its roofline."""

    def schedule_bounds(self, workload: Workload, configs: Configs) -> NDArray[np.float64] | None:
        """What the program of each config (n, knobs) takes at least, shape (n,), in the unit of
        `Measurements.latency`; infinite where there surely is none. None as of `bound`."""


class RooflineAlone:
    """The rest of `Bounds`, for a target that knows no better than its roofline."""

    def bound(self, workload: Workload) -> Latency | None:
        """None."""
        return None

    def schedule_bounds(self, workload: Workload, configs: Configs) -> NDArray[np.float64] | None:
        """None, whatever the configs (n, knobs)."""
        return None


PARTS = ("compute", "reads", "writes", "start-up")
"""What the time of a program goes to: arithmetic, waiting for what is read from memory, waiting for
what is written there, and all before the first arithmetic on what was read."""


@runtime_checkable
class HasCosts(Protocol):
    """Knows what its trials cost, so that a tuner can weigh a compile against a measurement."""

    def costs(self, workload: Workload) -> Costs:
        """Of this workload's configs; of the same arguments always the same."""


@runtime_checkable
class HasDesigns(Protocol):
    """One of a family of machines that could be built instead."""

    def designs(self) -> Space:
        """The hardware's knobs. Not every point is a machine."""

    def redesigned(self, values: Mapping[str, int], clock: str = "fixed") -> Target:
        """This one with other values of some knobs, under the rule that `clock` names: "fixed" or
        "tree". Raises `SpecError` for what cannot be built, with the sum that shows it."""

    def breakdown(self, lowered: Lowered) -> NDArray[np.int64] | None:
        """Return where the cycles of each config's program go, by `PARTS`, shape (configs, 4).

        A row sums to the cycles of the program, and is -1 where there is no program or it does not
        run to its end. None if the machine cannot tell."""


@dataclass(frozen=True)
class NamedSchedule:
    """A tuned schedule that is exported: the name of its layer, the workload, the schedule space,
    the values of the knobs, and its latency in seconds."""

    name: str
    workload: Workload
    space: str
    knobs: Mapping[str, int]
    seconds: float


@dataclass(frozen=True)
class ExportedText:
    """Schedules in the format of another tool. `left_out` has a sentence for each schedule that the
    format cannot express."""

    text: str
    schedules: int
    left_out: tuple[str, ...] = ()


@runtime_checkable
class ExportsSchedules(Protocol):
    """Writes schedules in a format that another tool reads."""

    @property
    def export_format(self) -> str:
        """Name of the format, as `tilewright export --format` takes it."""

    def export_schedules(self, schedules: Sequence[NamedSchedule], written: float) -> ExportedText:
        """Write schedules; `written` is the Unix time that they get where the format has one."""


@runtime_checkable
class Verifies(Protocol):
    """Runs programs on data."""

    def verify(self, lowered: Lowered, seed: int = 0) -> NDArray[np.int64]:
        """How many output values differ from the reference on random tensors, shape (configs,); -1
        where a config has no program or it does not run to its end."""


@runtime_checkable
class Enumerates(Protocol):
    """Measures whole spaces faster than batch by batch."""

    def enumerate(
        self, workload: Workload, progress: Callable[[int], None] | None = None
    ) -> tuple[Lowered, Measurements]:
        """Every config in the order of its flat index; no programs are kept. `progress` is told
        the number of configs done since the last call, from any thread."""


@runtime_checkable
class MeasuresInOnePass(Protocol):
    """Lowers and measures configs together, faster than one after the other."""

    def lower_and_measure(
        self, workload: Workload, configs: Configs, progress: Callable[[int], None] | None = None
    ) -> tuple[Lowered, Measurements]:
        """What `lower` and `measure` give of configs (n, knobs), but no programs are kept.
        `progress` is told the number of configs done since the last call, from any thread."""


@runtime_checkable
class Builds(Protocol):
    """Makes of layers and their schedules what a board loads, and runs that as the board would."""

    def build(self, graph: LayerGraph, schedules: Sequence[Pick]) -> Built:
        """One schedule a layer, in the order of the graph. Raises `WorkloadError` for what no board
        could load."""

    def open(
        self, files: Mapping[str, bytes], layers: Sequence[Mapping[str, Json]]
    ) -> BuiltProgram:
        """What was built, from its files and `Built.layers`. Raises a `TilewrightError` where they
        are damaged or another target's."""

    def stream_timer(self) -> StreamTimer | None:
        """Return a timer of networks as `build` would build them, without building them. It keeps
        what it lowers. None if the target has no such timer."""


@runtime_checkable
class CompilesKernels(Protocol):
    """Runs kernels of TensorIR that can be compiled into a library with a whole network."""

    @property
    def registers(self) -> int:
        """How many vectors of 16 float32 its registers hold."""

    @property
    def threads(self) -> int:
        """How many threads its kernels are written for."""

    def rule(self, workload: Workload) -> tuple[int, ...]:
        """The config that the kernel's own rule says, neither compiled nor measured. Raises
        `WorkloadError` where there is no kernel."""

    def kernel(self, workload: Workload, config: Sequence[int]) -> KernelCode:
        """The kernel of a row of knob indices in the target's space. Raises `WorkloadError` where
        there is none."""

    def code_target(self) -> TvmTarget:
        """What TVM compiles for."""

    def code_pipeline(self) -> str:
        """The name of TVM's pipeline that lowers what was scheduled, for
        `tvm.compile(..., tir_pipeline=)`."""

    def kernel_error(
        self, workload: Workload, config: Sequence[int], function: Callable[..., object]
    ) -> float:
        """The largest difference of a compiled kernel's output from the reference on seeded
        tensors, as a share of the largest value."""

    def in_float32(self) -> Target | None:
        """Return the same target multiplying in float32, if it chose a shorter type itself
        (`MachineTraits.float_type`); None otherwise."""


@runtime_checkable
class HasArea(Protocol):
    """Knows how large the hardware is."""

    def area(self) -> Mapping[str, float]:
        """By component, and `total`; in the unit the target documents."""


@runtime_checkable
class HasEnergy(Protocol):
    """Estimates the energy of programs, and of schedules without compiling them."""

    def energy(self, measured: Measurements) -> Mapping[str, NDArray[np.float64]]:
        """Picojoules of each config (n,) by what spends them; NaN where one did not run."""

    def estimated_energy(self, workload: Workload, configs: Configs) -> NDArray[np.float64]:
        """Picojoules of a call by each config (n, knobs), shape (n,)."""

    def least_energy(self, workload: Workload) -> float:
        """Picojoules of a call that no schedule goes below."""


def picojoules_of(target: Target, measured: Measurements) -> NDArray[np.float64] | None:
    """Of each config, shape (n,), all spenders together; None where the target does not know."""
    knows = capability(target, HasEnergy)
    if knows is None or not measured.counters:
        return None
    return np.asarray(sum(knows.energy(measured).values()))


@dataclass(frozen=True)
class MachineTraits:
    """What compiling a network has to know about a machine. The defaults describe a machine that
    computes single elements in int8.

    Attributes:
        blocks: elements that the machine computes at once. Layers are padded to whole blocks.
        dtypes: element types of the workloads that it runs.
        float_type: element type in which it multiplies the layers of a float network, where it has
            a kernel for that type.
        rounds_to_even: it scales sums in float32 as it stores them, so a division by a power of two
            gives the nearest integer, ties to even (the step `shr_even`). Otherwise it shifts,
            which rounds down, behind a constant.
        pools_sums: it may have schedules for a convolution whose sums are pooled
            (`Workload.pool`). Otherwise it is never asked for one.
        host_slowdown: how many times as long as the processor of `networks.offloading.cpu_costs`
            the processor beside it takes for what is not offloaded. None if it is the usual one.
    """

    blocks: Blocks = Blocks()
    dtypes: frozenset[DType] = frozenset[DType](("int8",))
    float_type: DType = "float32"
    rounds_to_even: bool = False
    pools_sums: bool = False
    host_slowdown: float | None = None


@runtime_checkable
class HasTraits(Protocol):
    """States its `MachineTraits`; a target that does not has the defaults."""

    @property
    def traits(self) -> MachineTraits:
        """Return the traits of the machine."""


def traits_of(target: Target) -> MachineTraits:
    """Return the traits of a target, the defaults if it states none."""
    known = capability(target, HasTraits)
    return MachineTraits() if known is None else known.traits


@runtime_checkable
class HasSpecification(Protocol):
    """Can be written down and built again (`targets.registry.rebuild`)."""

    @property
    def specification(self) -> dict[str, Json]:
        """As JSON."""


def baseline_schedule(target: Target, workload: Workload) -> BaselineSchedule | None:
    """What a user has without tuning; None where the target has none that runs."""
    offered = capability(target, Baseline)
    return None if offered is None else _one_that_runs(offered.baseline, workload)


def fallback_schedule(target: Target, workload: Workload) -> BaselineSchedule | None:
    """What the stock compiler makes of it without a log; None where the target has none that
    runs."""
    offered = capability(target, Fallback)
    return None if offered is None else _one_that_runs(offered.fallback, workload)


def _one_that_runs(
    ask: Callable[[Workload], BaselineSchedule], workload: Workload
) -> BaselineSchedule | None:
    try:
        found = ask(workload)
    except WorkloadError:
        return None
    return found if found.measured.valid[0] else None


def least_estimate(
    known: Estimates, workload: Workload, space: Space, most: int, rng: np.random.Generator
) -> float | None:
    """The lowest latency, as estimated, of the schedules that fit: of all, or of so many drawn from
    a larger space. None where none fits."""
    flat = np.arange(space.size) if space.size <= most else rng.integers(0, space.size, most)
    table = known.estimate(workload, space.unravel(flat))
    latency = table.total("latency")[table.fits]
    return float(latency.min()) if len(latency) else None


def specification_of(target: Target) -> dict[str, Json] | None:
    """That of a target; None where it has none."""
    offered = capability(target, HasSpecification)
    return None if offered is None else offered.specification


def offers(target: object, *kinds: type[Any]) -> Capabilities:
    """The map of a target that implements these protocols itself. Raises `TypeError` where it lacks
    a method of one."""
    for kind in kinds:
        if not isinstance(target, kind):
            raise TypeError(f"{type(target).__name__} lacks a method of {kind.__name__}")
    return dict.fromkeys(kinds, target)


def without(offered: Capabilities, *kinds: type[Any]) -> Capabilities:
    """A map without these protocols."""
    return {kind: each for kind, each in offered.items() if kind not in kinds}


def capability(target: Target, kind: type[C]) -> C | None:
    """What implements the protocol `kind` for a target; None where nothing does."""
    return cast("C | None", target.capabilities.get(kind))


def limit_of(known: Bounds, workload: Workload) -> Latency:
    """The bound, or the roofline where no better is known."""
    return known.bound(workload) or known.roofline(workload)


def bound_of(target: Target, workload: Workload) -> Latency | None:
    """What no schedule beats; None where the target knows no better than a roofline."""
    known = capability(target, Bounds)
    return None if known is None else known.bound(workload)


def roofline_of(target: Target, workload: Workload) -> Latency | None:
    """Of arithmetic and bytes; None where the target knows none."""
    known = capability(target, Bounds)
    return None if known is None else known.roofline(workload)
