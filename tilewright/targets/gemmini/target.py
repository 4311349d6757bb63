"""Gemmini as a target: schedules become command streams, which run on both simulators.

A program is valid if its output equals plain integer arithmetic (see `Checker`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from math import log2
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import Json
from tilewright.core.process_info import usable_cores
from tilewright.targets.artifact_types import Built, BuiltProgram, LayerGraph, Pick
from tilewright.targets.base import Configs, Lowered, Measurements, Space, Status
from tilewright.targets.capabilities import (
    Baseline,
    BaselineSchedule,
    Blocks,
    Bounds,
    Builds,
    Costs,
    Estimates,
    ExportedText,
    ExportsSchedules,
    HasArea,
    HasCosts,
    HasDesigns,
    HasSpecification,
    HasTraits,
    Latency,
    MachineTraits,
    NamedSchedule,
    Verifies,
    offers,
)
from tilewright.targets.features import Features
from tilewright.targets.gemmini.c_export import CIdentifiers, c_file, c_function
from tilewright.targets.gemmini.design_space import DESIGNS, area_of, redesign
from tilewright.targets.gemmini.estimates import bound_cycles, estimate, roofline_cycles
from tilewright.targets.gemmini.faults import AcceleratorHang, StreamError
from tilewright.targets.gemmini.functional import execute_stream
from tilewright.targets.gemmini.isa import CommandStream
from tilewright.targets.gemmini.lowering.batch import COMMANDS, WorkloadLowering, stream_from
from tilewright.targets.gemmini.lowering.geometry import MEMORY_BASE
from tilewright.targets.gemmini.lowering.memory_layout import (
    memory_image,
    random_tensors,
    read_output,
)
from tilewright.targets.gemmini.network_build import build
from tilewright.targets.gemmini.network_program import GemminiProgram
from tilewright.targets.gemmini.spec import DIM, GemminiSpec
from tilewright.targets.gemmini.timing import time_stream
from tilewright.targets.integer_reference import reference
from tilewright.targets.source_digest import source_digest
from tilewright.targets.workload import Workload

CAPABILITIES = (
    Baseline, Bounds, Builds, Estimates, ExportsSchedules, HasArea, HasCosts, HasDesigns,
    HasSpecification, HasTraits, Verifies,
)  # fmt: skip
"""Optional capabilities that `GemminiTarget` implements."""


class GemminiTarget:
    """Target for one Gemmini specification.

    The class implements `targets.base.Target` and the capabilities in `CAPABILITIES`.

    Args:
        spec: the machine.
    """

    deterministic = True
    export_format = "gemmini-c"
    traits = MachineTraits(Blocks(1, DIM, DIM), rounds_to_even=True, pools_sums=True)

    def __init__(self, spec: GemminiSpec) -> None:
        self.spec = spec
        self.lowering = lru_cache(maxsize=64)(self._bind)  # by workload
        self._checker = lru_cache(maxsize=4)(self._check_on)  # by workload and seed
        self.capabilities = offers(self, *CAPABILITIES)

    @property
    def name(self) -> str:
        """Name of the specification."""
        return self.spec.name

    @property
    def fingerprint(self) -> str:
        """Hash of the specification and of this folder's source code, 16 hexadecimal digits."""
        parts = f"{self.spec.fingerprint} {source_digest(Path(__file__).parent)}"
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def hardware_features(self) -> dict[str, float]:
        """Return the machine's sizes and speeds as features for models of several machines."""
        s = self.spec
        return {
            "batch": 1.0,
            "block_in": float(s.dim),
            "block_out": float(s.dim),
            "log2_scratchpad_rows": log2(s.scratchpad_rows),
            "log2_accumulator_rows": log2(s.accumulator_rows),
            "bus_bytes": float(s.bus_bytes),
            "memory_latency_cycles": float(s.memory_latency_cycles),
            "cycles_per_beat": float(s.cycles_per_beat),
        }

    def space(self, workload: Workload) -> Space:
        """Return the space of schedules of a workload.

        Args:
            workload: the workload.

        Raises:
            WorkloadError: the machine cannot run the workload.
        """
        return self.lowering(workload).space

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        """Lower configs of a workload to command streams.

        Args:
            workload: the workload.
            configs: knob indices, int array of shape (n, knobs).

        Returns:
            The programs with hidden features, or a typed failure per config.

        Raises:
            WorkloadError: the machine cannot run the workload.
        """
        return self.lowering(workload).lower(configs)

    def measure(self, lowered: Lowered) -> Measurements:
        """Run the programs of a batch on both simulators.

        A program is valid if its output equals the result of plain integer arithmetic. The status
        of any other program is `wrong_result`, `run_error` for an invalid command, or `timeout` if
        the program never finishes.

        Args:
            lowered: the programs, from `lower`.

        Returns:
            Statuses, cycles and seconds, one per program.
        """
        measurements = Measurements.unmeasured(len(lowered))
        measurements.reason[:] = lowered.reasons
        rows = np.flatnonzero(lowered.ok).tolist()
        checker = self._checker(lowered.workload, 0) if rows else None

        def run(row: int) -> tuple[Status, str, int]:
            assert checker is not None
            stream = stream_from(lowered.programs[COMMANDS][row])
            try:
                wrong = checker.wrong_values(stream)
                if wrong:
                    return "wrong_result", f"run: {wrong} values of the output differ", -1
                return "valid", "", time_stream(stream, self.spec).total
            except AcceleratorHang as error:
                return "timeout", f"run: {error}", -1
            except StreamError as error:
                return "run_error", f"run: {error}", -1

        with ThreadPoolExecutor(usable_cores()) as pool:
            for row, outcome in zip(rows, pool.map(run, rows), strict=True):
                measurements.status[row], measurements.reason[row], measurements.cycles[row] = (
                    outcome
                )
        valid = measurements.cycles >= 0
        measurements.seconds[valid] = measurements.cycles[valid] / (self.spec.clock_mhz * 1e6)
        return measurements

    # -- capabilities ------------------------------------------------------------------------

    def estimate(self, workload: Workload, configs: Configs) -> Features:
        """Estimate the cycles of schedules and their parts in closed form: see `gemmini.estimates`.

        Args:
            workload: the workload.
            configs: knob indices, int array of shape (n, knobs).

        Returns:
            The columns of `estimates.ESTIMATES`, one row per config.
        """
        lowering = self.lowering(workload)
        return estimate(lowering.geometry, self.spec, lowering.space.values(configs))

    def baseline(self, workload: Workload) -> BaselineSchedule:
        """Return the schedule that the vendor's library would run, with its measurement.

        `lowering.vendor_rule` computes the schedule.

        Args:
            workload: the workload.

        Raises:
            WorkloadError: the target cannot run the workload.
        """
        lowering = self.lowering(workload)
        rule, schedule = lowering.vendor
        lowered = lowering.lower(np.array([lowering.config_of(schedule)], np.int32))
        return BaselineSchedule(rule, lowering.space, lowered, self.measure(lowered))

    def roofline(self, workload: Workload) -> Latency:
        """Return the roofline of a workload: see `estimates.roofline_cycles`.

        Args:
            workload: the workload.
        """
        return self._latency(roofline_cycles(workload, self.spec))

    def bound(self, workload: Workload) -> Latency:
        """Return a lower bound of the latency of every schedule: see `estimates.bound_cycles`.

        Args:
            workload: the workload.
        """
        return self._latency(bound_cycles(workload, self.spec))

    def schedule_bounds(self, workload: Workload, configs: Configs) -> NDArray[np.float64]:
        """Return a lower bound of the latency of each schedule, in cycles.

        The bound depends only on the workload, so that all bounds are equal.

        Args:
            workload: the workload.
            configs: knob indices, int array of shape (n, knobs).

        Returns:
            Bounds, float64 array of shape (n,).
        """
        return np.full(len(configs), float(bound_cycles(workload, self.spec)))

    def costs(self, workload: Workload) -> Costs:
        """Return typical costs of a trial in seconds, if the machine is built on an FPGA.

        Lowering a schedule takes about a millisecond. Loading and running it takes about a second.

        Args:
            workload: the workload.
        """
        return Costs(compiling=0.001, measuring=1.0)

    def verify(self, lowered: Lowered, seed: int = 0) -> NDArray[np.int64]:
        """Run programs on random int8 data and compare their outputs with integer arithmetic.

        Args:
            lowered: the programs, from `lower`.
            seed: seed of the random data.

        Returns:
            Number of wrong output values per config, int64 array of shape (configs,); -1 if a
            config was not compiled or a command of its program is invalid.
        """
        wrong = np.full(len(lowered), -1, np.int64)
        checker = self._checker(lowered.workload, seed)
        for row in np.flatnonzero(lowered.ok).tolist():
            try:
                wrong[row] = checker.wrong_values(stream_from(lowered.programs[COMMANDS][row]))
            except StreamError:
                continue
        return wrong

    def export_schedules(self, schedules: Sequence[NamedSchedule], written: float) -> ExportedText:
        """Write schedules as a C file with one function per schedule: see `gemmini.c_export`.

        Args:
            schedules: the schedules, with their workloads and names.
            written: ignored, because a C file contains no times.

        Returns:
            The text of the file, and the number of schedules.

        Raises:
            WorkloadError: a schedule does not compile.
        """
        functions, names = [], CIdentifiers("layer")
        for schedule in schedules:
            lowering = self.lowering(schedule.workload)
            program = lowering.program(schedule.space, schedule.knobs)
            symbol = names.create(schedule.name)
            functions.append(c_function(symbol, schedule.workload, lowering.geometry, program))
        return ExportedText(c_file(self.spec, functions), len(functions))

    def build(self, graph: LayerGraph, schedules: Sequence[Pick]) -> Built:
        """Build a network: see `network_build.build`.

        Args:
            graph: the network.
            schedules: one schedule per layer, in the order of `graph.layers`.

        Returns:
            The files of an artifact and the descriptions of its layers.

        Raises:
            WorkloadError: a layer cannot be lowered, or the network exceeds the memory.
        """
        return build(graph, schedules, self.spec)

    def open(
        self, files: Mapping[str, bytes], layers: Sequence[Mapping[str, Json]]
    ) -> BuiltProgram:
        """Load a built network on a simulated machine.

        Args:
            files: content of the artifact's files, by file name.
            layers: the JSON description of each layer, as in `Built.layers`.

        Raises:
            ProgramDamaged: a size is invalid, or the layers and the command file contradict each
                other.
            KeyError: the description of a layer is incomplete.
            ValueError: the description of a layer is invalid.
            TypeError: the description of a layer has values of the wrong type.
        """
        return GemminiProgram.open(files, layers, self.spec)

    def stream_timer(self) -> None:
        """Return None, because fusion decisions are only supported for a VTA."""
        return

    def area(self) -> dict[str, float]:
        """Return the area of the machine: see `design_space.area_of`."""
        return area_of(self.spec)

    def designs(self) -> Space:
        """Return the space of hardware designs, see `design_space`."""
        return DESIGNS

    def redesign(self, values: Mapping[str, int], clock: str = "fixed") -> GemminiTarget:
        """Return a target with changed hardware knobs: see `design_space.redesign`.

        Args:
            values: new values, by knob name.
            clock: ignored. The clock stays the same, because no knob lengthens the paths of the
                array.

        Raises:
            SpecError: a knob is unknown, or the machine cannot be built.
        """
        return GemminiTarget(redesign(self.spec, values))

    def breakdown(self, lowered: Lowered) -> None:
        """Return None, because the simulator cannot attribute cycles to parts of the run time."""
        return

    @property
    def specification(self) -> dict[str, Json]:
        """The specification as JSON, with the keys of a preset."""
        return self.spec.model_dump(exclude={"source"})

    # -- shared ------------------------------------------------------------------------------

    def _bind(self, workload: Workload) -> WorkloadLowering:
        return WorkloadLowering.for_workload(workload, self.spec)

    def _check_on(self, workload: Workload, seed: int) -> Checker:
        return Checker.with_random_tensors(self.lowering(workload), seed)

    def _latency(self, cycles: int) -> Latency:
        return Latency(cycles / (self.spec.clock_mhz * 1e6), cycles)


@dataclass(frozen=True, eq=False)
class Checker:
    """Random operands of a workload in memory, and the expected output.

    Attributes:
        lowering: lowering of the workload.
        image: memory image with the operands, uint8 array of shape (bytes,).
        expected: expected output, shape (n, o, oh, ow).
    """

    lowering: WorkloadLowering
    image: NDArray[np.uint8]
    expected: NDArray[np.int64]

    @classmethod
    def with_random_tensors(cls, lowering: WorkloadLowering, seed: int = 0) -> Checker:
        """Build a checker with random tensors that cover the whole range of their types.

        Args:
            lowering: lowering of the workload.
            seed: seed of the random generator.
        """
        tensors = random_tensors(lowering.workload, seed)
        image = memory_image(lowering.geometry, tensors)
        return cls(lowering, image, reference(lowering.workload, tensors))

    def wrong_values(self, stream: CommandStream) -> int:
        """Run a stream and return the number of output values that differ from the expected output.

        Args:
            stream: the commands.

        Raises:
            StreamError: a command is invalid.
        """
        after = execute_stream(stream, self.image, MEMORY_BASE, self.lowering.spec)
        got = read_output(self.lowering.geometry, self.lowering.workload, after)
        return int((got != self.expected).sum())
