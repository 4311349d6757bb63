"""Stands in for a target whose batches the workers of a cluster lower and measure."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import ceil
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.core.child_process import Arrays, Frame
from tilewright.core.files import Json, as_number
from tilewright.targets.base import Capabilities, Configs, Lowered, Measurements, Space, Target
from tilewright.targets.capabilities import (
    Enumerates,
    MeasuresInOnePass,
    Verifies,
    capability,
    offers,
    specification_of,
    without,
)
from tilewright.targets.cluster.channel import CALL
from tilewright.targets.cluster.connection import connect
from tilewright.targets.cluster.remote_worker import FINGERPRINT, RECIPE, SECONDS, WORKLOAD
from tilewright.targets.registry import kind_of
from tilewright.targets.remote_target import Ask, Failed, RemoteTarget, in_parts
from tilewright.targets.workload import Workload

CALL_SECONDS = 0.1
"""What a call shall take at least, so that sending it is little of that. Longer ones are made into
several, as far as there are workers."""

T = TypeVar("T", Lowered, Measurements)


class ClusterTarget(RemoteTarget):
    """Implements the `Target` contract for the target `here`, which each worker of the `cluster` at
    that address makes by the recipe for itself. What is not asked of batches, as spaces, estimates,
    the baseline and the proof of the chosen one, is asked of the one here.

    Programs stay with the workers, which lower again what another one measures. None of theirs is
    run here. Lowering and measuring raise `ClusterError` where the cluster is lost, or its workers
    have something else than `here`.
    """

    def __init__(self, here: Target, recipe: dict[str, Json], cluster: str) -> None:
        self.here = self.beside = here
        self.cluster = cluster
        self._recipe = recipe
        self._row_seconds: dict[tuple[str, str], float] = {}  # by call and workload

    @property
    def name(self) -> str:
        return self.here.name

    @property
    def fingerprint(self) -> str:
        return self.here.fingerprint

    @property
    def deterministic(self) -> bool:
        return self.here.deterministic

    def hardware_features(self) -> dict[str, float]:
        return self.here.hardware_features()

    def space(self, workload: Workload) -> Space:
        return self.here.space(workload)

    @property
    def capabilities(self) -> Capabilities:
        """Those of the target here, but for what would measure here."""
        known = without(self.here.capabilities, Enumerates, MeasuresInOnePass)
        return {**known, **offers(self, Verifies)} if Verifies in known else known

    def measure(self, lowered: Lowered) -> Measurements:
        """What is of another space, as a baseline may be, was lowered here and is measured here."""
        return self.here.measure(lowered) if lowered.space else super().measure(lowered)

    def verify(self, lowered: Lowered, seed: int = 0) -> NDArray[np.int64]:
        """As the target here, of what it lowers itself."""
        known = capability(self.here, Verifies)
        assert known is not None, "offered only where it is"
        if not lowered.space:
            lowered = self.here.lower(lowered.workload, lowered.configs)
        return known.verify(lowered, seed)

    def ask(
        self, call: str, workload: Workload, configs: Configs, programs: Arrays | None = None
    ) -> Frame:
        """A call on some worker. Raises `ClusterError` and `RpcNonsense`."""
        header, arrays = connect(self.cluster).call(
            {
                CALL: call, RECIPE: self._recipe, FINGERPRINT: self.fingerprint,
                WORKLOAD: workload.to_json(),
            },
            {"configs": configs},
        )  # fmt: skip
        row_seconds = as_number(header[SECONDS]) / max(1, len(configs))
        self._row_seconds[call, workload.id] = row_seconds
        return header, arrays

    def answers(
        self, call: str, workload: Workload, ask: Ask[T], failed: Failed[T], rows: NDArray[np.int64]
    ) -> list[tuple[NDArray[np.int64], T]]:
        """In one call, or in several at once where it takes long; what comes back is the same."""
        parts = self._parts(call, workload, rows)
        if len(parts) < 2:
            return in_parts(ask, failed, rows)
        with ThreadPoolExecutor(len(parts)) as pool:
            done = list(pool.map(lambda part: in_parts(ask, failed, part), parts))
        return [answer for part in done for answer in part]

    def _parts(
        self, call: str, workload: Workload, rows: NDArray[np.int64]
    ) -> list[NDArray[np.int64]]:
        slots = connect(self.cluster).slots()
        seconds = self._row_seconds.get((call, workload.id), CALL_SECONDS)
        wanted = ceil(seconds * len(rows) / CALL_SECONDS)
        return np.array_split(rows, max(1, min(wanted, slots, len(rows))))


def recipe_of(here: Target, name: str, space: str, isolate: float) -> dict[str, Json]:
    """How a worker makes the target that `name` and `space` make here: by its kind, and by what is
    in its specification where it has one. `isolate` is how many seconds a batch may take there, 0
    for no limit."""
    kind, rest = kind_of(name)
    written = specification_of(here)
    return {
        "kind": kind.name,
        "preset": rest if written is None else "",
        "specification": written,
        "space": kind.space_named(space),
        "isolate": isolate,
    }
