"""Lowering of batches of schedules of one workload to programs and hidden features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.core.errors import WorkloadError
from tilewright.targets.base import Configs, Lowered, Ragged, Space
from tilewright.targets.features import Features
from tilewright.targets.gemmini.isa import CommandStream
from tilewright.targets.gemmini.loop_unrolling import unroll_stream
from tilewright.targets.gemmini.lowering.command_encoding import CommandTable
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry
from tilewright.targets.gemmini.lowering.loop_program import check_loops, loop_program
from tilewright.targets.gemmini.lowering.nest_program import nest_program
from tilewright.targets.gemmini.lowering.program_features import HIDDEN, hidden_row
from tilewright.targets.gemmini.lowering.schedule_space import LOOP, TileSchedule, space_of
from tilewright.targets.gemmini.lowering.tile_fit import LoweringFailure, check_tiles
from tilewright.targets.gemmini.lowering.vendor_rule import vendor_schedule
from tilewright.targets.gemmini.spec import GemminiMachine, GemminiSpec
from tilewright.targets.workload import Workload

COMMANDS = "commands"
"""Name of the only part of a batch's programs: the commands, uint64 of shape (commands, 3) per
program."""


@dataclass(frozen=True)
class WorkloadLowering:
    """Compiler of schedules of one workload to programs for one machine.

    Attributes:
        workload: the workload.
        spec: the machine.
        geometry: sizes and memory layout of the workload.
    """

    workload: Workload
    spec: GemminiSpec
    geometry: BlockGeometry

    @classmethod
    def for_workload(cls, workload: Workload, spec: GemminiSpec) -> WorkloadLowering:
        """Prepare the lowering of a workload.

        Args:
            workload: the workload.
            spec: the machine.

        Raises:
            WorkloadError: the machine cannot run the workload, or no schedule of it fits the
                machine.
        """
        lowering = cls(workload, spec, BlockGeometry.for_workload(workload))
        try:
            check_program(lowering.geometry, spec.machine, lowering.vendor[1])
        except LoweringFailure as failure:
            raise WorkloadError(
                f"{workload}: no schedule can run on {spec.name}, because in the smallest "
                f"program {failure}; run this layer on the CPU"
            ) from None
        return lowering

    @cached_property
    def space(self) -> Space:
        """The schedule space of the workload."""
        return space_of(self.geometry, self.vendor[1])

    @cached_property
    def vendor(self) -> tuple[str, TileSchedule]:
        """Name of the vendor library's tiling rule for this workload, and the rule's schedule."""
        return vendor_schedule(self.geometry, self.spec.machine)

    def config_of(self, schedule: TileSchedule) -> tuple[int, ...]:
        """Return the config of a schedule.

        Args:
            schedule: knob values of the schedule.

        Returns:
            Knob indices in the space, one per knob.

        Raises:
            ValueError: the schedule lies outside the space.
        """
        pairs = zip(self.space.knobs, schedule, strict=True)
        return tuple(knob.values.index(value) for knob, value in pairs)

    def program(self, space: str, knobs: Mapping[str, int]) -> CommandTable:
        """Compile a schedule that is given by the names of its knobs.

        Args:
            space: name of the schedule space.
            knobs: knob values, by name.

        Returns:
            Commands, uint64 array of shape (n, 3).

        Raises:
            WorkloadError: the space or the knobs are unknown, or the schedule does not compile.
        """
        # files of earlier versions do not contain the dataflow
        knobs = {**TileSchedule._field_defaults, **knobs}
        if space != self.space.name or set(knobs) != set(TileSchedule._fields):
            raise WorkloadError(
                f"{self.workload}: this is not a schedule of the space '{self.space.name}'"
            )
        try:
            return program_of(self.geometry, self.spec.machine, TileSchedule(**knobs))
        except LoweringFailure as failure:
            raise WorkloadError(f"{self.workload}: its schedule fails: {failure}") from None

    def lower(self, configs: Configs) -> Lowered:
        """Compile a batch of configs.

        Args:
            configs: knob indices, int array of shape (n, knobs).

        Returns:
            The programs with hidden features, or a typed failure per config.
        """
        n, machine = len(configs), self.spec.machine
        failures, reasons = np.full(n, "", object), np.full(n, "", object)
        hidden = np.full((n, len(HIDDEN)), np.nan)
        command_tables: list[CommandTable] = []
        for row, values in enumerate(self.space.values(configs).tolist()):
            try:
                program = program_of(self.geometry, machine, TileSchedule(*values))
                stream = stream_from(program)
                hidden[row] = hidden_row(machine, stream, unroll_stream(stream, machine)[0])
            except LoweringFailure as failure:
                program = np.zeros((0, 3), np.uint64)
                failures[row], reasons[row] = failure.name, failure.reason
            command_tables.append(program)
        programs = {COMMANDS: Ragged.from_rows(command_tables)} if command_tables else {}
        return Lowered(
            self.workload, configs, failures, reasons, Features(hidden, HIDDEN), programs,
            self.space.name,
        )  # fmt: skip


def check_program(g: BlockGeometry, m: GemminiMachine, schedule: TileSchedule) -> None:
    """Check that a schedule compiles, without writing its program.

    Args:
        g: geometry of the workload.
        m: the machine.
        schedule: the schedule.

    Raises:
        LoweringFailure: a tile does not fit the local memories, or the program would be too long.
    """
    (check_loops if schedule.form == LOOP else check_tiles)(g, m, schedule)


def program_of(g: BlockGeometry, m: GemminiMachine, schedule: TileSchedule) -> CommandTable:
    """Compile a schedule.

    Args:
        g: geometry of the workload.
        m: the machine.
        schedule: the schedule.

    Returns:
        Commands, uint64 array of shape (n, 3).

    Raises:
        LoweringFailure: the schedule does not compile.
    """
    return (loop_program if schedule.form == LOOP else nest_program)(g, m, schedule)


def stream_from(program: CommandTable) -> CommandStream:
    """Convert a table of commands to the stream that the simulators take.

    Args:
        program: commands, uint64 array of shape (n, 3).
    """
    rs1, rs2 = (np.ascontiguousarray(program[:, part]) for part in (1, 2))
    return CommandStream(program[:, 0].astype(np.uint8), rs1, rs2)
