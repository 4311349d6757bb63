"""Implements the VTA as a target: schedules are lowered to real programs, the cycle simulator
times.
"""

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
from tilewright.targets.vta.machine_variants import DESIGNS, redesigned
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
"""The parts of a batch's programs: words (…, 2), words (…,), counts (1, counters)."""


MEASURED_BY = (
    "spec.py", "instruction_format.py", "fused_patterns.py", "lowering", "timing", "functional",
    "measure.py", "verify.py",
)  # fmt: skip
"""Sources of lowering and simulators: results may change when one of them does."""
CAPABILITIES = (
    Baseline, Bounds, Builds, Enumerates, Estimates, ExportsSchedules, Fallback, HasArea, HasCosts,
    HasDesigns, HasEnergy, HasSpecification, HasTraits, MeasuresInOnePass, Verifies,
)  # fmt: skip
"""What a VTA can do beyond `Target`."""


class VtaTarget:
    """Implements `targets.base.Target` for one specification and one space, and what its map of
    `capabilities` names.

    `stock` adds the stock compiler's own restrictions to the template space, as typed failures.
    """

    deterministic = True
    export_format = "autotvm"

    def __init__(self, spec: VtaSpec, space: SpaceName = "extended", stock: bool = False) -> None:
        self.spec = spec
        self.space_name: SpaceName = space
        self.stock = stock
        self.lowering = lru_cache(maxsize=64)(self._bind)  # of a workload in this space
        self.capabilities = offers(self, *CAPABILITIES)

    @property
    def name(self) -> str:
        """That of the specification."""
        return self.spec.name

    @property
    def fingerprint(self) -> str:
        """Of the specification, the space, and the sources of lowering and simulators."""
        sources = source_digest(Path(__file__).parent, MEASURED_BY)
        parts = [self.spec.fingerprint, self.space_name, self.stock, sources]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def hardware_features(self) -> dict[str, float]:
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
        return self.lowering(workload).space

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        return _lowered(self.lowering(workload), configs)

    def measure(self, lowered: Lowered) -> Measurements:
        """Cycles by the simulator; in the space `unchecked` the numbers are checked as well. The
        batch may be of another space than the target's."""
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
        space = self.space(workload)
        return self.lower_and_measure(workload, space.unravel(np.arange(space.size)), progress)

    def lower_and_measure(
        self, workload: Workload, configs: Configs, progress: Callable[[int], None] | None = None
    ) -> tuple[Lowered, Measurements]:
        lowering = self.lowering(workload)
        values = lowering.space.values(configs)
        codes, states, cycles = time_rows(lowering, values, progress)
        lowered = _described(lowering, configs, codes, states)
        rows = np.flatnonzero(lowered.ok)
        counters = np.where(lowered.ok[:, None], columns(states, COUNTER_FIELDS), -1)
        measured = self._measurements(lowering, lowered, values[rows], rows, cycles[rows], counters)
        return lowered, measured

    def estimate(self, workload: Workload, configs: Configs) -> Features:
        lowering = self.lowering(workload)
        values = lowering.space.values(configs)
        tensors = tensor_operands(workload)
        operations = alu_operations(workload) + shifted_residuals(workload)
        table = estimator(workload, self.space_name)(
            lowering.geometry, lowering.machine, operations, tensors, values
        )
        return Features(table, ESTIMATES)

    def baseline(self, workload: Workload) -> BaselineSchedule:
        """What a user of the stock stack gets without tuning, see `targets.vta.baseline`. Raises
        `WorkloadError`."""
        return self._baseline(baseline_of(workload, self.spec))

    def fallback(self, workload: Workload) -> BaselineSchedule:
        """What the stock compiler does without a log, see `targets.vta.baseline`. Raises
        `WorkloadError`."""
        return self._baseline(fallback_of(workload, self.spec))

    def roofline(self, workload: Workload) -> Latency:
        """See `targets.vta.workload_bound.roofline_cycles`."""
        return self._latency(roofline_cycles(workload, self.spec))

    def bound(self, workload: Workload) -> Latency:
        """See `targets.vta.workload_bound.bound_cycles`."""
        return self._latency(bound_cycles(workload, self.spec))

    def breakdown(self, lowered: Lowered) -> NDArray[np.int64]:
        """See `targets.vta.cycle_breakdown`."""
        lowering = self.lowering_of(lowered)
        found = np.full((len(lowered), len(PARTS)), -1, np.int64)
        for row in np.flatnonzero(lowered.ok).tolist():
            insns = lowered.programs[INSNS][row]
            found[row] = breakdown(insns, lowering.spec, lowering.geometry.insn_bytes_at)
        return found

    def schedule_bounds(self, workload: Workload, configs: Configs) -> NDArray[np.float64]:
        """See `targets.vta.estimates.schedule_bound`. What bounds every schedule bounds each, and
        is all that is known of other spaces, of pools, of patterns and of steps that are made
        up."""
        bound, lowering = float(bound_cycles(workload, self.spec)), self.lowering(workload)
        plain = workload.operator != "max_pool" and not workload.patterns
        composed = any(composed_rows(op) for op in workload.epilogue)
        if self.space_name != "extended" or not plain or composed:
            return np.full(len(configs), bound)
        values = lowering.space.values(configs)
        geometry, machine = lowering.geometry, lowering.machine
        return np.maximum(bound_extended(geometry, machine, lowering.epilogue, values), bound)

    def costs(self, workload: Workload) -> Costs:
        """What trials cost a user who has the board: half a millisecond to lower one here, about a
        second to send it there, run it and check its output. Simulating takes less than either."""
        return Costs(compiling=0.0005, measuring=1.0)

    def verify(self, lowered: Lowered, seed: int = 0) -> NDArray[np.int64]:
        """Runs each program bit-exactly on random tensors that lie as those of its space do; those
        of the space `unchecked` as the hardware does, where what does not fit wraps around."""
        lowering, wrong = self.lowering_of(lowered), np.full(len(lowered), -1, np.int64)
        semantics: SemanticsName = "chisel" if lowering.kind == "unchecked" else "functional"
        for row in np.flatnonzero(lowered.ok).tolist():
            insns, uops = lowered.programs[INSNS][row], lowered.programs[UOPS][row]
            wrong[row] = wrong_values(lowering, insns, uops, seed, semantics)
        return wrong

    def export_schedules(self, schedules: Sequence[NamedSchedule], written: float) -> ExportedText:
        """A log of AutoTVM, the tuner of stock TVM. Schedules that stock TVM does not have or
        cannot build are left out."""
        return autotvm.tuning_log(schedules, self.spec, written)

    def area(self) -> dict[str, float]:
        """Gate equivalents, see `targets.vta.area`."""
        found = area_of(self.spec)
        return {"total": found.gates, "relative": found.relative, "sram_bits": found.sram_bits}

    def energy(self, measured: Measurements) -> dict[str, NDArray[np.float64]]:
        """See `targets.vta.energy`. Raises `SpecError`."""
        return energy_of(self.spec, measured.counters)

    def estimated_energy(self, workload: Workload, configs: Configs) -> NDArray[np.float64]:
        """See `targets.vta.energy`. Raises `SpecError`."""
        geometry, operations = self.lowering(workload).geometry, alu_operations(workload)
        table = self.estimate(workload, configs).matrix
        return estimated_picojoules(self.spec, geometry, operations, table)

    def least_energy(self, workload: Workload) -> float:
        """See `targets.vta.energy`. Raises `SpecError`."""
        return least_picojoules(self.spec, workload.macs, self.lowering(workload).geometry)

    def designs(self) -> Space:
        """See `targets.vta.machine_variants`."""
        return DESIGNS

    def redesigned(self, values: Mapping[str, int], clock: str = "fixed") -> VtaTarget:
        """See `targets.vta.machine_variants`. Raises `SpecError`."""
        return VtaTarget(redesigned(self.spec, values, clock), self.space_name, self.stock)

    def build(self, graph: LayerGraph, schedules: Sequence[Pick]) -> Built:
        """One stream a segment, see `targets.vta.board`."""
        return build(graph, schedules, self.spec)

    def open(
        self, files: Mapping[str, bytes], layers: Sequence[Mapping[str, Json]]
    ) -> BuiltProgram:
        """On a board that is simulated."""
        return VtaProgram.open(files, layers, self.spec)

    def stream_timer(self) -> StreamTimer:
        """See `targets.vta.board.stream_timer`."""
        return VtaStreamTimer(self.spec)

    @property
    def traits(self) -> MachineTraits:
        """The blocks of the GEMM core. Sums are pooled in the extended space only."""
        blocks = Blocks(self.spec.batch, self.spec.block_in, self.spec.block_out)
        return MachineTraits(blocks, pools_sums=self.space_name == "extended")

    @property
    def specification(self) -> dict[str, Json]:
        """The keys of `vta_config.json`."""
        return self.spec.model_dump(by_alias=True, exclude={"source"})

    # -- shared ------------------------------------------------------------------------------

    def _bind(self, workload: Workload) -> Lowering:
        """Raises `WorkloadError` for what the accelerator does not compute."""
        if workload.dequantises:
            raise WorkloadError(
                f"{self.name} computes in integers, and '{workload.epilogue[0]}' makes reals of "
                "them; write '>> N', or name the target cpu"
            )
        if any(step.kind == "shr_even" for step in workload.epilogue):
            raise WorkloadError(
                f"{self.name} shifts and does not round to even, as in '{workload.epilogue_text}'; "
                "write '+ N' and '>> N', or name a target that rounds: --target gemmini"
            )
        if workload.dtype != "int8" or workload.operator == "batch_matmul":
            raise WorkloadError(
                f"{self.name} computes conv2d, dense and max_pool in int8, not {workload} "
                f"({workload.dtype}); leave out dtype=float32, or name a target that computes it: "
                "--target cpu"
            )
        return Lowering.of(workload, self.spec, self.space_name, self.stock)

    def lowering_of(self, lowered: Lowered) -> Lowering:
        """What a batch was lowered by, as far as its programs show: only lowering itself asks for
        the stock compiler's restrictions."""
        if lowered.space in ("", self.space_name):
            return self.lowering(lowered.workload)
        return Lowering.of(lowered.workload, self.spec, cast(SpaceName, lowered.space))

    def _baseline(self, found: PublishedBaseline) -> BaselineSchedule:
        space = found.lowering.space
        config = [
            knob.values.index(int(value))
            for knob, value in zip(space.knobs, found.values, strict=True)
        ]
        lowered = _lowered(found.lowering, np.array([config], dtype=np.int32))
        return BaselineSchedule(found.source, space, lowered, self.measure(lowered))

    def _latency(self, cycles: int) -> Latency:
        return Latency(cycles / (self.spec.clock_mhz * 1e6), cycles)

    def _measurements(
        self, lowering: Lowering, lowered: Lowered, values: NDArray[np.int64],
        rows: NDArray[np.int64], cycles: NDArray[np.int64], counters: NDArray[np.int64],
    ) -> Measurements:  # fmt: skip
        """`rows` (p,) are those with a program, `values` (p, knobs) their knob values, `cycles`
        (p,) theirs, negative where a program hangs; `counters` (n, counters) those of all."""
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
    made = codes == 0
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(made)])
    counters = Ragged(columns(states[made], COUNTER_FIELDS), offsets)
    programs = {INSNS: insns, UOPS: uops, COUNTERS: counters}
    return replace(_described(lowering, configs, codes, states), programs=programs)


def _described(
    lowering: Lowering, configs: Configs, codes: NDArray[np.int64], states: NDArray[np.void]
) -> Lowered:
    """A batch without its programs, from what lowering returned."""
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
    """Of programs that are all there, shape (p,)."""
    if not len(compiled):
        return np.empty(0, np.int64)
    insns = compiled.programs[INSNS]
    address = lowering.geometry.insn_bytes_at
    return simulate_batch(insns.values, insns.offsets, lowering.spec, address).cycles
