"""Stands in for a target whose batches the workers of a cluster lower and measure."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.core.child_process import Arrays, Frame
from tilewright.core.files import Json, as_number
from tilewright.targets.base import Capabilities, Configs, Lowered, Measurements, Space, Target
from tilewright.targets.capabilities import (
    Enumerates,
    MeasuresInOnePass,
    specification_of,
    without,
)
from tilewright.targets.cluster.connection import ClusterError, connect
from tilewright.targets.cluster.remote_worker import SECONDS, UNUSABLE, answer
from tilewright.targets.registry import kind_of
from tilewright.targets.remote_target import Ask, Failed, RemoteTarget, TargetRaised, in_parts
from tilewright.targets.subprocess_target import NAMED
from tilewright.targets.workload import Workload

CALL_SECONDS = 0.1
"""What a call shall take at least, so that sending it is little of that. Longer ones are made into
several, as far as there are workers."""

T = TypeVar("T", Lowered, Measurements)


class ClusterTarget(RemoteTarget):
    """Keeps the `Target` contract for the target `here`, which each worker of the `cluster` at that
    address makes by the recipe for itself. What is not asked of batches, as spaces, estimates, the
    baseline and the proof of the chosen one, is asked of the one here.

    Lowering and measuring raise `ClusterError` where the cluster is lost, or its workers have
    something else than `here`.
    """

    def __init__(self, here: Target, recipe: dict[str, Json], cluster: str) -> None:
        self.here = self.beside = here
        self.cluster = cluster
        self._recipe = json.dumps(recipe)
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
        return without(self.here.capabilities, Enumerates, MeasuresInOnePass)

    def ask(
        self, call: str, workload: Workload, configs: Configs, programs: Arrays | None = None
    ) -> Frame:
        """A call on some worker. Raises `RpcFailed` and `ClusterError`."""
        header, arrays = connect(self.cluster).call(
            answer, self._recipe, self.here.fingerprint,
            {"call": call, "workload": workload.to_json()},
            {"configs": configs, **(programs or {})},
        )  # fmt: skip
        if UNUSABLE in header:
            raise ClusterError(
                f"a worker of {self.cluster} cannot be used for {self.name}: "
                f"{header[UNUSABLE]}; give all workers what this command has"
            )
        if "error" in header:
            raise TargetRaised(f"{header['error']}: {header.get('message', '')}")
        row_seconds = as_number(header[SECONDS]) / max(1, len(configs))
        self._row_seconds[call, workload.id] = row_seconds
        return header, {name: np.require(array, None, "W") for name, array in arrays.items()}

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
    """How a worker makes the target that `name` and `space` make here: by them, or where the name
    is that of a file by what is in it. `isolate` is how many seconds a batch may take there in a
    process of its own, 0 for none."""
    written = specification_of(here) if Path(name).is_file() else None
    if written is None:
        return {"factory": NAMED, "arguments": {"text": name, "space": space}, "isolate": isolate}
    arguments: dict[str, Json] = {
        "kind": kind_of(name)[0].name, "specification": written, "space": space
    }  # fmt: skip
    return {
        "factory": "tilewright.targets.cluster.remote_worker:rebuilt",
        "arguments": arguments,
        "isolate": isolate,
    }
