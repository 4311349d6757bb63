"""Target for a VTA on a board: programs are compiled locally and measured on the board."""

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
    exclude_capabilities,
    offers,
)
from tilewright.targets.cluster import ClusterError
from tilewright.targets.cluster.connection import BOARD, connect
from tilewright.targets.registry import TargetError, rebuild
from tilewright.targets.remote_target import checked_measurements, joined_measurements
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload

_OURS = (Baseline, Fallback, Verifies)
_NOBODYS = (Enumerates, MeasuresInOnePass, Builds, HasArea, HasDesigns, HasEnergy)
"""Capabilities of the simulated VTA that a board does not offer. They return times of the simulated
machine, need counters that only a simulator has, or describe machines that have not been built."""


class BoardTarget:
    """Target for a VTA on a board of a cluster.

    Spaces, programs and estimates are those of a simulated VTA with the same specification;
    measurements come from the board. Measuring raises `ClusterError` if the board is lost.

    Args:
        machine: target that simulates the same VTA.
        name: name of the board.
        cluster: address of the Dask scheduler.
        bench: digest of the board's driver and measuring options.
    """

    deterministic = False

    def __init__(self, machine: VtaTarget, name: str, cluster: str, bench: str) -> None:
        self.machine = machine
        self.cluster = cluster
        self.name = BOARD + name
        self._bench = bench
        # Baselines and verification are implemented here, on the board.
        self.capabilities = {
            **exclude_capabilities(machine.capabilities, *_NOBODYS),
            **offers(self, *_OURS),
        }

    @property
    def fingerprint(self) -> str:
        """Digest of the simulated machine, the board's name, its driver and its options."""
        parts = [self.machine.fingerprint, self.name, self._bench]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def hardware_features(self) -> dict[str, float]:
        """Return the hardware features of the simulated machine."""
        return self.machine.hardware_features()

    def space(self, workload: Workload) -> Space:
        """Return the schedule space of the simulated machine.

        Raises:
            WorkloadError: the board cannot load programs of the workload.
        """
        check_loadable(workload, self.machine.spec)
        return self.machine.space(workload)

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        """Compile a batch in this process, like the target that simulates the same machine.

        Args:
            workload: the workload.
            configs: knob indices, int array of shape (n, knobs).
        """
        return self.machine.lower(workload, configs)

    def measure(self, lowered: Lowered) -> Measurements:
        """Run each program of a batch on the board, with random data.

        A program with wrong output gets the status `wrong_result`.

        Args:
            lowered: the programs, from `lower`.

        Returns:
            Statuses, times and two counters per config: `resets` is the number of resets of the
            board, and `wrong` is the number of wrong output bytes.
        """
        return self._measure_on_board(lowered, 0)

    def baseline(self, workload: Workload) -> BaselineSchedule:
        """Measure the baseline schedule of the simulated machine on the board.

        Raises:
            WorkloadError: there is no baseline schedule.
        """
        return self._on_board(self.machine.baseline(workload))

    def fallback(self, workload: Workload) -> BaselineSchedule:
        """Measure the fallback schedule of the simulated machine on the board.

        Raises:
            WorkloadError: there is no fallback schedule.
        """
        return self._on_board(self.machine.fallback(workload))

    def verify(self, lowered: Lowered, seed: int = 0) -> NDArray[np.int64]:
        """Run programs on the board with random tensors and count wrong output bytes.

        Args:
            lowered: the programs.
            seed: seed of the random tensors.

        Returns:
            Number of bytes that differ from the reference, shape (configs,); -1 if there is no
            program or the program does not finish.
        """
        measured = self._measure_on_board(lowered, seed)
        nothing = np.full(len(lowered), -1, np.int64)
        return measured.counters.get("wrong", nothing)

    def _on_board(self, schedule: BaselineSchedule) -> BaselineSchedule:
        measured = self.measure(schedule.lowered)
        return BaselineSchedule(schedule.source, schedule.space, schedule.lowered, measured)

    def _measure_on_board(self, lowered: Lowered, seed: int) -> Measurements:
        rows = np.flatnonzero(lowered.ok)
        parts: list[tuple[NDArray[np.int64], Measurements]] = []
        if len(rows):
            lowering = self.machine.lowering_of(lowered)
            programs = loadable(lowering, lowered.rows(rows), seed)
            loads = np.array([files is not None for files in programs.rows])
            sent = [dict(files) for files in programs.rows if files is not None]
            if sent:
                name = self.name.removeprefix(BOARD)
                answer = connect(self.cluster).call(
                    measure_on_board, name, sent, dict(programs.blobs), board=name
                )
                if isinstance(answer, str):
                    raise ClusterError(f"{self.name} cannot be used: {answer}")
                parts.append((rows[loads], checked_measurements(len(sent), answer)))
            if not loads.all():
                none = Measurements.unmeasured(int((~loads).sum()), "run_error")
                none.reason[:] = [f"run: {why}" for why in programs.reasons if why]
                parts.append((rows[~loads], none))
        return joined_measurements(lowered, parts)


def board_on(cluster: str, name: str, space: str) -> BoardTarget:
    """Connect to a board of a cluster, and return the target for it.

    Args:
        cluster: address of the Dask scheduler.
        name: name of the board.
        space: name of the schedule space.

    Raises:
        TargetError: no worker of the cluster offers the board.
        ClusterError: the cluster cannot be used.
    """
    connection = connect(cluster)
    offered = connection.boards()
    workers = offered.get(name, [])
    if not workers:
        names = ", ".join(BOARD + board for board in sorted(offered)) or "none"
        raise TargetError(
            f"no worker of {cluster} offers {BOARD}{name} (available boards: {names}); start "
            f"a worker on the machine of the board ('tilewright board serve {name} --cluster "
            f"{cluster}')"
        )
    about = connection.ask(describe_board, name, workers=workers)[workers[0]]
    machine = rebuild("vta", as_object(about["spec"]), space)
    assert isinstance(machine, VtaTarget), "that kind makes no other"
    return BoardTarget(machine, name, cluster, as_text(about["bench"]))
