"""Implements the target of a VTA on a board: lowered here, measured where the board is."""

from __future__ import annotations

import hashlib
import json

import numpy as np
from numpy.typing import NDArray

from tilewright.core.files import as_object, as_text
from tilewright.targets.base import Configs, Lowered, Measurements, Space
from tilewright.targets.board.board_worker import describe_board, measure_on_board
from tilewright.targets.board.single_layer_programs import check_loadable, loadable
from tilewright.targets.capabilities import (
    Baseline,
    BaselineSchedule,
    Builds,
    Enumerates,
    Fallback,
    HasArea,
    HasDesigns,
    HasEnergy,
    MeasuresInOnePass,
    Verifies,
    offers,
    without,
)
from tilewright.targets.cluster import ClusterError
from tilewright.targets.cluster.connection import BOARD, connect
from tilewright.targets.registry import TargetError, rebuild
from tilewright.targets.remote_target import checked_measurements, joined_measurements
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload

_OURS = (Baseline, Fallback, Verifies)
_NOBODYS = (Enumerates, MeasuresInOnePass, Builds, HasArea, HasDesigns, HasEnergy)
"""What says how long programs take on the simulated machine or needs the counts of one that ran
there, or is of a machine to be built."""


class BoardTarget:
    """Implements the `Target` contract for a board of the cluster at an address. `machine` is the
    same VTA simulated: spaces, programs and estimates are its, no measurement is. Measuring raises
    `ClusterError` where the board is lost."""

    deterministic = False

    def __init__(self, machine: VtaTarget, name: str, cluster: str, bench: str) -> None:
        self.machine = machine
        self.cluster = cluster
        self.name = BOARD + name
        self._bench = bench
        # Not what measures on the simulated machine, or says how long a program takes there.
        self.capabilities = {**without(machine.capabilities, *_NOBODYS), **offers(self, *_OURS)}

    @property
    def fingerprint(self) -> str:
        """Of the simulated machine, the board's name, its driver and how it measures."""
        parts = [self.machine.fingerprint, self.name, self._bench]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def hardware_features(self) -> dict[str, float]:
        return self.machine.hardware_features()

    def space(self, workload: Workload) -> Space:
        check_loadable(workload, self.machine.spec)
        return self.machine.space(workload)

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        return self.machine.lower(workload, configs)

    def measure(self, lowered: Lowered) -> Measurements:
        """Each program runs on the board on random data; one that gives wrong bytes is
        `wrong_result`. Counters are `resets`, and how many bytes are `wrong`."""
        return self._measured(lowered, 0)

    def baseline(self, workload: Workload) -> BaselineSchedule:
        """That of the simulated machine, measured on the board. Raises `WorkloadError`."""
        return self._on_board(self.machine.baseline(workload))

    def fallback(self, workload: Workload) -> BaselineSchedule:
        """That of the simulated machine, measured on the board. Raises `WorkloadError`."""
        return self._on_board(self.machine.fallback(workload))

    def verify(self, lowered: Lowered, seed: int = 0) -> NDArray[np.int64]:
        """How many bytes of the output differ from the reference on random tensors, on the board,
        shape (configs,); -1 where a config has no program or it does not run to its end."""
        measured = self._measured(lowered, seed)
        nothing = np.full(len(lowered), -1, np.int64)
        return measured.counters.get("wrong", nothing)

    def _on_board(self, found: BaselineSchedule) -> BaselineSchedule:
        measured = self.measure(found.lowered)
        return BaselineSchedule(found.source, found.space, found.lowered, measured)

    def _measured(self, lowered: Lowered, seed: int) -> Measurements:
        rows = np.flatnonzero(lowered.ok)
        parts: list[tuple[NDArray[np.int64], Measurements]] = []
        if len(rows):
            lowering = self.machine.lowering_of(lowered)
            found = loadable(lowering, lowered.rows(rows), seed)
            loads = np.array([files is not None for files in found.rows])
            sent = [dict(files) for files in found.rows if files is not None]
            if sent:
                name = self.name.removeprefix(BOARD)
                answer = connect(self.cluster).call(
                    measure_on_board, name, sent, dict(found.blobs), board=name
                )
                if isinstance(answer, str):
                    raise ClusterError(f"{self.name} cannot be used: {answer}")
                parts.append((rows[loads], checked_measurements(len(sent), answer)))
            if not loads.all():
                none = Measurements.nothing(int((~loads).sum()), "run_error")
                none.reason[:] = [f"run: {why}" for why in found.reasons if why]
                parts.append((rows[~loads], none))
        return joined_measurements(lowered, parts)


def board_on(cluster: str, name: str, space: str) -> BoardTarget:
    """Return the board of that name, as its worker describes it. Raises `TargetError` if no worker
    of the cluster offers it, and `ClusterError`."""
    connection = connect(cluster)
    offered = connection.boards()
    workers = offered.get(name, [])
    if not workers:
        known = ", ".join(BOARD + each for each in sorted(offered)) or "none"
        raise TargetError(
            f"no worker of {cluster} offers {BOARD}{name} (boards there: {known}); start one "
            f"beside the board ('tilewright board serve {name} --cluster {cluster}')"
        )
    about = connection.ask(describe_board, name, workers=workers)[workers[0]]
    machine = rebuild("vta", as_object(about["spec"]), space)
    assert isinstance(machine, VtaTarget), "that kind makes no other"
    return BoardTarget(machine, name, cluster, as_text(about["bench"]))
