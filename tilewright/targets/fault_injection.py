"""Fault injection: a target that misbehaves on chosen configs, as an example and for tests.

The target simulates a small analytic accelerator. Chosen configs crash, hang, return wrong answers
or answer late:

    from tilewright.targets.subprocess_target import IsolatedTarget

    faults = {"3": "crash", "5": "hang"}
    target = IsolatedTarget("tilewright.targets.fault_injection:make_target", {"faults": faults})

If the target is used directly, its crashes and delays happen in the current process. Within an
`IsolatedTarget`, they happen in the child process.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.targets.base import Capabilities, Configs, Knob, Lowered, Measurements, Space
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

Fault = Literal[
    "crash",  # the process ends with a segmentation fault
    "exit",  # the process exits by itself
    "raise",  # an exception, although the contract demands a row with a failure status
    "hang",  # no answer at all
    "late",  # the correct answer after `late_seconds`
    "nonsense",  # a valid row with −7 cycles
    "liar",  # a status that does not exist
    "short",  # a status array with one row too few
    "crash_lowering",
    "hang_lowering",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)
CLOCK_HZ = 100e6
KNOBS = (
    Knob("tile_h", (1, 2, 4, 7, 14, 28)),
    Knob("tile_w", (1, 2, 4, 7, 14, 28)),
    Knob("tile_co", (1, 2, 4, 8)),
    Knob("threads", (1, 2)),
)


class FaultyTarget:
    """A small analytic accelerator with one scratchpad for image tiles, and with injected faults.

    The result of a config without a fault is computed by a formula:

    - A tile that is too large does not compile.
    - Two threads on an odd tile height give wrong results.
    - All other configs are valid.

    Args:
        faults: maps flat indices of the space to faults.
        late_seconds: delay of the fault `late`, in seconds.

    Raises:
        TilewrightError: a fault is unknown.
    """

    name = "faulty"
    deterministic = True

    def __init__(self, faults: Mapping[int, Fault], late_seconds: float = 1.0) -> None:
        self.faults = dict(faults)
        self.late_seconds = late_seconds
        self.capabilities: Capabilities = {}
        if unknown := set(self.faults.values()) - set(FAULTS):
            raise TilewrightError(f"unknown fault '{min(unknown)}'; known: {', '.join(FAULTS)}")

    @property
    def fingerprint(self) -> str:
        """Digest of the faults and of the delay."""
        text = json.dumps([sorted(self.faults.items()), self.late_seconds])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def hardware_features(self) -> dict[str, float]:
        """Return the clock frequency in Hz and the size of the scratchpad in values."""
        return {"clock_hz": CLOCK_HZ, "scratchpad_values": 512.0}

    def space(self, workload: Workload) -> Space:
        """Return the same small space for every workload."""
        return Space("faulty", KNOBS)

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        """Compile a batch, or crash or block this process if a config has a fault for lowering.

        Args:
            workload: the workload.
            configs: knob indices, shape (n, knobs).
        """
        for fault in self._faults(workload, configs):
            if fault == "crash_lowering":
                os.kill(os.getpid(), signal.SIGSEGV)
            if fault == "hang_lowering":
                _hang()
        values = self.space(workload).values(configs)
        tile = values[:, 0] * values[:, 1] * values[:, 2]
        failed = tile > 512
        hidden = np.stack([tile, tile * values[:, 3]], axis=1).astype(np.float64)
        hidden[failed] = np.nan
        return Lowered(
            workload,
            configs,
            failures=np.where(failed, "scratchpad_overflow", "").astype(object),
            reasons=np.where(failed, "allocate: the tile is too large", "").astype(object),
            hidden=Features.from_names(hidden, ("tile_values", "tile_values_all_threads")),
        )

    def measure(self, lowered: Lowered) -> Measurements:
        """Measure a batch, and execute the faults of its configs, such as a crash or a delay."""
        faults = self._faults(lowered.workload, lowered.configs)
        for fault in faults:
            execute_fault(fault, self.late_seconds)
        return distort_measurements(self._honest_measurements(lowered), faults)

    def _honest_measurements(self, lowered: Lowered) -> Measurements:
        work = lowered.workload
        values = self.space(work).values(lowered.configs)
        tiles_h = -(-work.out_height // values[:, 0])
        tiles_w = -(-work.out_width // values[:, 1])
        tiles_c = -(-work.out_channels // (16 * values[:, 2]))
        per_tile = 40 + values[:, 0] * values[:, 1] * values[:, 2] * work.kernel_h * work.kernel_w
        cycles = (tiles_h * tiles_w * tiles_c * per_tile // values[:, 3] + 17).astype(np.int64)
        wrong = lowered.ok & (values[:, 3] > 1) & (values[:, 0] % 2 == 1)
        status = np.where(lowered.ok, "valid", "compile_error").astype(object)
        status[wrong] = "wrong_result"
        reason = lowered.reasons.copy()
        reason[wrong] = "run: threads overlap on an odd tile"
        valid = np.asarray(status == "valid", dtype=np.bool_)
        return Measurements(
            status=status,
            reason=reason,
            cycles=np.where(valid, cycles, -1),
            seconds=np.where(valid, cycles / CLOCK_HZ, np.nan),
        )

    def _faults(self, workload: Workload, configs: Configs) -> NDArray[np.object_]:
        flat = self.space(workload).ravel(configs)
        return np.array([self.faults.get(int(index), "") for index in flat], dtype=object)


def make_target(
    faults: Mapping[str, Fault] | None = None, late_seconds: float = 1.0
) -> FaultyTarget:
    """Build a target with injected faults, from JSON values.

    Args:
        faults: name of the fault by flat index of the config, for example `{"3": "crash"}`.
        late_seconds: delay of the fault `late`, in seconds.
    """
    return FaultyTarget({int(flat): fault for flat, fault in (faults or {}).items()}, late_seconds)


def execute_fault(fault: str, late_seconds: float) -> None:
    """Crash, end, block or delay this process, or raise an exception, as a fault demands.

    Args:
        fault: name of the fault. Faults that affect only results, such as `nonsense`, and an empty
            text are ignored.
        late_seconds: duration of the fault `late`, in seconds.
    """
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == "exit":
        os._exit(3)
    elif fault == "raise":
        raise RuntimeError("the board does not answer")
    elif fault == "hang":
        _hang()
    elif fault == "late":
        time.sleep(late_seconds)


def distort_measurements(measured: Measurements, faults: NDArray[np.object_]) -> Measurements:
    """Falsify the measurements of configs with the faults `nonsense`, `liar` and `short`.

    Args:
        measured: correct measurements of n configs, which are changed in place.
        faults: name of the fault of each config, shape (n,); empty for none.

    Returns:
        The falsified measurements. If a config has the fault `short`, the first status is missing.
    """
    nonsense, liar = faults == "nonsense", faults == "liar"
    measured.status[nonsense] = "valid"
    measured.status[liar] = "splendid"
    measured.cycles[nonsense | liar] = -7
    if (faults == "short").any():
        return replace(measured, status=measured.status[1:])
    return measured


def _hang() -> None:
    while True:
        time.sleep(3600)
