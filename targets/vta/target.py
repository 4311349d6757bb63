"""The VTA as a target: schedules are lowered to real programs and timed by the cycle simulator."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from targets.base import Configs, Lowered, Measurements, Space
from targets.vta.baseline import Baseline, baseline_of, roofline_cycles
from targets.vta.estimates import ESTIMATES, OF_SPACE
from targets.vta.lowering import emit
from targets.vta.lowering.batch import Lowering, SpaceName
from targets.vta.lowering.failures import FAILURES
from targets.vta.lowering.hidden import HIDDEN_NAMES, HIDDEN_SLOTS
from targets.vta.lowering.measure import COUNTER_NAMES, COUNTER_SLOTS, NO_PROGRAM, time_rows
from targets.vta.lowering.verify import mismatches, wrong_rows
from targets.vta.spec import VtaSpec
from targets.vta.version import simulator_version
from targets.workload import Workload


class VtaTarget:
    """Implements `targets.base.Target` for one specification and one space.

    `stock` adds the stock compiler's own restrictions to the template space, as typed failures.
    """

    def __init__(self, spec: VtaSpec, space: SpaceName = "extended", stock: bool = False) -> None:
        self.spec = spec
        self.space_name: SpaceName = space
        self.stock = stock
        self._lowering = lru_cache(maxsize=64)(self._bind)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def fingerprint(self) -> str:
        parts = [self.spec.fingerprint, self.space_name, self.stock, simulator_version()]
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
        return self._lowering(workload).space

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        lowering = self._lowering(workload)
        codes, states = lowering.counts(lowering.space.values(configs))
        return _lowered(workload, configs, codes, states)

    def measure(self, lowered: Lowered) -> Measurements:
        lowering = self._lowering(lowered.workload)
        rows = np.flatnonzero(lowered.ok)
        cycles = np.full(len(lowered), NO_PROGRAM, np.int64)
        states = np.zeros((len(lowered), emit.STATE_SIZE), np.int64)
        values = lowering.space.values(lowered.configs[rows])
        _, states[rows], cycles[rows] = time_rows(lowering, values)
        return self._measurements(lowered, values, rows, states, cycles)

    def enumerate(
        self, workload: Workload, progress: Callable[[int], None] | None = None
    ) -> tuple[Lowered, Measurements]:
        """The whole space, in the order of its flat index, lowered and timed in one pass."""
        lowering = self._lowering(workload)
        configs = lowering.space.unravel(np.arange(lowering.space.size))
        values = lowering.space.values(configs)
        codes, states, cycles = time_rows(lowering, values, progress)
        lowered = _lowered(workload, configs, codes, states)
        rows = np.flatnonzero(lowered.ok)
        return lowered, self._measurements(lowered, values[rows], rows, states, cycles)

    def _measurements(
        self,
        lowered: Lowered,
        values: NDArray[np.int64],
        rows: NDArray[np.int64],
        states: NDArray[np.int64],
        cycles: NDArray[np.int64],
    ) -> Measurements:
        """`rows` are those with a program, `values` their knob values."""
        status = np.array(["compile_error"] * len(lowered), dtype=object)
        status[[reason.startswith("run:") for reason in lowered.reasons]] = "run_error"
        reason = lowered.reasons.copy()
        hung = cycles[rows] < 0
        status[rows] = np.where(hung, "timeout", "valid")
        reason[rows] = np.where(hung, "run: the program never finishes", "")
        if self.space_name == "unchecked":
            wrong = wrong_rows(self._lowering(lowered.workload), values)
            status[rows[wrong & ~hung]] = "wrong_result"
            reason[rows[wrong & ~hung]] = "run: the output differs from the integer reference"
        valid = np.asarray(status == "valid", dtype=np.bool_)
        counters = np.where(lowered.ok[:, None], states[:, COUNTER_SLOTS], -1)
        return Measurements(
            status=status,
            reason=reason,
            cycles=np.where(valid, cycles, -1),
            seconds=np.where(valid, cycles / (self.spec.clock_mhz * 1e6), np.nan),
            counters={name: counters[:, k] for k, name in enumerate(COUNTER_NAMES)},
        )

    # -- what a report needs besides -------------------------------------------------------

    def roofline_cycles(self, workload: Workload) -> int:
        """A bound no schedule beats; see `targets.vta.baseline.roofline_cycles`."""
        return roofline_cycles(workload, self.spec)

    def baseline(self, workload: Workload) -> tuple[int, Baseline]:
        """Cycles and schedule a user of the stock stack gets without tuning."""
        found = baseline_of(workload, self.spec)
        _, _, cycles = time_rows(found.lowering, found.values[None])
        return int(cycles[0]), found

    def verify(self, workload: Workload, configs: Configs, seed: int = 0) -> NDArray[np.int64]:
        """Output values that differ from the integer reference, one count a config, shape (n,).

        Runs each program bit-exactly on random tensors; -1 where a config has no program.
        """
        lowering = self._lowering(workload)
        values = lowering.space.values(configs)
        return np.array([mismatches(lowering, row, seed) for row in values], dtype=np.int64)

    def estimate(
        self, workload: Workload, configs: Configs
    ) -> tuple[NDArray[np.float64], tuple[str, ...]]:
        """Closed-form estimates, shape (n, len(names)), without lowering anything."""
        lowering = self._lowering(workload)
        values = lowering.space.values(configs)
        tensors = sum(op.kind in ("bias", "add") for op in workload.epilogue)
        table = OF_SPACE[self.space_name](
            lowering.geometry, lowering.machine, len(workload.epilogue), tensors, values
        )
        return table, ESTIMATES

    def _bind(self, workload: Workload) -> Lowering:
        return Lowering.of(workload, self.spec, self.space_name, self.stock)


def _lowered(
    workload: Workload, configs: Configs, codes: NDArray[np.int64], states: NDArray[np.int64]
) -> Lowered:
    failed = codes != 0
    hidden = states[:, HIDDEN_SLOTS].astype(np.float64)
    hidden[failed] = np.nan
    failures = [FAILURES[c].name if c else "" for c in codes.tolist()]
    reasons = [f"{FAILURES[c].stage}: {FAILURES[c].reason}" if c else "" for c in codes.tolist()]
    return Lowered(
        workload=workload,
        configs=configs,
        failures=np.array(failures, dtype=object),
        reasons=np.array(reasons, dtype=object),
        hidden=hidden,
        hidden_names=HIDDEN_NAMES,
    )
