"""The VTA as a target: schedules are lowered to real programs, and a cycle simulator times them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.core.files import Json
from tilewright.targets.artifact_types import Built, BuiltProgram, LayerGraph, Pick, StreamTimer
from tilewright.targets.base import Configs, Lowered, Measurements, Ragged, Space
from tilewright.targets.capabilities import (
    PARTS,
    Baseline,
    BaselineSchedule,
    Blocks,
    Bounds,
    Builds,
    Costs,
    Enumerates,
    Estimates,
    ExportedText,
    ExportsSchedules,
    Fallback,
    HasArea,
    HasCosts,
    HasDesigns,
    HasEnergy,
    HasSpecification,
    HasTraits,
    Latency,
    MachineTraits,
    MeasuresInOnePass,
    NamedSchedule,
    Verifies,
    offers,
)
from tilewright.targets.features import Features
from tilewright.targets.source_digest import source_digest
from tilewright.targets.vta import autotvm
from tilewright.targets.vta.area import area_of
from tilewright.targets.vta.baseline import PublishedBaseline, baseline_of, fallback_of
from tilewright.targets.vta.board.artifact_builder import VtaProgram, build
from tilewright.targets.vta.board.stream_timer import VtaStreamTimer
from tilewright.targets.vta.cycle_breakdown import breakdown
from tilewright.targets.vta.energy import energy_of, estimated_picojoules, least_picojoules
from tilewright.targets.vta.estimates import ESTIMATES
from tilewright.targets.vta.estimates.schedule_bound import bound_extended
from tilewright.targets.vta.estimates.schedule_estimate import estimator
from tilewright.targets.vta.functional.semantics import SemanticsName
from tilewright.targets.vta.lowering.batch import Lowering, SpaceName
from tilewright.targets.vta.lowering.geometry import alu_operations, composed_rows, tensor_operands
from tilewright.targets.vta.lowering.hidden_features import HIDDEN, HIDDEN_FIELDS
from tilewright.targets.vta.lowering.instruction_writer import columns
from tilewright.targets.vta.lowering.invalid_configs import FAILURES
from tilewright.targets.vta.machine_variants import DESIGNS, redesign_spec
from tilewright.targets.vta.measure import (
    COUNTER_FIELDS,
    COUNTER_NAMES,
    time_rows,
)
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.timing.simulate import simulate_batch
from tilewright.targets.vta.verify import wrong_rows, wrong_values
from tilewright.targets.vta.workload_bound import bound_cycles, roofline_cycles, shifted_residuals
from tilewright.targets.workload import Workload

INSNS, UOPS, COUNTERS = "instructions", "uops", "counters"
"""Names of the parts of a batch's programs. Per program, these are instruction words of shape (…,
2), micro-op words of shape (…,) and counters of shape (1, counters)."""


MEASURED_BY = (
    "spec.py", "instruction_format.py", "fused_patterns.py", "lowering", "timing", "functional",
    "measure.py", "verify.py",
)  # fmt: skip
"""Source files and folders of the lowering and of the simulators. A change in any of them may
change measurements."""
CAPABILITIES = (
    Baseline, Bounds, Builds, Enumerates, Estimates, ExportsSchedules, Fallback, HasArea, HasCosts,
    HasDesigns, HasEnergy, HasSpecification, HasTraits, MeasuresInOnePass, Verifies,
)  # fmt: skip
"""Optional capabilities that `VtaTarget` implements."""


class VtaTarget:
    """Target for one VTA machine and one schedule space.

    The class implements `targets.base.Target` and the optional interfaces in `CAPABILITIES`.

    Args:
        spec: the machine.
        space: name of the schedule space.
        stock: whether to apply the restrictions of the stock compiler to the template space.
            Configs that the stock compiler rejects then fail with the failure class that it
            reports.
    """

    deterministic = True
    export_format = "autotvm"

    def __init__(self, spec: VtaSpec, space: SpaceName = "extended", stock: bool = False) -> None:
        self.spec = spec
        self.space_name: SpaceName = space
        self.stock = stock
        self.lowering = lru_cache(maxsize=64)(self._bind)  # by workload
        self.capabilities = offers(self, *CAPABILITIES)

    @property
    def name(self) -> str:
        """Name of the specification."""
        return self.spec.name

    @property
    def fingerprint(self) -> str:
        """Digest of everything that measurements depend on.

        It covers the specification, the schedule space, the flag `stock`, and the source code of
        the lowering and the simulators.
        """
        sources = source_digest(Path(__file__).parent, MEASURED_BY)
        parts = [self.spec.fingerprint, self.space_name, self.stock, sources]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def hardware_features(self) -> dict[str, float]:
        """Return sizes and speeds of the machine, as features for machine-learning models."""
        m = self.spec.machine
        return {
            "batch": m.batch,
            "block_in": m.block_in,
            "block_out": m.block_out,
            "log2_uop_depth": math.log2(m.uop_built),
            "log2_inp_depth": math.log2(m.inp_built),
            "log2_wgt_depth": math.log2(m.wgt_built),
            "log2_acc_depth": math.log2(m.acc_built),
            "bus_bytes": m.bus_bytes,
            "max_burst_beats": m.max_burst_beats,
            "memory_latency_cycles": m.memory_latency_cycles,
        }

    def space(self, workload: Workload) -> Space:
        """Return the schedule space of a workload.

        Args:
            workload: the workload.

        Raises:
            WorkloadError: the accelerator cannot compute the workload.
        """
        return self.lowering(workload).space

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        """Lower configs of a workload to instruction streams.

        Args:
            workload: the workload.
            configs: knob indices, int array of shape (n, knobs).

        Returns:
            The programs with hidden features. A config that does not compile has a failure class
            and a reason instead.

        Raises:
            WorkloadError: the accelerator cannot compute the workload.
        """
        return _lowered(self.lowering(workload), configs)

    def measure(self, lowered: Lowered) -> Measurements:
        """Time a batch of programs with the cycle simulator.

        In the space `unchecked`, the results of the programs are checked as well. The batch may
        belong to a different schedule space than the target.

        Args:
            lowered: the programs, from `lower`.

        Returns:
            Statuses, cycles, seconds and counters, one row per config.
        """
        lowering = self.lowering_of(lowered)
        rows = np.flatnonzero(lowered.ok)
        cycles = _cycles(lowering, lowered.rows(rows) if len(rows) < len(lowered) else lowered)
        counters = np.full((len(lowered), len(COUNTER_NAMES)), -1, np.int64)
        if len(rows):
            counters[rows] = lowered.programs[COUNTERS].values
        values = lowering.space.values(lowered.configs[rows])
        return self._measurements(lowering, lowered, values, rows, cycles, counters)

    # -- capabilities ------------------------------------------------------------------------

    def enumerate(
        self, workload: Workload, progress: Callable[[int], None] | None = None
    ) -> tuple[Lowered, Measurements]:
        """Lower and measure every config of the workload's space, in the order of the flat index.

        Args:
            workload: the workload.
            progress: called with the number of configs that were just finished, possibly from
                another thread.

        Returns:
            The lowered configs, without programs, and their measurements.
        """
        space = self.space(workload)
        return self.lower_and_measure(workload, space.unravel(np.arange(space.size)), progress)

    def lower_and_measure(
        self, workload: Workload, configs: Configs, progress: Callable[[int], None] | None = None
    ) -> tuple[Lowered, Measurements]:
        """Lower and measure configs in one pass, without keeping their programs.

        Args:
            workload: the workload.
            configs: knob indices, int array of shape (n, knobs).
            progress: called with the number of configs that were just finished, possibly from
                another thread.

        Returns:
            The lowered configs, without programs, and their measurements.
        """
        lowering = self.lowering(workload)
        values = lowering.space.values(configs)
        codes, states, cycles = time_rows(lowering, values, progress)
        lowered = _described(lowering, configs, codes, states)
        rows = np.flatnonzero(lowered.ok)
        counters = np.where(lowered.ok[:, None], columns(states, COUNTER_FIELDS), -1)
        measured = self._measurements(lowering, lowered, values[rows], rows, cycles[rows], counters)
        return lowered, measured

    def estimate(self, workload: Workload, configs: Configs) -> Features:
        """Compute closed-form estimates of configs, which need no compilation.

        Args:
            workload: the workload.
            configs: knob indices, int array of shape (n, knobs).

        Returns:
            Estimated cycles, bytes and scratchpad use, one row per config.
        """
        lowering = self.lowering(workload)
        values = lowering.space.values(configs)
        tensors = tensor_operands(workload)
        operations = alu_operations(workload) + shifted_residuals(workload)
        table = estimator(workload, self.space_name)(
            lowering.geometry, lowering.machine, operations, tensors, values
        )
        return Features(table, ESTIMATES)

    def baseline(self, workload: Workload) -> BaselineSchedule:
        """Return the schedule that a user of the stock stack gets without tuning.

        See `targets.vta.baseline`.

        Args:
            workload: the workload.

        Returns:
            The schedule, with its program and its measurement.

        Raises:
            WorkloadError: no schedule compiles.
        """
        return self._baseline(baseline_of(workload, self.spec))

    def fallback(self, workload: Workload) -> BaselineSchedule:
        """Return the schedule that the stock compiler uses without a tuning log.

        See `targets.vta.baseline`.

        Args:
            workload: the workload.

        Returns:
            The schedule, with its program and its measurement.

        Raises:
            WorkloadError: no schedule compiles.
        """
        return self._baseline(fallback_of(workload, self.spec))

    def roofline(self, workload: Workload) -> Latency:
        """Return the roofline latency of a workload.

        See `targets.vta.workload_bound.roofline_cycles`.
        """
        return self._latency(roofline_cycles(workload, self.spec))

    def bound(self, workload: Workload) -> Latency:
        """Return a lower bound on the latency of all schedules of a workload.

        See `targets.vta.workload_bound.bound_cycles`.
        """
        return self._latency(bound_cycles(workload, self.spec))

    def breakdown(self, lowered: Lowered) -> NDArray[np.int64]:
        """Split the cycles of each program into start-up, reads, compute and writes.

        See `targets.vta.cycle_breakdown`.

        Returns:
            Cycles per part in the order of `PARTS`, shape (configs, 4); -1 if there is no program
            or it does not finish.
        """
        lowering = self.lowering_of(lowered)
        cycles = np.full((len(lowered), len(PARTS)), -1, np.int64)
        for row in np.flatnonzero(lowered.ok).tolist():
            insns = lowered.programs[INSNS][row]
            cycles[row] = breakdown(insns, lowering.spec, lowering.geometry.insn_bytes_at)
        return cycles

    def schedule_bounds(self, workload: Workload, configs: Configs) -> NDArray[np.float64]:
        """Return a lower bound on the cycles of each schedule.

        The bounds come from `targets.vta.estimates.schedule_bound`. They are never below the bound
        of the workload, which holds for each of its schedules. Only the workload's bound is known
        for other spaces than the extended one, for max-pools, for fused patterns, and for epilogue
        steps that consist of ALU operations.

        Args:
            workload: the workload.
            configs: knob indices, shape (n, knobs).

        Returns:
            Cycles, float64, shape (n,).
        """
        bound, lowering = float(bound_cycles(workload, self.spec)), self.lowering(workload)
        plain = workload.operator != "max_pool" and not workload.patterns
        composed = any(composed_rows(op) for op in workload.epilogue)
        if self.space_name != "extended" or not plain or composed:
            return np.full(len(configs), bound)
        values = lowering.space.values(configs)
        geometry, machine = lowering.geometry, lowering.machine
        return np.maximum(bound_extended(geometry, machine, lowering.epilogue, values), bound)

    def costs(self, workload: Workload) -> Costs:
        """Return the typical cost of one trial for a user with a board, in seconds.

        Lowering a schedule takes about half a millisecond. Sending it to the board, running it and
        checking its output takes about a second. A simulation is faster than a run on the board.
        """
        return Costs(compiling=0.0005, measuring=1.0)

    def verify(self, lowered: Lowered, seed: int = 0) -> NDArray[np.int64]:
        """Run each program bit-exactly on random tensors and count the wrong output values.

        The tensors are laid out as the program's schedule space expects. Programs of the space
        `unchecked` run as on the hardware, where indices wrap around.

        Args:
            lowered: the programs.
            seed: seed of the random tensors.

        Returns:
            Number of wrong values, shape (configs,); -1 if there is no program or it does not
            finish.
        """
        lowering, wrong = self.lowering_of(lowered), np.full(len(lowered), -1, np.int64)
        semantics: SemanticsName = "chisel" if lowering.kind == "unchecked" else "functional"
        for row in np.flatnonzero(lowered.ok).tolist():
            insns, uops = lowered.programs[INSNS][row], lowered.programs[UOPS][row]
            wrong[row] = wrong_values(lowering, insns, uops, seed, semantics)
        return wrong

    def export_schedules(self, schedules: Sequence[NamedSchedule], written: float) -> ExportedText:
        """Export tuned schedules as an AutoTVM log, with one line per schedule.

        Schedules that stock TVM does not have or cannot build are left out.

        Args:
            schedules: the schedules.
            written: Unix timestamp of the records, in seconds.
        """
        return autotvm.tuning_log(schedules, self.spec, written)

    def area(self) -> dict[str, float]:
        """Return the area in gate equivalents.

        See `targets.vta.area`.

        Returns:
            `total` (gates), `relative` (to the default machine) and `sram_bits`.
        """
        machine_area = area_of(self.spec)
        return {
            "total": machine_area.gates,
            "relative": machine_area.relative,
            "sram_bits": machine_area.sram_bits,
        }

    def energy(self, measured: Measurements) -> dict[str, NDArray[np.float64]]:
        """Estimate the energy of measured programs, split by consumer.

        See `targets.vta.energy`.

        Args:
            measured: the measurements, with their counters.

        Returns:
            Picojoules by consumer, float64 arrays of shape (configs,).

        Raises:
            SpecError: the file of energy constants is invalid.
        """
        return energy_of(self.spec, measured.counters)

    def estimated_energy(self, workload: Workload, configs: Configs) -> NDArray[np.float64]:
        """Estimate the energy of schedules without compiling them.

        See `targets.vta.energy`.

        Args:
            workload: the workload.
            configs: knob indices, shape (n, knobs).

        Returns:
            Picojoules, float64, shape (n,).

        Raises:
            SpecError: the file of energy constants is invalid.
        """
        geometry, operations = self.lowering(workload).geometry, alu_operations(workload)
        table = self.estimate(workload, configs).matrix
        return estimated_picojoules(self.spec, geometry, operations, table)

    def least_energy(self, workload: Workload) -> float:
        """Return a lower bound on the energy of a workload over all schedules, in picojoules.

        See `targets.vta.energy`.

        Raises:
            SpecError: the file of energy constants is invalid.
        """
        return least_picojoules(self.spec, workload.macs, self.lowering(workload).geometry)

    def designs(self) -> Space:
        """Return the space of hardware designs.

        See `targets.vta.machine_variants`.
        """
        return DESIGNS

    def redesign(self, values: Mapping[str, int], clock: str = "fixed") -> VtaTarget:
        """Create a target for this machine with changed hardware knobs.

        Args:
            values: new values, by knob name.
            clock: rule for the clock frequency, "fixed" or "tree" (see
                `targets.vta.machine_variants.redesign_spec`).

        Raises:
            SpecError: a knob is unknown, or the machine cannot be built.
        """
        return VtaTarget(redesign_spec(self.spec, values, clock), self.space_name, self.stock)

    def build(self, graph: LayerGraph, schedules: Sequence[Pick]) -> Built:
        """Build a network, with one instruction stream per segment of layers.

        See `targets.vta.board`.

        Args:
            graph: the network.
            schedules: one schedule per layer, in the order of `graph.layers`.

        Raises:
            WorkloadError: a layer cannot be lowered, or no board could load the network.
        """
        return build(graph, schedules, self.spec)

    def open(
        self, files: Mapping[str, bytes], layers: Sequence[Mapping[str, Json]]
    ) -> BuiltProgram:
        """Load a built network on a simulated board.

        Args:
            files: content of the artifact's files, by file name.
            layers: JSON description of each layer, as in `Built.layers`.

        Raises:
            BoardError: the files are damaged, or the layers do not belong to the program.
            ValueError: the description of a layer is invalid.
            KeyError: the description of a layer is incomplete.
        """
        return VtaProgram.open(files, layers, self.spec)

    def stream_timer(self) -> StreamTimer:
        """Create a timer for whole networks.

        See `targets.vta.board.stream_timer`.
        """
        return VtaStreamTimer(self.spec)

    @property
    def traits(self) -> MachineTraits:
        """Block sizes of the GEMM core, and whether schedules can max-pool the accumulators.

        Only schedules of the extended space can do so.
        """
        blocks = Blocks(self.spec.batch, self.spec.block_in, self.spec.block_out)
        return MachineTraits(blocks, pools_sums=self.space_name == "extended")

    @property
    def specification(self) -> dict[str, Json]:
        """The specification as JSON, with the keys of `vta_config.json`."""
        return self.spec.model_dump(by_alias=True, exclude={"source"})

    # -- shared ------------------------------------------------------------------------------

    def _bind(self, workload: Workload) -> Lowering:
        """Create the lowering of a workload for the target's machine and schedule space.

        Raises:
            WorkloadError: the accelerator cannot compute the workload.
        """
        if workload.dequantises:
            raise WorkloadError(
                f"{self.name} computes with integers, but '{workload.epilogue[0]}' converts "
                "them to real numbers; write '>> N', or choose the target cpu"
            )
        if any(step.kind == "shr_even" for step in workload.epilogue):
            raise WorkloadError(
                f"{self.name} shifts without rounding to even, which "
                f"'{workload.epilogue_text}' needs; write '+ N' and '>> N', or choose a "
                "target that rounds: --target gemmini"
            )
        if workload.dtype != "int8" or workload.operator == "batch_matmul":
            raise WorkloadError(
                f"{self.name} computes conv2d, dense and max_pool in int8, but not "
                f"{workload} ({workload.dtype}); leave out dtype=float32, or choose a target "
                "that supports it: --target cpu"
            )
        return Lowering.for_workload(workload, self.spec, self.space_name, self.stock)

    def lowering_of(self, lowered: Lowered) -> Lowering:
        """Return the lowering with which a batch of programs was made.

        The batch may belong to another schedule space than the target. Its lowering then has no
        stock restrictions. These restrictions only decide which configs fail; they do not change
        programs.

        Args:
            lowered: the batch.
        """
        if lowered.space in ("", self.space_name):
            return self.lowering(lowered.workload)
        return Lowering.for_workload(lowered.workload, self.spec, cast(SpaceName, lowered.space))

    def _baseline(self, baseline: PublishedBaseline) -> BaselineSchedule:
        space = baseline.lowering.space
        config = [
            knob.values.index(int(value))
            for knob, value in zip(space.knobs, baseline.values, strict=True)
        ]
        lowered = _lowered(baseline.lowering, np.array([config], dtype=np.int32))
        return BaselineSchedule(baseline.source, space, lowered, self.measure(lowered))

    def _latency(self, cycles: int) -> Latency:
        return Latency(cycles / (self.spec.clock_mhz * 1e6), cycles)

    def _measurements(
        self, lowering: Lowering, lowered: Lowered, values: NDArray[np.int64],
        rows: NDArray[np.int64], cycles: NDArray[np.int64], counters: NDArray[np.int64],
    ) -> Measurements:  # fmt: skip
        """Assemble the measurements of a batch.

        Args:
            lowering: lowering of the workload.
            lowered: the batch of n configs.
            values: knob values of the p configs that have a program, shape (p, knobs).
            rows: indices of these p configs in the batch, shape (p,).
            cycles: cycles of these p configs, negative if the program hangs, shape (p,).
            counters: counters of all configs, shape (n, counters).
        """
        status = np.array(["compile_error"] * len(lowered), dtype=object)
        status[[reason.startswith("run:") for reason in lowered.reasons]] = "run_error"
        reason = lowered.reasons.copy()
        hung = cycles < 0
        status[rows] = np.where(hung, "timeout", "valid")
        reason[rows] = np.where(hung, "run: the program never finishes", "")
        if lowering.kind == "unchecked":
            wrong = wrong_rows(lowering, values)
            status[rows[wrong & ~hung]] = "wrong_result"
            reason[rows[wrong & ~hung]] = "run: the output differs from the integer reference"
        taken = np.full(len(lowered), -1, np.int64)
        taken[rows] = cycles
        taken[status != "valid"] = -1
        return Measurements(
            status=status,
            reason=reason,
            cycles=taken,
            seconds=np.where(taken >= 0, taken / (self.spec.clock_mhz * 1e6), np.nan),
            counters={name: counters[:, k] for k, name in enumerate(COUNTER_NAMES)},
        )


def _lowered(lowering: Lowering, configs: Configs) -> Lowered:
    codes, states, insns, uops = lowering.programs(lowering.space.values(configs))
    compiled = codes == 0
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(compiled)])
    counters = Ragged(columns(states[compiled], COUNTER_FIELDS), offsets)
    programs = {INSNS: insns, UOPS: uops, COUNTERS: counters}
    return replace(_described(lowering, configs, codes, states), programs=programs)


def _described(
    lowering: Lowering, configs: Configs, codes: NDArray[np.int64], states: NDArray[np.void]
) -> Lowered:
    """Describe a lowered batch by its failures and hidden features, without the programs.

    Hidden features are properties of a program that are known before it is measured.

    Args:
        lowering: lowering of the workload.
        configs: knob indices, shape (n, knobs).
        codes: failure code of each config, shape (n,); 0 if it compiled.
        states: record with the counts of each config, shape (n,), which contains the hidden
            features.
    """
    failed = codes != 0
    hidden = columns(states, HIDDEN_FIELDS).astype(np.float64)
    hidden[failed] = np.nan
    failures = [FAILURES[c].name if c else "" for c in codes.tolist()]
    reasons = [f"{FAILURES[c].stage}: {FAILURES[c].reason}" if c else "" for c in codes.tolist()]
    return Lowered(
        workload=lowering.workload,
        configs=configs,
        failures=np.array(failures, dtype=object),
        reasons=np.array(reasons, dtype=object),
        hidden=Features(hidden, HIDDEN),
        space=lowering.kind,
    )


def _cycles(lowering: Lowering, compiled: Lowered) -> NDArray[np.int64]:
    """Simulate the timing of a batch in which all n configs have compiled.

    Args:
        lowering: lowering of the workload.
        compiled: the batch.

    Returns:
        Cycles of each program, int64, shape (n,).
    """
    if not len(compiled):
        return np.empty(0, np.int64)
    insns = compiled.programs[INSNS]
    address = lowering.geometry.insn_bytes_at
    return simulate_batch(insns.values, insns.offsets, lowering.spec, address).cycles
